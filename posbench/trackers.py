"""Where else the numbers of a training go: TensorBoard, trackio, wandb, a class of the user's own, or nowhere.

    tracker=tensorboard                      a choice of the config group; `none` names no class
    class: posbench.trackers.TensorBoard     what its YAML says; importable, or mine.py:Mine
    folder: null                             the class's own settings

A run's own files have all of it; a tracker shows it elsewhere, under the name of the run's folder. It is no part of
what a run is: it is in no hash, and may be another one when a run goes on.

    1. begin   with the run, in a thread of its own, which a slow tracker may hold up without holding up the training
    2. log     the steps up to the last checkpoint, once that is on disk: what a kill takes back was never told.
               tracker.json in its folder says up to where whom, before they are told, so that a run that goes on has
               no step twice, and a tracker that is named later gets what was before. One that is killed while it
               tells may leave some out there; its own metrics.jsonl has all
    3. end     whether the run is done, interrupted or failed

A tracker that raises or hangs is left out from there on, which is said once and stands in the run's log.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO, cast

from posbench import classes, files
from posbench.errors import reason
from posbench.extras import require
from posbench.files import parse_json

if TYPE_CHECKING:
    from posbench.run import Run

LOOK_SECONDS = 5.0
"""Between two looks at whether there is a new checkpoint."""

END_SECONDS = 60.0
"""How long the end of a training waits for its tracker."""


class Tracker:
    """What is told of one run. This one keeps nothing."""

    needs: ClassVar[tuple[str, str] | None] = None
    """A package that it imports, and the extra of posbench that installs it."""

    def begin(self, run: Run, config: Mapping[str, Any]) -> None:
        """A run begins, or goes on: what has its name is the same one. `config` is plain data."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """What a step gave: loss, lr, norm, tokens, tokens_per_second, seconds, valid; not each at every step."""

    def end(self) -> None:
        """Nothing more is told."""


class TensorBoard(Tracker):
    """Event files, each run in a folder of its own: `tensorboard --logdir runs/.tensorboard`."""

    needs = ("tensorboard", "tensorboard")

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder

    def begin(self, run: Run, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(self.folder) if self.folder else run.path.parent / ".tensorboard"
        self.writer = SummaryWriter(folder / run.name, flush_secs=10)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)

    def end(self) -> None:
        self.writer.close()


class Trackio(Tracker):
    """trackio's database on this machine: `trackio show --project posbench`. Nothing is sent anywhere."""

    needs = ("trackio", "trackio")

    def __init__(self, project: str = "posbench") -> None:
        self.project = project

    def begin(self, run: Run, config: Mapping[str, Any]) -> None:
        import trackio

        plain = json.loads(json.dumps(config))
        self.run = trackio.init(self.project, name=run.name, config=plain, resume="allow", embed=False)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def end(self) -> None:
        self.run.finish()


class Wandb(Tracker):
    """Weights & Biases. With `mode: offline` nothing is sent: `wandb sync runs/.wandb/wandb/offline-run-*` does so."""

    needs = ("wandb", "wandb")

    def __init__(self, project: str = "posbench", mode: str = "offline", folder: str | None = None) -> None:
        self.project, self.mode, self.folder = project, mode, folder

    def begin(self, run: Run, config: Mapping[str, Any]) -> None:
        import wandb

        folder = Path(self.folder) if self.folder else run.path.parent / ".wandb"
        folder.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=self.project,
            name=run.name,
            id=run.name,
            # Offline there is nobody to ask whether it is there: the id alone says so when it is sent.
            resume="allow" if self.mode == "online" else None,
            mode=self.mode,
            dir=str(folder),
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def end(self) -> None:
        self.run.finish()


def build(described: Mapping[str, Any]) -> Tracker:
    """The tracker that a YAML describes; of one without a class, that which keeps nothing.

    Raises UserError for a class or a setting that does not exist, and for a package that is not installed.
    """
    if "class" not in described:
        return Tracker()
    name = str(described.get("name", "?"))
    own = {key: value for key, value in described.items() if key not in ("name", "class")}
    cls = classes.find_class(str(described["class"]), Tracker, "tracker")
    parameters, hints = classes.signature(cls)
    classes.check("tracker", name, own, parameters, hints)
    if cls.needs:
        require(f"tracker={name}", *cls.needs)
    return cls(**classes.typed(own, parameters, hints))


class Follower:
    """Tells the tracker of `described` what a run writes into its metrics, up to its last checkpoint."""

    def __init__(
        self, described: Mapping[str, Any], run: Run, config: Mapping[str, Any], tell: Callable[[str], None]
    ) -> None:
        self.tracker, self.who = build(described), json.dumps(described, sort_keys=True)
        self.run, self.config, self.tell = run, config, tell
        self.mark = run.path / "tracker.json"
        self.told = self._marks().get(self.who, 0)
        """Up to which step it has been told."""
        self.file, self.offset = 0, 0
        """Which file metrics.jsonl was, by its number, and how much of it has been read."""
        self.waiting: dict[int, dict[str, float]] = {}
        """What was read and not told, by step."""
        self.left_out = False

    def _marks(self) -> dict[str, int]:
        try:
            return {str(who): int(step) for who, step in parse_json(self.mark.read_bytes()).items()}
        except (FileNotFoundError, ValueError, AttributeError, TypeError):
            return {}

    def _saved(self) -> int:
        return int(self.run.status()["step"]) if self.run.started else 0

    def begin(self) -> None:
        self._do(lambda: self.tracker.begin(self.run, self.config))

    def catch_up(self) -> None:
        """Tell it of the steps that a checkpoint holds by now."""
        self._do(self._catch_up)

    def end(self) -> None:
        self.catch_up()
        self._do(self.tracker.end)

    def _catch_up(self) -> None:
        if (saved := self._saved()) <= self.told:
            return
        self._read()
        before, self.told = self.told, saved
        files.write_json(self.mark, self._marks() | {self.who: saved})  # first: rather never than twice
        for step in sorted(step for step in self.waiting if step <= saved):
            values = self.waiting.pop(step)
            if step > before:
                self.tracker.log(step, values)

    def _read(self) -> None:
        with (self.run.path / "metrics.jsonl").open("rb") as stream:
            # A training that goes on puts another file in its place, without what lies past its checkpoint.
            if (number := os.fstat(stream.fileno()).st_ino) != self.file:
                self.file, self.offset = number, 0
                self.waiting.clear()
            stream.seek(self.offset)
            *lines, _ = stream.read().split(b"\n")
        for line in lines:
            self.offset += len(line) + 1
            values = json.loads(line)
            self.waiting.setdefault(int(values.pop("step")), {}).update(values)

    def _do(self, what: Callable[[], None]) -> None:
        if self.left_out:
            return
        try:
            what()
        except Exception as error:
            if not self.left_out:  # while it hung
                self.leave_out(f"is left out from here on: {type(error).__name__}, {reason(error)}.")

    def leave_out(self, why: str) -> None:
        """Tell it nothing any more."""
        self.left_out = True
        self.tell(f"The tracker {type(self.tracker).__name__} {why}")


class _Without:
    """A stream, without what one thread writes into it: some trackers speak where results stand, and in colours."""

    def __init__(self, stream: TextIO, thread: threading.Thread) -> None:
        self.stream, self.thread = stream, thread

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread() is self.thread else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def following(
    described: Mapping[str, Any], run: Run, config: Mapping[str, Any], tell: Callable[[str], None]
) -> Iterator[None]:
    """Within it, the tracker of `described` is told what the training of `run` writes."""
    if "class" not in described:
        yield
        return
    follower = Follower(described, run, config, tell)
    over = threading.Event()

    def follow() -> None:
        follower.begin()
        while not over.wait(LOOK_SECONDS):
            follower.catch_up()
        follower.end()

    thread = threading.Thread(target=follow, name=f"tracker of {run.name}", daemon=True)
    with redirect_stdout(cast("TextIO", _Without(sys.stdout, thread))):
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(END_SECONDS)
            if thread.is_alive():
                follower.leave_out("is not done yet, and is not waited for.")
