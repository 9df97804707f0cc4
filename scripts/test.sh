#!/usr/bin/env bash
# Everything that must hold before a change lands: environment, install, format, lint, types, results as made, tests.
#
#   bash scripts/test.sh                      all of it
#   bash scripts/test.sh -m 'not slow'        further words go to pytest
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

environment "[test,books]"
# One thread a worker: the workers are the parallelism, and sums come out the same on every machine.
export OMP_NUM_THREADS=1
.venv/bin/python -m ruff format --check .
.venv/bin/python -m ruff check .
.venv/bin/python -m mypy &
types=$!
.venv/bin/python scripts/results.py check
.venv/bin/python scripts/goals.py check
.venv/bin/python -m pytest --doctest-modules posbench </dev/null
wait $types
.venv/bin/python -m pytest -n 2 --dist worksteal "$@" </dev/null
