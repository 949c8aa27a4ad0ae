"""The opaque text that says how far a subscriber has been told, and from where to go on.

Tenants' watermarks move on their own, so a cursor holds a position for each tenant that the
subscriber sees. Beyond MOST_NAMED tenants it names only those that are not at the most common
position, and the newest registration: a tenant that is registered later was not known.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Any

from iscp_dagster.serve.live.errors import PositionExpiredError, PositionInvalidError
from iscp_dagster.serve.live.positions import START, Position, Positions

MOST_NAMED = 256
MOST_LENGTH = 4_000_000
"""Characters of a cursor that are read."""
_FORMAT = 1
_PACKED = 2
_SIGN = 4
_SHOWN = 40
_UNREADABLE = (
    *(ValueError, TypeError, LookupError, ArithmeticError, RecursionError),
    zlib.error,
)
"""What reading a text that nobody wrote may raise."""
_NUMBERS = range(-(2**63), 2**63)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Whose changes a cursor counts: the index `database.table/name`, and one life of it."""

    index: str
    table_id: str
    generation: int = 0

    @property
    def signs(self) -> tuple[bytes, bytes]:
        """Digests of the index, and of this life of it: another table, or another generation."""
        life = f"{self.index}\n{self.table_id}\n{self.generation}"
        return _digest(self.index.encode()), _digest(life.encode())


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """Positions by tenant; `others` is that of the tenants registered up to `newest` but not named.

    `row` is the key of the last row told of a snapshot as of these positions, which goes on after
    it; None: no snapshot is under way.
    """

    named: Positions
    others: Position | None = None
    newest: int = 0
    row: tuple[str, ...] | None = None

    def of(self, tenant: str, registration: int) -> Position:
        """The tenant's position; START for one that was not known."""
        if tenant in self.named:
            return self.named[tenant]
        if self.others is not None and registration <= self.newest:
            return self.others
        return START

    def at_row(self, row: tuple[str, ...]) -> Cursor:
        """The same cursor within a snapshot, after that row of it."""
        return replace(self, row=row)

    def moved(self, ahead: Positions) -> Cursor:
        """The cursor with other positions of the tenants that are `ahead`."""
        if not ahead:
            return self
        return replace(self, named=dict(self.named) | dict(ahead))


def cursor_of(positions: Positions, newest: int = 0) -> Cursor:
    """A cursor with these positions; `newest` is the newest registration among all tenants'."""
    if len(positions) <= MOST_NAMED:
        return Cursor(named=dict(positions))
    ((common, _),) = Counter(positions.values()).most_common(1)
    named = {tenant: at for tenant, at in positions.items() if at != common}
    return Cursor(named=named, others=common, newest=newest)


def written(cursor: Cursor, origin: Origin) -> str:
    """The cursor as text for a client."""
    said = json.dumps(_plain(cursor), ensure_ascii=False, separators=(",", ":")).encode()
    packed = zlib.compress(said, 1)
    kind, body = (_PACKED, packed) if len(packed) < len(said) else (_FORMAT, said)
    whole = bytes([kind]) + b"".join(origin.signs) + body
    return base64.urlsafe_b64encode(whole + _digest(whole)).decode().rstrip("=")


def read(text: str, origin: Origin) -> Cursor:
    """Read what `written` wrote.

    Raises PositionInvalidError for a text that is none, or that is another table's or view's, and
    PositionExpiredError for one of an earlier life of the index.
    """
    whole = _whole(text)
    kind, (index, life), body = whole[0], (whole[1:5], whole[5:9]), whole[9:]
    own_index, own_life = origin.signs
    if index != own_index:
        raise PositionInvalidError(
            f"The cursor {_shown(text)} is of another table or view than {origin.index}; use a "
            "cursor that this subscription gave."
        )
    if life != own_life:
        raise PositionExpiredError(
            f"The cursor {_shown(text)} is from before {origin.index} was built anew; subscribe "
            "with snapshot: true, without after:."
        )
    try:
        return _cursor(json.loads(_unpacked(body) if kind == _PACKED else body))
    except _UNREADABLE:
        raise _malformed(text) from None


def _whole(text: str) -> bytes:
    if len(text) > MOST_LENGTH:
        raise _malformed(text)
    try:
        whole = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise _malformed(text) from None
    whole, sign = whole[:-_SIGN], whole[-_SIGN:]
    if len(whole) < 1 + 2 * _SIGN or _digest(whole) != sign or whole[0] not in {_FORMAT, _PACKED}:
        raise _malformed(text)
    return whole


def _unpacked(body: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    said = unpacking.decompress(body, 2 * MOST_LENGTH)
    if not unpacking.eof:
        raise ValueError("too long, or cut off")
    return said


def _plain(cursor: Cursor) -> list[Any]:
    """As JSON: tenants grouped by position, then what is not always there."""
    grouped = defaultdict(list)
    for tenant, at in cursor.named.items():
        grouped[at].append(tenant)
    groups = [[*at, sorted(grouped[at])] for at in sorted(grouped)]
    row = None if cursor.row is None else list(cursor.row)
    if cursor.others is None:
        return [groups] if row is None else [groups, row]
    return [groups, row, *cursor.others, cursor.newest]


def _cursor(plain: list[Any]) -> Cursor:
    groups, row, *others = [*plain, None][:2] + plain[2:]
    named = {
        str(tenant): _position(version, ordinal)
        for version, ordinal, tenants in groups
        for tenant in tenants
    }
    common, newest = (_position(others[0], others[1]), int(others[2])) if others else (None, 0)
    key = None if row is None else tuple(map(str, row))
    return Cursor(named=named, others=common, newest=newest, row=key)


def _position(version: Any, ordinal: Any) -> Position:
    found = Position(int(version), int(ordinal))
    if found.version < START.version or not all(each in _NUMBERS for each in found):
        raise ValueError("no position")
    return found


def _digest(said: bytes) -> bytes:
    return hashlib.blake2b(said, digest_size=_SIGN).digest()


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _malformed(text: str) -> PositionInvalidError:
    return PositionInvalidError(
        f"after: {_shown(text)} is not a cursor that this server gave; leave it out, or subscribe "
        "with snapshot: true."
    )
