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
class OpenToken:
    """A token that begins at `start` and continues at least to `at`."""

    start: int
    at: int
    opener: bytes
    level: int = 1

    def look(self, text: bytes) -> bool:
        """Look one piece further; True when `at` is the token's end.

        If the text ends first, `at` is its size and the answer False.
        """
        if self.opener in _QUOTED:
            return self._find_quote_end(text)
        if self.opener == b"/*":
            return self._find_comment_end(text)
        if self.opener[-1:] == b"'":
            return self._find_digits_end(text)
        return self._find_closing(text, _CLOSING.get(self.opener, self.opener))

    def _find_quote_end(self, text: bytes) -> bool:
        match = _QUOTED[self.opener].match(text, self.at, self.at + PIECE)
        self.at = match.end() if match else self.at
        following = text[self.at : self.at + 2]
        if following == self.opener * 2 or following[:1] == b"\\":
            self.at = min(self.at + 2, len(text))
            return False
        if following[:1] == self.opener:
            self.at += 1
            return True
        return False

    def _find_comment_end(self, text: bytes) -> bool:
        """Look for a comment's end; comments nest."""
        edge = _EDGE.search(text, self.at, self.at + PIECE)
        if edge is None:
            at_end = self.at + PIECE >= len(text)
            self.at = len(text) if at_end else self.at + PIECE - 1
            return False
        self.at = edge.end()
        self.level += 1 if edge[0] == b"/*" else -1
        return self.level == 0

    def _find_digits_end(self, text: bytes) -> bool:
        """Look for the end of x'41' or b'01': digits, no escapes; the engine rejects all else."""
        match = _DIGITS.match(text, self.at, self.at + PIECE)
        self.at = match.end() if match else self.at
        if text[self.at : self.at + 1] == b"'":
            self.at += 1
            return True
        continues = match is not None and match.end() - match.start() == PIECE
        self.at = self.at if continues else len(text)
        return False

    def _find_closing(self, text: bytes, closing: bytes) -> bool:
        place = text.find(closing, self.at, self.at + PIECE + len(closing) - 1)
        if place < 0:
            self.at = min(self.at + PIECE, len(text))
            return False
        self.at = place + len(closing)
        return True
