"""Finds the end of a string, a quoted name or a comment, in pieces of a bounded size.

Each look is one call in C over at most `PIECE` bytes, so no text blocks the other threads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from chdb_http.sql.pieces import PIECE

_QUOTED = {
    quote: re.compile(rb"[^%b\\]*(?:(?:\\.|%b%b)[^%b\\]*)*" % ((quote,) * 4), re.DOTALL)
    for quote in (b"'", b"`", b'"')
}
_DIGITS = re.compile(rb"[0-9A-Fa-f]*")
_EDGE = re.compile(rb"/\*|\*/")
_CLOSING = {b"\xe2\x80\x98": b"\xe2\x80\x99", b"\xe2\x80\x9c": b"\xe2\x80\x9d"}


@dataclass(kw_only=True)
class Open:
    """A token that has begun at `start` and is known to go on at least until `at`."""

    start: int
    at: int
    opener: bytes
    level: int = 1

    def look(self, text: bytes) -> bool:
        """Look one piece further; True when `at` is the token's end.

        If the text ends first, `at` is its size and the answer False.
        """
        if self.opener in _QUOTED:
            return self._quoted(text)
        if self.opener == b"/*":
            return self._block(text)
        if self.opener[-1:] == b"'":
            return self._digits(text)
        return self._until(text, _CLOSING.get(self.opener, self.opener))

    def _quoted(self, text: bytes) -> bool:
        found = _QUOTED[self.opener].match(text, self.at, self.at + PIECE)
        self.at = found.end() if found else self.at
        following = text[self.at : self.at + 2]
        if following == self.opener * 2 or following[:1] == b"\\":
            self.at = min(self.at + 2, len(text))
            return False
        if following[:1] == self.opener:
            self.at += 1
            return True
        return False

    def _block(self, text: bytes) -> bool:
        """Look for a comment's end; comments nest."""
        edge = _EDGE.search(text, self.at, self.at + PIECE)
        if edge is None:
            last = self.at + PIECE >= len(text)
            self.at = len(text) if last else self.at + PIECE - 1
            return False
        self.at = edge.end()
        self.level += 1 if edge[0] == b"/*" else -1
        return self.level == 0

    def _digits(self, text: bytes) -> bool:
        """Look for the end of x'41' or b'01': digits, no escapes; the engine rejects all else."""
        found = _DIGITS.match(text, self.at, self.at + PIECE)
        self.at = found.end() if found else self.at
        if text[self.at : self.at + 1] == b"'":
            self.at += 1
            return True
        goes_on = found is not None and found.end() - found.start() == PIECE
        self.at = self.at if goes_on else len(text)
        return False

    def _until(self, text: bytes, closing: bytes) -> bool:
        place = text.find(closing, self.at, self.at + PIECE + len(closing) - 1)
        if place < 0:
            self.at = min(self.at + PIECE, len(text))
            return False
        self.at = place + len(closing)
        return True
