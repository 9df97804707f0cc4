"""`posbench check`: a suite of properties that anyone can run on an encoding, shipped or their own."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from posbench.check.properties import PROPERTIES, DoesNotApply, Failed
from posbench.check.subject import Subject
from posbench.errors import UserError


@dataclass(frozen=True)
class Verdict:
    """What came of one property."""

    property: str
    outcome: Literal["passed", "failed", "n/a"]
    said: str
    """What was measured, the number that is too large, or why the property does not apply."""
    trace: str = ""
    """Where the encoding raised an error of its own."""


def check(subject: Subject) -> Iterator[Verdict]:
    """The verdict on each property, as it is reached. Raises UserError for an encoding that cannot be built."""
    subject.encoding()
    for name in PROPERTIES:
        yield judge(subject, name)


def judge(subject: Subject, name: str) -> Verdict:
    """The verdict on one property, at every draw of what it learns."""
    try:
        found = [PROPERTIES[name](drawn) for drawn in subject.draws]
        return Verdict(name, "passed", found[-1])
    except DoesNotApply as reason:
        return Verdict(name, "n/a", str(reason))
    except Failed as failure:
        return Verdict(name, "failed", str(failure))
    except UserError as error:  # as of a size that it does not take
        return Verdict(name, "failed", error.message)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return Verdict(name, "failed", said, traceback.format_exc())
