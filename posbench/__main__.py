"""`python -m posbench` is `posbench`."""

from __future__ import annotations

import sys


def main() -> None:
    """Ctrl-C is quiet from the first import on; from then `cli.main` sees to it."""
    try:
        from posbench import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
