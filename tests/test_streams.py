"""Streams that are closed, or read by nobody, end no job and swallow no other file."""

from __future__ import annotations

import subprocess
import sys

import pytest

SAY = """
import os, sys
from posbench import streams
streams.prepare()
print("a result")
print("said", file=sys.stderr)
sys.stderr.flush()
found = all(os.fstat(number) for number in (0, 1, 2)), sys.stdin.isatty(), os.system("test -e /dev/fd/2")
open(sys.argv[1], "w").write(str(found))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("how", "out", "err"),
    [("", "a result\n", "said\n"), ("<&-", "a result\n", "said\n"), (">&-", "", "said\n"), ("2>&-", "a result\n", "")],
)
def test_what_was_closed_is_open_and_what_is_said_goes_where_it_belongs(tmp_path, how: str, out: str, err: str):
    """Python would print what is meant for a closed stderr on stdout, and the next file opened would be stderr to C."""
    words = ["sh", "-c", f'"$0" -c "$1" "$2" {how}', sys.executable, SAY, str(tmp_path / "file")]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, out, err)
    assert (tmp_path / "file").read_text() == "(True, False, 0)"  # also what it starts has all three


@pytest.mark.process
def test_a_reader_of_stderr_that_has_gone_ends_nothing(tmp_path):
    """As in `posbench sweep ... 2>&1 | head`."""
    words = [sys.executable, "-c", SAY, str(tmp_path / "file")]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        process.stderr.close()
        assert process.wait() == 0
    assert (tmp_path / "file").is_file()
