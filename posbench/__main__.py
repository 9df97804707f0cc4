"""`python -m posbench` is `posbench`."""

from posbench.cli import main

main()
