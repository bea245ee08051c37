#!/usr/bin/env bash
# Runs every check and test and counts them. Run it through `make test`, which does the set-up.
#
#   HEADSTART_SUMMARY   file for the closing line `N passed, N failed, N skipped` (default: print it)
#   HEADSTART_SHARED    folder with tools/maccheck.sh and tools/armcheck.sh (default: ../shared); checks that need
#                       them are skipped without it
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO" || exit 1
use_node || die "Node.js $MIN_NODE or newer is missing: run 'make setup' first."

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$HEADSTART_CACHE/target}
shared=${HEADSTART_SHARED:-$REPO/../shared}
model_dir=${HEADSTART_MODEL_DIR:-$(default_model_dir)}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export HEADSTART_STARTER_GGUF=${HEADSTART_STARTER_GGUF:-$model_dir/HuggingFaceTB/SmolLM2-135M-Instruct.Q4_1.gguf}
passed=0 failed=0 skipped=0
table=()

# run NAME CMD...: runs a step with its output shown and kept in $log, and sets $status and $seconds.
run() {
  local name=$1 start=$SECONDS
  shift
  log=$logs/$name.log
  printf '\n=== %s: %s\n' "$name" "$*"
  "$@" 2>&1 </dev/null | tee "$log"
  status=${PIPESTATUS[0]}
  seconds=$((SECONDS - start))
}

# count NAME PASSED FAILED SKIPPED: adds the counts of the step that was just run.
count() {
  local name=$1 p=$2 f=$3 s=$4
  # A step that failed without a failed test did not get as far as its tests, or broke afterwards; one that ran nothing
  # has proven nothing.
  if [ "$f" = 0 ] && { [ "$status" != 0 ] || [ $((p + s)) = 0 ]; }; then f=1; fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  table+=("$(printf '%-22s %5d s  %5d passed  %3d failed  %3d skipped' "$name" "$seconds" "$p" "$f" "$s")")
}

# check NAME CMD...: a step that either holds or does not.
check() {
  run "$@"
  if [ "$status" = 0 ]; then count "$1" 1 0 0; else count "$1" 0 1 0; fi
}

skip() {
  skipped=$((skipped + 1))
  table+=("$(printf '%-22s skipped: %s' "$1" "$2")")
  printf '\n=== %s: skipped, %s\n' "$1" "$2"
}

# cargo_tests NAME CMD...: sums the `test result:` lines of all test binaries, wherever in a line they are: another
# process may have begun it.
cargo_tests() {
  run "$@"
  # shellcheck disable=SC2046
  count "$1" $(grep -oE 'test result: [A-Za-z]+\. [0-9]+ passed; [0-9]+ failed; [0-9]+ ignored' "$log" |
    awk '{ p += $4; f += $6; s += $8 } END { print p + 0, f + 0, s + 0 }')
}

# node_tests NAME CMD...: node's own test runner, in TAP.
node_tests() {
  run "$@"
  # shellcheck disable=SC2046
  count "$1" $(awk '/^# pass / { p = $3 } /^# (fail|cancelled) / { f += $3 } /^# (skipped|todo) / { s += $3 } END { print p + 0, f + 0, s + 0 }' "$log")
}

# report_counts FILE: passed, failed and skipped of a JUnit report.
report_counts() {
  python3 - "$1" <<'PY'
import sys
import xml.etree.ElementTree as tree
try:
    suites = list(tree.parse(sys.argv[1]).getroot().iter("testsuite"))
except (OSError, tree.ParseError):
    suites = []
total = lambda key: sum(int(suite.get(key, 0)) for suite in suites)
bad, skipped = total("failures") + total("errors"), total("skipped")
print(total("tests") - bad - skipped, bad, skipped)
PY
}

# junit_tests NAME CMD...: a runner that writes a JUnit report to $logs/NAME.xml.
junit_tests() {
  run "$@"
  # shellcheck disable=SC2046
  count "$1" $(report_counts "$logs/$1.xml")
}

# The shell needs webview libraries on Linux. One package set for all cargo steps: another one would resolve features
# differently and compile the shared crates again.
set_of_crates=()
if ! cargo metadata --no-deps --format-version 1 2>/dev/null | grep -q '"name":"headstart-app"'; then
  skip shell "headstart-app is no member of the workspace"
elif [ "$(uname -s)" = Linux ] && [ -z "${HEADSTART_SHELL_TESTS:-}" ]; then
  skip shell "its build takes long; HEADSTART_SHELL_TESTS=1 builds and tests it (macOS types are checked below)"
elif [ "$(uname -s)" = Darwin ] || { have pkg-config && pkg-config --exists webkit2gtk-4.1 ayatana-appindicator3-0.1; }; then
  set_of_crates=(--workspace)
else
  skip shell "no webview libraries (make app installs them)"
fi
cargo_set() {
  local command=$1
  shift
  cargo "$command" ${set_of_crates[@]+"${set_of_crates[@]}"} "$@"
}

ui() (cd ui && "$@")

client_tests() {
  local venv=$HEADSTART_CACHE/clients stamp
  stamp=$(cksum tests/clients/requirements.txt) || return
  if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv" &&
      "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r tests/clients/requirements.txt &&
      printf '%s\n' "$stamp" >"$venv/stamp" || return
  fi
  "$venv/bin/python" -m pytest -p no:cacheprovider -q --junitxml="$logs/clients.xml" tests/clients
}

mac_types() {
  bash "$shared/tools/maccheck.sh" && . "${MACCHECK_DIR:-$HOME/.cache/maccheck}/env" &&
    cargo clippy --workspace --all-targets --target aarch64-apple-darwin -- -D warnings
}

arm_kernels() {
  . "$shared/tools/armcheck.sh" &&
    cargo test --no-fail-fast -p headstart-kernels --target aarch64-unknown-linux-gnu
}

check format cargo fmt --all --check
check ui-types ui npm run --silent check
junit_tests ui ui npx vitest run --reporter=default --reporter=junit --outputFile.junit="$logs/ui.xml"
check lints cargo_set clippy --all-targets -- -D warnings
# The tests with needs_display in their names run below, under a display of their own.
cargo_tests rust cargo_set test --no-fail-fast -- --skip needs_display
# `cargo test` builds a binary only for the tests of its own package.
check server-binary cargo_set build --bin headstart

export HEADSTART_BIN=$CARGO_TARGET_DIR/debug/headstart
chromium=${CHROMIUM:-$(command -v chromium || command -v google-chrome || true)}
if [ "$(uname -s)" = Darwin ] && [ -z "$chromium" ]; then
  chromium='/Applications/Google Chrome.app/Contents/MacOS/Google Chrome'
fi
if [ ! -x "$HEADSTART_BIN" ]; then
  skip browser "the server was not built"
elif [ -x "$chromium" ]; then
  node_tests browser ui env CHROMIUM="$chromium" HEADSTART_MODEL_DIR="$model_dir" \
    node --test --test-reporter=tap e2e/dashboard.test.mjs
else
  skip browser "no Chromium on this machine"
fi

if [ -f tests/clients/requirements.txt ]; then
  if [ -x "$HEADSTART_BIN" ]; then
    HEADSTART_MODEL_DIR=$model_dir junit_tests clients client_tests
  else
    skip clients "the server was not built"
  fi
fi

if [ ${#set_of_crates[@]} -gt 0 ] && [ -f src-tauri/tests/tray.rs ] && [ "$(uname -s)" = Linux ]; then
  if have xvfb-run && have dbus-run-session; then
    cargo_tests tray env NO_AT_BRIDGE=1 LANG=en_US.UTF-8 xvfb-run -a dbus-run-session -- \
      cargo test --workspace --test tray -- --ignored needs_display
  else
    skip tray "no xvfb or dbus on this machine"
  fi
fi

if [ "$(uname -s)" != Linux ]; then
  : # a Mac has just compiled all this for itself
else
  if [ -f "$shared/tools/maccheck.sh" ]; then check mac-types mac_types; else skip mac-types "no $shared/tools/maccheck.sh"; fi
  if [ "$(uname -m)" = aarch64 ]; then
    : # tested natively
  elif [ -z "${HEADSTART_ARM_TESTS:-}" ]; then
    skip arm-kernels "slow under emulation; HEADSTART_ARM_TESTS=1 runs them"
  elif [ ! -f "$shared/tools/armcheck.sh" ]; then
    skip arm-kernels "no $shared/tools/armcheck.sh"
  elif [ "$(id -u)" != 0 ] && ! { have qemu-aarch64 && have aarch64-linux-gnu-gcc; }; then
    skip arm-kernels "no qemu-user and ARM compiler, and not root to install them"
  else
    cargo_tests arm-kernels arm_kernels
  fi
fi

printf '\n=== summary\n'
printf '%s\n' "${table[@]}"
printf 'whole run: %d s\n' "$SECONDS"
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped" | tee "${HEADSTART_SUMMARY:-/dev/null}" >"$logs/line"
[ -n "${HEADSTART_SUMMARY:-}" ] || cat "$logs/line"
[ "$failed" = 0 ]
