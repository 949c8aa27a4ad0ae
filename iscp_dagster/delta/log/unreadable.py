"""What a file system or an object store raises, in this project's terms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from iscp_dagster.model.errors import IscpError, SourceError, UnavailableError

COLOUR = re.compile(r"\x1b\[\d*m")
ATTEMPT = re.compile(r"Error performing |[\d.]+\w*,|[\d.]+\w*s\b")
"""Begins a line that says which request was made how often: another text each time."""
STORE_FAILED = re.compile(r"Generic \w+ error")
"""How object stores begin what they say, also inside deltalake's own errors."""
QUERY = re.compile(r"\?.*")
LONGEST = 300
PANICS = "pyo3_runtime"
"""The module of what Rust raises where it gives up, which is no Exception."""


@contextmanager
def asking(location: str) -> Iterator[None]:
    """Around what reads files of `location`; a missing file passes as it is.

    Raises UnavailableError for what cannot be read now, SourceError for what never can.
    """
    from deltalake.exceptions import DeltaError

    try:
        with calm():
            yield
    except (IscpError, FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, DeltaError, ValueError) as error:
        raise unreadable(location, error) from error


@contextmanager
def calm() -> Iterator[None]:
    """Around what may call deltalake: its panics become a ValueError."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != PANICS:
            raise
        raise ValueError(f"the reader gave up ({error})") from error


def unreadable(location: str, error: Exception) -> IscpError:
    """The error in this tree; the same for the same cause, so that it is told once."""
    place, said = QUERY.sub("", location), reason(error)
    if isinstance(error, OSError) or STORE_FAILED.search(str(error)):
        return UnavailableError(
            f"{place} cannot be read now: {said}. It is tried again by itself; see that its store "
            "answers and lets this process read, and that the path is right."
        )
    return SourceError(f"{place} cannot be read: {said}. Correct the path of the source table.")


def reason(error: Exception) -> str:
    """What it says, on one line, without the requests that were made."""
    text = COLOUR.sub("", str(error)).partition("\n   0:")[0]
    text = text.removeprefix("Kernel error -> ")
    parts = [" ".join(part.split()).strip(" .") for part in text.split("\u21b3")]
    told = [part for part in parts if part and not ATTEMPT.match(part)]
    return ": ".join(dict.fromkeys(told))[:LONGEST] or type(error).__name__
