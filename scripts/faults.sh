#!/usr/bin/env bash
# SIGKILL a small study a hundred times, fill its disk, set its clock back, and count what is lost (tests/faults).
#
#   bash scripts/faults.sh --table results/faults/table.md     under 20 minutes on two cores; further words: report.py
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

environment "[test,books]"
export OMP_NUM_THREADS=1
PYTHONPATH=tests exec .venv/bin/python tests/faults/report.py "$@"
