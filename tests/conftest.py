"""Makes the helpers beside it (tiny.py) importable from every test folder."""
