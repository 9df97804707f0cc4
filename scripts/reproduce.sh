#!/usr/bin/env bash
# The whole comparison on a fresh machine: environment, install, the default study, its tables.
#
#   bash scripts/reproduce.sh             800,000 tokens a run
#   bash scripts/reproduce.sh --smoke     does it work at all? Its numbers mean nothing
#   bash scripts/reproduce.sh --full      one epoch or more
#
# Give the same command again after any interruption: what is done is not done again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

environment "[report]"
say "posbench is installed. For commands of your own, in $PWD: source .venv/bin/activate"
exec .venv/bin/python -m posbench reproduce "$@"
