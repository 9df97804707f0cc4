#!/usr/bin/env bash
# Everything under results/ that is made, from the rows committed there: tables, figures, pages. No run is needed.
#
#   bash scripts/rebuild_results.sh             make it again; the files that have changed are printed
#   bash scripts/rebuild_results.sh FOLDER ...  of these folders alone
#   bash scripts/rebuild_results.sh --check     change nothing; status 1 when a committed byte is not as it is made
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

environment "[report]"
if [ "${1:-}" = --check ]; then
  exec .venv/bin/python scripts/results.py check
fi
exec .venv/bin/python scripts/results.py rebuild "$@"
