"""`python -m posbench` is `posbench`."""

from posbench.cli import main

if __name__ == "__main__":
    main()
