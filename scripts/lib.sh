# shellcheck shell=bash
# What the helper scripts share. Sourced, never run. Works with macOS's bash 3.2.

HEADSTART_CACHE=${HEADSTART_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/headstart}
export HEADSTART_CACHE
REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export REPO

say() { printf 'headstart: %s\n' "$*"; }
warn() { printf 'headstart: %s\n' "$*" >&2; }
die() {
  warn "$*"
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# The newest `node` that the project can use: the machine's own where it is new enough, else the one that
# setup.sh put into the cache folder. Only changes PATH.
MIN_NODE='20.19'
node_is_new_enough() {
  have node && have npm &&
    node -e 'const [a, b] = process.versions.node.split(".").map(Number), [x, y] = process.argv[1].split(".").map(Number)
             process.exit(a > x || (a === x && b >= y) ? 0 : 1)' "$MIN_NODE" 2>/dev/null
}
use_node() {
  node_is_new_enough && return
  PATH="$HEADSTART_CACHE/node/bin:$PATH"
  export PATH
  node_is_new_enough
}

# Folder in which the app looks for models, as the Rust crate `directories` gives it.
default_model_dir() {
  case $(uname -s) in
  Darwin) printf '%s\n' "$HOME/Library/Application Support/ai.headstart.Headstart/models" ;;
  *)
    # A relative XDG_DATA_HOME is to be ignored (XDG base directory specification).
    case ${XDG_DATA_HOME:-} in
    /*) printf '%s\n' "$XDG_DATA_HOME/headstart/models" ;;
    *) printf '%s\n' "$HOME/.local/share/headstart/models" ;;
    esac
    ;;
  esac
}
