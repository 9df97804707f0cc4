"""Makes the helpers beside it (tiny.py) importable from every test folder, and gives each test process one thread.

The tests' tensors are small: more threads would only wait for each other, and for those of pytest-xdist's workers.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
