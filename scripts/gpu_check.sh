#!/usr/bin/env bash
# What posbench does on an NVIDIA card, within 6 minutes, without a network; nothing is installed.
#
#   PYTHON=python3.12 PYTHONPATH=DEPENDENCIES bash scripts/gpu_check.sh TOKENS [RESULTS]
#   bash scripts/gpu_check.sh --tiny TOKENS [RESULTS]       a rehearsal on the CPU: its numbers mean nothing
#
# PYTHON has torch of 2.11 or later and what posbench needs, by itself or through PYTHONPATH. TOKENS is a folder of
# prepared token files, made elsewhere with the same release of `tokenizers`: posbench data prepare sotu_books --out TOKENS
# RESULTS (results/gpu) gets a log of each part and summary.md. The parts, by worth, each cut at its time and each with
# what it has by then:
#
#   tests      every kernel against a naive float32 one, forward and gradients; training in bf16; compilation
#   encodings  posbench bench encodings at base, L = 1,024
#   study      three encodings of size small on sotu_books, read at up to 64 L
#   window     131,072 tokens in one window: each run of the study, or a model with its initial weights
#   summary    all of it against its goals
#
# Exit status: 0; 1 when a part failed or was cut; 2 when something is missing, which is named within 10 s, or where only
# torch can tell (a card that it cannot use) as soon as that is loaded, and in 35 s at the latest.
set -uo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; }
tiny=""
if [ "${1:-}" = --tiny ]; then
  tiny=--tiny
  shift
fi
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
  usage
  exit 2
fi
tokens="$1"
results="${2:-$root/results/gpu}"
python="${PYTHON:-python3}"
check="$root/scripts/gpu_check.py"

# Words for parts that differ in a rehearsal; the goals are those of the card alone.
if [ -n "$tiny" ]; then
  device=cpu
  shape=(model=nano model.layers=1 model.width=64 model.heads=4 model.hidden=64)
  bench=("${shape[@]}" train.length=64 train.batch_tokens=128 train.compile=off --rounds 3 --seconds 5)
  study=("${shape[@]}" train.length=64 train.batch_tokens=256 train.tokens=1024 tokenizer=bpe)
  budget=tiny
  window=8192
else
  device=cuda
  bench=(model=base train.length=1024 train.batch_tokens=32768 --rounds 20 --seconds 30)
  study=()
  budget=default
  window=131072
fi

if ! python="$(command -v "$python")"; then
  echo "missing: PYTHON=${PYTHON:-python3} is not there; name a Python of 3.11 or later with torch 2.11 or later" >&2
  exit 2
fi
# The parts work in the checkout: what was named from here is named from anywhere.
absolute() { case "$1" in /*) printf %s "$1" ;; *) printf %s "$PWD/$1" ;; esac; }
python="$(absolute "$python")"
modules="$root"
IFS=: read -ra folders <<<"${PYTHONPATH:-}"
for folder in "${folders[@]}"; do
  modules+=":$(absolute "$folder")"
done
export PYTHONPATH="$modules" PYTHONUNBUFFERED=1 PYTHONUTF8=1 HF_HUB_OFFLINE=1
work="$(mktemp -d)" || exit 2
trap 'rm -rf "$work"' EXIT

# within SECONDS COMMAND...: first as Ctrl-C, after which posbench still says what it has. All that is given here, with
# the seconds after which it is killed, is at most 345 s, `warm` apart, which runs beside the tests.
grace=3
within() { timeout --signal=INT --kill-after="$grace" "$@"; }

within 35 "$python" "$check" missing "$tokens" $tiny >"$work/machine.txt"
case $? in
  0) cat "$work/machine.txt" ;;
  124 | 137) echo "missing: an answer of $python within 35 s" >&2 && exit 2 ;;
  *) exit 2 ;;
esac
mkdir -p "$results" || exit 2
results="$(cd "$results" && pwd)"
cp "$work/machine.txt" "$results"
tokens="$(cd "$tokens" && pwd)"
export POSBENCH_DATA="$tokens" POSBENCH_RUNS="$work/runs"
# What was compiled is kept within one call alone, so that each tells what a first time takes.
export TORCHINDUCTOR_CACHE_DIR="$work/inductor" TRITON_CACHE_DIR="$work/triton"
cd "$root" || exit 2
: >"$results/parts.txt"
worst=0

# part NAME SECONDS COMMAND...: its output goes to NAME.log, its end to parts.txt.
part() {
  local name="$1" seconds="$2" start status
  shift 2
  printf '\n== %s (at most %s s)\n' "$name" "$seconds"
  start=$SECONDS
  # A process that it leaves behind may hold the pipe: the reader has a limit of its own.
  within "$seconds" "$@" </dev/null 2>&1 | timeout "$((seconds + grace))" tee "$results/$name.log"
  status=${PIPESTATUS[0]}
  case $status in
    0) echo "$name: done in $((SECONDS - start)) s" ;;
    124 | 137) echo "$name: cut after $seconds s" ;;
    *) echo "$name: failed with status $status after $((SECONDS - start)) s" ;;
  esac | tee -a "$results/parts.txt"
  [ "$status" -eq 0 ] || worst=1
}

# While the tests run, other processes compile what `encodings` times: it then finds it in the cache.
within 85 "$python" "$check" warm $tiny "${bench[@]}" device=$device >"$results/warm.log" 2>&1 </dev/null &
warm=$!
part tests 85 "$python" "$check" tests $tiny
wait "$warm"
part encodings 110 "$python" -m posbench bench encodings "${bench[@]}" device=$device --encodings none,alibi,t5 \
  --within 95 --out "$results/encodings"
part study 50 "$python" -m posbench study run "$root/scripts/gpu_check.yaml" --budget $budget "${study[@]}" \
  device=$device
part window 25 "$python" "$check" window "$window" $tiny "${study[@]}"
within 8 "$python" -m posbench table --format md >"$results/study.md" 2>>"$results/study.log" || worst=1
part summary 8 "$python" "$check" summary "$results" $tiny
exit $worst
