# Sourced by the other scripts. It goes to the top of the checkout and defines one function:
#
#   environment [EXTRAS]     as in `environment "[test,books]"`: afterwards .venv/bin/python runs posbench
#
# pip keeps its own settings: its configuration files and PIP_* variables decide where packages come from, and
# scripts/constraints.txt only which version is taken. Nothing is installed when nothing has changed.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The versions of Python that the pinned torch has wheels for.
oldest=3.11
newest=3.14

# Nothing is compiled when it is installed (see below), so what Python compiles on import has to be kept: without it
# each process of the tests takes ten seconds to import torch.
unset PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "$*" >&2; }

# fits PYTHON: it starts, is of a version in range and can make a virtual environment.
fits() {
  "$1" - "$oldest" "$newest" 2>/dev/null <<'PYTHON'
import ensurepip, sys, venv
oldest, newest = (tuple(map(int, word.split("."))) for word in sys.argv[1:])
sys.exit(not oldest <= sys.version_info[:2] <= newest)
PYTHON
}

# The first Python that fits: $PYTHON when it is set, else the usual names.
find_python() {
  local candidate found="" candidates=(python3 python3.14 python3.13 python3.12 python3.11 python)
  [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    if fits "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
    found+="${found:+, }$candidate: $("$candidate" --version 2>/dev/null || echo 'not there')"
  done
  say "error: posbench needs Python $oldest to $newest with its venv module; none was found ($found)."
  say "Install one (on Debian or Ubuntu also its package python3-venv), or name one: PYTHON=/path/to/python bash $0"
  return 2
}

make_venv() {
  if .venv/bin/python -c 'import pip' 2>/dev/null && fits .venv/bin/python; then
    return
  fi
  local python
  python="$(find_python)"
  [ ! -e .venv ] || say "The environment in .venv does not work; making it anew."
  say "Making a virtual environment in .venv with $python ($("$python" --version))."
  "$python" -m venv --clear .venv
}

announce_download() {
  if .venv/bin/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    return
  fi
  say "Installing torch and what goes with it. The CPU build of torch is a download of about 200 MB."
  if [ "$(uname -s)" = Linux ]; then
    say "PyPI's torch for Linux is built for CUDA instead and brings several GB. Without a GPU take the CPU build:"
    say "  PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu bash $0"
  fi
}

environment() {
  local extras="${1:-}" stamp=.venv/posbench-installed inputs kept
  make_venv
  # Of the same inputs several sets of extras can be there; after any other inputs none counts any more.
  inputs="$(cat pyproject.toml scripts/constraints.txt | cksum) $PWD"
  kept="$(grep -F "$inputs " "$stamp" 2>/dev/null || true)"
  if grep -qxF "$inputs .$extras" <<<"$kept"; then
    return
  fi
  announce_download
  rm -f "$stamp"
  # The build tools are pinned too, so they are installed first and used in place of whatever is newest.
  # Without --no-compile half of the install is compiling modules of torch and transformers that nothing here imports.
  .venv/bin/python -m pip install --quiet -c scripts/constraints.txt hatchling editables setuptools </dev/null >&2
  .venv/bin/python -m pip install --no-compile -c scripts/constraints.txt --no-build-isolation -e ".$extras" </dev/null >&2
  printf '%s\n' ${kept:+"$kept"} "$inputs .$extras" >"$stamp"
}
