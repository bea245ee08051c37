#!/usr/bin/env bash
# Runs npm in ui/ with a Node.js that is new enough:  scripts/ui.sh ci | scripts/ui.sh run build
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
use_node || die "Node.js $MIN_NODE or newer is missing: run 'make setup' first."
cd "$REPO/ui"
exec npm "$@"
