"""What reads a text: a run's model, as it was trained or under an extension, or a reference.

Under an extension a run is one checkpoint whose encoding is changed anew for each length that is asked for. Settings
that are to be found by trial are searched on validation text first; what was found is kept beside the run, in
searches/, and stands in the key of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posbench import extensions, files, initial, system
from posbench.config import Config, trained_length
from posbench.data import tokens
from posbench.data.tokens import Prepared
from posbench.data.windows import generators, nonoverlapping
from posbench.encodings.base import Encoding
from posbench.errors import UserError
from posbench.extensions.base import SEARCH_LOSSES
from posbench.files import parse_json
from posbench.identity import hash8, label, settings
from posbench.losses import Score, measure
from posbench.model import Decoder
from posbench.progress import progress
from posbench.records import About
from posbench.run import Run

TOKEN_BUDGET = {"cpu": 4096, "mps": 16384, "cuda": 65536}
"""Inputs of one forward pass: as many windows as fit, so that a longer window makes a smaller batch. Fixed, because
the last bits of a result may depend on the batch."""

MOST_AT_ONCE = 8
"""Passes at the same time on a CPU: each takes its memory. The threads that are left over are shared among them."""


SEARCH_TARGETS = 4096
"""Targets of validation text behind one loss of a search: whole windows, and one where a window is longer."""


@dataclass
class Reader:
    """What reads a text: a run's model, or a reference."""

    about: About
    run_hash: str
    step: int
    folder: Path
    """Where its rows are kept."""
    score: Callable[[str], Score]
    """How it reads a split of that name."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: str = "float32"
    extension: str | None = None
    """What of an extension stands in the key of its rows; None: it reads as it was trained."""
    limit: Callable[[int], str | None] = lambda length: None
    """Why it cannot read windows of that length; None: it can."""
    kernel: Callable[[], tuple[str, str] | tuple[None, None]] = lambda: (None, None)
    """The attention kernel of the last pass, and why it was that one."""
    commit: tuple[str, bool] | None = field(default_factory=system.commit)
    extend: Callable[[str, int, bool], Reader] | None = None
    """`under`, for an extension."""

    def under(self, extension: str | None, length: int, search: bool = True) -> Reader:
        """The reader under an extension (as `extensions.write` gives it), for windows of that length.

        Settings that are to be found by trial are searched for, unless `search` is false.
        """
        if extension is None:
            return self
        assert self.extend is not None, "a reference has no encoding"
        return self.extend(extension, length, search)


def at_once(device: torch.device) -> int:
    """Passes that are computed at the same time, each on its share of the threads."""
    return min(torch.get_num_threads(), MOST_AT_ONCE) if device.type == "cpu" else 1


def prepared(run: Run) -> Prepared:
    """The text of a run in its own tokenizer. Raises `UserError` when it is no longer the text of the training."""
    found = tokens.prepare(run.config.data, run.tokenizer())
    if found.corpus_fingerprint != run.record["corpus"]["fingerprint"]:
        raise UserError(
            f"The text of '{found.corpus}' is not the one {run.name} was trained on.",
            "Train it again on the text of today, or bring the old text back.",
        )
    return found


def dtype(run: Run, kind: str) -> str:
    """In what a run is read on a kind of device: as it was trained, where that can: bf16 autocast on CUDA alone."""
    return "bfloat16" if kind == "cuda" and run.record["decisions"]["precision"] == "bf16" else "float32"


def about(config: Config, run: str, identity: Mapping[str, Any], corpus: str, vocab_size: int) -> About:
    """What the rows of a run say of it; `run` is its name, `corpus` that of its text."""
    return About(
        kind="run",
        run=run,
        encoding=label(config.encoding, config.extension),
        extended="class" in config.extension,
        init_from=config.init_from["name"] if config.init_from else None,
        recipe=initial.recipe(config, identity),
        setup=initial.setup(config, identity),
        settings=settings(identity),
        heads=config.model.heads,
        head_dim=config.model.width // config.model.heads,
        model=config.model.name,
        seed=config.seed,
        train_length=config.train.length,
        train_tokens=config.train.tokens,
        trained_on=corpus,
        corpus=corpus,
        tokenizer=config.tokenizer["name"],
        vocab_size=vocab_size,
    )


def too_long(name: str, encoding: Encoding, length: int) -> str | None:
    """Why an encoding of that name has no positions for windows of `length`; None: it has."""
    longest = encoding.max_length
    return None if longest is None or length <= longest else f"{name} has positions for {longest} inputs and no more"


def of_run(run: Run, device: torch.device, weights: bool = True) -> Reader:
    """A run's model, loaded when it is first needed. Raises `UserError` when it is not finished.

    Without `weights` it may have lost them since: its rows are known, and nothing can be read.
    """
    if weights:
        run.refuse_unfinished()
    config, name, start = run.config, label(run.config.encoding), trained_length(run.config)
    read_in = dtype(run, device.type)

    @cache
    def loaded() -> tuple[Decoder, Encoding]:
        """The model, and its encoding before any extension."""
        decoder = run.model(extended=False).to(device)
        return decoder, decoder.encoding

    def changed(described: Mapping[str, Any], length: int) -> Encoding:
        return extensions.extend(described, loaded()[1], name, start, length)

    def score(
        encoding: Callable[[], Encoding], split: str, inputs_BT: np.ndarray, targets_Bn: np.ndarray, numbers: np.ndarray
    ) -> np.ndarray:
        model, _ = loaded()
        model.encoding = encoding()
        ids, targets = torch.from_numpy(inputs_BT).to(device), torch.from_numpy(targets_Bn).to(device)
        positions = model.positions(numbers.tolist(), inputs_BT.shape[1], generators(config.seed, split, numbers))
        with torch.autocast(device.type, torch.bfloat16, enabled=read_in == "bfloat16"):
            return model.token_losses(ids, targets, positions, last=targets.shape[1]).cpu().numpy()

    def with_encoding(reader: Reader, described: Mapping[str, Any], length: int, reason: str | None = None) -> Reader:
        """The reader under the extension that is described; `reason`: why it cannot be."""
        encoding = cache(partial(changed, described, length))

        def limit(length: int) -> str | None:
            if reason is not None:
                return reason
            loaded()  # outside: damaged weights are the run's fault, never a row that says n/a for good
            try:
                return too_long(name, encoding(), length)
            except UserError as error:
                return _sentence(error)

        return replace(reader, score=lambda split: partial(score, encoding, split), limit=limit)

    def on_validation(encoding: Encoding) -> Score:
        return partial(score, lambda: encoding, "validation")

    def searched(described: Mapping[str, Any], length: int) -> tuple[dict[str, Any] | None, str | None]:
        """What a search finds, or why it cannot be made."""
        encoding = loaded()[1]  # outside: damaged weights are the run's fault, never a row that says n/a for good
        if reason := too_long(name, encoding, length):
            return None, reason
        try:
            return _search(run, described, length, encoding, on_validation, device), None
        except UserError as error:
            return None, _sentence(error)
        except (MemoryError, RuntimeError) as error:
            if not system.out_of_memory(error):
                raise
            return None, f"a window of {length} does not fit in the memory of {device.type}"

    def extend(extension: str, length: int, search: bool) -> Reader:
        described, reason, found = extensions.read(extension), None, None
        built = extensions.build(described)
        if built is not None and built.searches:
            found = _found(run, described, length)
            if found is None and search:
                found, reason = searched(described, length)
        key = extensions.key(described, found)
        return with_encoding(replace(reader, extension=key), {**described, **(found or {})}, length, reason)

    reader = Reader(
        about=about(
            config,
            run.name,
            run.record["identity"],
            run.record["corpus"]["name"],
            run.record["tokenizer"]["vocab_size"],
        ),
        run_hash=run.hash,
        step=run.status()["step"],
        folder=run.rows_dir,
        score=lambda split: partial(score, lambda: loaded()[1], split),
        device=device,
        dtype=read_in,
        kernel=lambda: (loaded()[0].kernel, loaded()[0].kernel_reason),
        extend=extend,
    )
    return with_encoding(reader, config.extension, config.train.length)


def _sentence(error: UserError) -> str:
    """An error as the reason of an n/a row."""
    return error.message.rstrip(".") + (f" ({error.hint.rstrip('.')})" if error.hint else "")


# Searches -----------------------------------------------------------------------------------------------------------


def _what(run: Run, described: Mapping[str, Any], length: int) -> dict[str, Any]:
    """What a search depends on, beside the run and its text."""
    sought = {"extension": extensions.key(described), "length": length, "trained_length": trained_length(run.config)}
    return {**sought, "losses": SEARCH_LOSSES, "targets": SEARCH_TARGETS}


def _file(run: Run, what: Mapping[str, Any], name: str) -> Path:
    return run.path / "searches" / f"{name}-{what['length']}-{hash8(what)}.json"


def _found(run: Run, described: Mapping[str, Any], length: int) -> dict[str, Any] | None:
    """What the search of these settings found before, if it was made."""
    what = _what(run, described, length)
    try:
        stored = parse_json(_file(run, what, described["name"]).read_bytes())
        return stored["found"] if stored["what"] == what else None
    except (OSError, ValueError, KeyError, TypeError):  # not there or damaged: it is made again
        return None


def _search(
    run: Run,
    described: Mapping[str, Any],
    length: int,
    encoding: Encoding,
    score: Callable[[Encoding], Score],
    device: torch.device,
) -> dict[str, Any]:
    """Find the settings of an extension on the validation text of a run, and keep them beside it.

    Raises `UserError` when the extension does not apply, or there is no validation text of that length.
    """
    extension = extensions.applied(described, encoding, label(run.config.encoding))
    assert extension is not None
    text = prepared(run)
    if "validation" not in text.splits:
        raise UserError(f"There is no validation text to search the settings of {described['name']} on.")
    stream = text.stream("validation")
    windows = nonoverlapping(len(stream.ids), length, max(SEARCH_TARGETS // length, 1) * length)
    if windows.targets < length:
        raise UserError(
            f"The validation text has {stream.targets} targets, fewer than one window of {length} to search the "
            f"settings of {described['name']} on."
        )
    asked = 0

    def loss(changed: Encoding) -> float:
        nonlocal asked
        arrays = measure(stream, windows, score(changed), TOKEN_BUDGET[device.type], at_once=at_once(device))
        asked += 1
        bar.update(asked)
        return float(arrays.nats.sum() / arrays.count.sum())

    start, factor = trained_length(run.config), described.get("factor", "auto")
    try:
        with progress(SEARCH_LOSSES, f"{run.name} search for {described['name']} at {length}") as bar:
            found = extension.search(encoding, start, length, factor, loss)
    except ValueError as error:  # sizes that it cannot work with
        name = label(run.config.encoding)
        raise UserError(f"The extension '{described['name']}' cannot extend {name}: {error}.") from error
    what = _what(run, described, length)
    file = _file(run, what, described["name"])
    file.parent.mkdir(exist_ok=True)
    files.write_json(file, {"what": what, "found": found})
    return found
