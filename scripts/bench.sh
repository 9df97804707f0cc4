#!/usr/bin/env bash
# The tables of results/bench, on a machine that does nothing else: some four hours on two cores. Those of a processor
# are a folder, named after it; OUT=FOLDER is another one.
#
#   bash scripts/bench.sh                 all of them
#   bash scripts/bench.sh peers-nano      one; its name is the name of its files
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

environment "[peers,report]"

# What is measured is this checkout with all cores, whatever the shell is set to.
unset PYTHONPATH OMP_NUM_THREADS MKL_NUM_THREADS

out="${OUT:-results/bench/$(.venv/bin/python -c 'from posbench.bench import machine; print(machine.slug())')}"
mkdir -p "$out"

encodings=none,sinusoidal,learned,rope,alibi,t5,shaw,kerple
by_distance=alibi,t5,kerple,fire,sandwich
nano=(model=nano train.length=128 train.batch_tokens=4096)
micro=(model=micro train.length=128 train.batch_tokens=2048)

bench() {
  local name="$1"
  shift
  say "$name: posbench bench $*"
  .venv/bin/python -m posbench bench "$@" --out "$out/$name"
}

tables=("$@")
[ $# -gt 0 ] || tables=(
  training-nano encodings-nano compiled-nano encodings-nano-32768 memory-nano-32768 peers-nano
  training-micro compiled-micro peers-micro time-to-loss start reproduce
)
for table in "${tables[@]}"; do
  case "$table" in
    # A step is short and ratios near 1 need narrow intervals.
    training-nano) bench "$table" encodings "${nano[@]}" --encodings $encodings --rounds 100 ;;
    encodings-nano) bench "$table" encodings "${nano[@]}" --encodings $encodings --lengths 1024,8192 --eval-tokens 1024 ;;
    encodings-nano-32768) bench "$table" encodings "${nano[@]}" --encodings none,alibi,t5 --lengths 32768 --eval-tokens 1024 ;;
    compiled-nano) bench "$table" encodings "${nano[@]}" train.compile=on --encodings $encodings --rounds 100 ;;
    # One call each: a peak of memory does not depend on how often it is reached.
    memory-nano-32768)
      bench "$table" encodings "${nano[@]}" --encodings none,$by_distance --lengths 1024,8192,16384,32768 --eval-tokens 1024 --rounds 1
      ;;
    peers-nano) bench "$table" peers "${nano[@]}" --lengths 4096,8192 --eval-tokens 1024 ;;
    training-micro) bench "$table" encodings "${micro[@]}" --encodings $encodings --rounds 100 ;;
    compiled-micro) bench "$table" encodings "${micro[@]}" train.compile=on --encodings $encodings --rounds 100 ;;
    peers-micro) bench "$table" peers "${micro[@]}" ;;
    time-to-loss) bench "$table" time-to-loss "${nano[@]}" train.tokens=1_024_000 ;;
    start) .venv/bin/python scripts/table_check.py --times 21 --out "$out/start.json" ;;
    reproduce)
      # Nothing that an earlier command has prepared is there. What it prints is kept: results/default-study.
      empty="$(mktemp -d)"
      from=$SECONDS
      (
        export POSBENCH_RUNS="$empty/runs" POSBENCH_DATA="$empty/data"
        .venv/bin/python -m posbench reproduce >"$empty/tables.txt"
        .venv/bin/python -c 'import sys, pathlib
from posbench.bench import machine
machine.keep(pathlib.Path(sys.argv[1]), "posbench reproduce", [float(sys.argv[2])])' "$empty/reproduce.json" $((SECONDS - from))
        .venv/bin/python -m posbench table --format json >"$empty/tables.json"
      )
      mv "$empty/reproduce.json" "$out/"
      mv "$empty/tables.txt" "$empty/tables.json" results/default-study/
      rm -r "$empty"
      ;;
    *)
      say "error: there is no table $table; there are training-nano, encodings-nano, compiled-nano, encodings-nano-32768,"
      say "memory-nano-32768, peers-nano, training-micro, compiled-micro, peers-micro, time-to-loss, start, reproduce."
      exit 2
      ;;
  esac
done
