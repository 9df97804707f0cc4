"""A process at work on one job: `python -m posbench.job`, heard and ended from here."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import IO

from posbench import job as jobs
from posbench import system
from posbench.errors import UserError, how_it_ended
from posbench.job import Job, Result, Say
from posbench.launch import SAID


class Worker:
    """`python -m posbench.job` at work on one job; what it says is said on, with its number before each line."""

    def __init__(
        self,
        index: int,
        job: Job,
        gpu: str | None,
        threads: int,
        number: str,
        say: Say,
        selector: selectors.BaseSelector,
    ) -> None:
        self.index, self.job, self.gpu, self.number, self.say = index, job, gpu, number, say
        self.said: deque[str] = deque(maxlen=SAID)
        self.line, self.result = b"", b""
        there = system.environment(OMP_NUM_THREADS=str(threads))
        if gpu is not None:
            there["CUDA_VISIBLE_DEVICES"] = gpu
            job = replace(job, config=replace(job.config, device="cuda"))  # the only one it sees
        self.process = subprocess.Popen(
            [sys.executable, "-m", "posbench.job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=there,
            process_group=0,  # Ctrl-C is for this process, which passes it on
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.streams: dict[IO[bytes], Callable[[bytes], None]] = {
            self.process.stdout: self._keep,
            self.process.stderr: self._pass_on,
        }
        for stream in self.streams:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, partial(self._read, stream, selector))
        with suppress(BrokenPipeError):  # it has ended already, and is found so
            self.process.stdin.write(job.to_json().encode() + b"\n")
            self.process.stdin.flush()

    def _read(self, stream: IO[bytes], selector: selectors.BaseSelector) -> None:
        """Take in what is there."""
        with suppress(BlockingIOError):
            while chunk := os.read(stream.fileno(), 1 << 16):
                self.streams[stream](chunk)
            selector.unregister(stream)

    def _keep(self, chunk: bytes) -> None:
        self.result += chunk

    def _pass_on(self, chunk: bytes) -> None:
        *lines, self.line = (self.line + chunk).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            self.said.append(text)
            self.say(f"{self.number} {text}")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def end(self, selector: selectors.BaseSelector, stopping: bool) -> Result | None:
        """Its result, after its process has ended; None for one that was told to stop before it had any."""
        for stream in self.streams:
            if stream in selector.get_map():
                self._read(stream, selector)
            with suppress(KeyError):  # a grandchild may hold the pipe open
                selector.unregister(stream)
        self._pass_on(b"\n" if self.line else b"")
        self.kill()
        try:
            return Result.from_json(self.result.decode())
        except ValueError:  # it has written none
            message = f"its process left no result: it {how_it_ended(self.process.returncode)}"
        except UserError as error:  # a row of it that was damaged since
            message = error.message
        return None if stopping else jobs.crashed(self.job, message, list(self.said))

    def stop(self) -> None:
        """Have it write a checkpoint and end."""
        self.process.terminate()

    def kill(self) -> None:
        """End it and whatever it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
