#!/usr/bin/env bash
# Ends the Slurm of scripts/slurm-up.sh DIR, and the jobs that are left on it.
#
#   bash scripts/slurm-down.sh DIR
set -euo pipefail

dir="$(realpath -m "${1:?in which folder does it live?}")"
export SLURM_CONF="$dir/slurm.conf"
if [ ! -f "$SLURM_CONF" ] && [ ! -d "$dir/db" ]; then
  echo "There is no Slurm in $dir." >&2
  exit 0
fi

# ended PID: wait for it for 20 s.
ended() {
  for _ in $(seq 80); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.25
  done
  echo "error: process $1 does not end." >&2
  return 1
}

# Where it did not come up whole there is no queue to empty, only what was started before it.
if [ -f "$dir/slurmctld.pid" ]; then
  scancel --quiet --user=root 2>/dev/null || true
  # A daemon that goes before its last job leaves that behind.
  for _ in $(seq 80); do
    [ -n "$(squeue --noheader 2>/dev/null)" ] || break
    sleep 0.25
  done
fi
files=("$dir/slurmd.n1.pid" "$dir/slurmd.n2.pid" "$dir/slurmctld.pid" "$dir/slurmdbd.pid" "$dir/db.pid")
[ ! -f "$dir/munge-is-ours" ] || files+=(/run/munge/munged.pid)
for file in "${files[@]}"; do
  [ -f "$file" ] || continue
  pid="$(cat "$file")"
  kill "$pid" 2>/dev/null || continue
  ended "$pid"
done
rm -f "$dir/munge-is-ours" "$dir/db.pid"
