"""Errors of file systems and object stores, translated into this project's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from iscp_dagster.model.errors import IscpError, SourceError, UnavailableError, UnreadableError

COLOUR = re.compile(r"\x1b\[\d*m")
ATTEMPT = re.compile(r"Error performing |[\d.]+\w*,|[\d.]+\w*s\b")
"""Start of a line about requests and retries, whose text differs each time."""
STORE_FAILED = re.compile(r"Generic \w+ error")
"""The start of an object store's error, also within deltalake's own errors."""
STORE_DOWN = re.compile(r"HTTP error|status code[^0-9a-z]+5\d\d")
"""Found in an object store's error if no request was answered, or the store itself failed."""
QUERY = re.compile(r"\?.*")
LONGEST = 300
PANICS = "pyo3_runtime"
"""The module of the error that a Rust panic raises, which is not an Exception."""


@contextmanager
def wrap_store_errors(location: str) -> Iterator[None]:
    """Wrap reads of files of `location`; the error for a missing file passes unchanged.

    Raises UnavailableError for what cannot be read now, SourceError for what never can.
    """
    from deltalake.exceptions import DeltaError

    try:
        with catch_panics():
            yield
    except (IscpError, FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, DeltaError, ValueError) as error:
        raise translate_store_error(location, error) from error


@contextmanager
def catch_panics() -> Iterator[None]:
    """Wrap calls that may reach deltalake: turn its panics into a ValueError."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != PANICS:
            raise
        raise ValueError(f"the reader gave up ({error})") from error


def translate_store_error(location: str, error: Exception) -> IscpError:
    """The project's error, with the same text for the same cause, so that it is reported once."""
    place, cause = QUERY.sub("", location), summarize_error(error)
    if isinstance(error, OSError) or STORE_FAILED.search(str(error)):
        return UnavailableError(
            f"{place} cannot be read now: {cause}. It is retried automatically; check that its "
            "store answers and lets this process read, and that the path is correct."
        )
    return SourceError(f"{place} cannot be read: {cause}. Correct the path of the source table.")


def translate_data_error(location: str, error: Exception) -> IscpError:
    """The error for one data file: UnreadableError unless its whole store is down."""
    translated = translate_store_error(location, error)
    is_down = STORE_DOWN.search(COLOUR.sub("", str(error)))
    if is_down or not isinstance(translated, UnavailableError):
        return translated
    return UnreadableError(str(translated))


def summarize_error(error: Exception) -> str:
    """The error's text on one line, without the requests that were made."""
    text = COLOUR.sub("", str(error)).partition("\n   0:")[0]
    text = text.removeprefix("Kernel error -> ")
    parts = [" ".join(part.split()).strip(" .") for part in text.split("\u21b3")]
    messages = [part for part in parts if part and not ATTEMPT.match(part)]
    return ": ".join(dict.fromkeys(messages))[:LONGEST] or type(error).__name__
