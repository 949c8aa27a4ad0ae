"""A parsed statement, as far as the server treats statements differently."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verb(Enum):
    """SELECT streams its result, INSERT_ROWS streams its rows, KILL names queries by their id."""

    SELECT = "select"
    INSERT_ROWS = "insert rows"
    KILL = "kill"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement, parsed only as far as the server needs.

    `text` holds no final semicolon. Its tail from `cut` on is the FORMAT clause (or VALUES),
    empty when there is none. `format` is the format that the text names. For INSERT_ROWS
    `data_start` is the offset of the first byte of rows in the request's text,
    `input_call` the place of `input(` in `INSERT ... SELECT ... FROM input(...)`, and
    `settings_at` the offset of its SETTINGS. `sets` is true for SET, which changes a session.
    """

    verb: Verb
    text: bytes
    cut: int
    format: str | None = None
    data_start: int = 0
    reads_only: bool = False
    sets: bool = False
    input_call: tuple[int, int] | None = None
    settings_at: int | None = None
