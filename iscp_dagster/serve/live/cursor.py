"""The opaque text that says how far a subscriber has come, and where it continues.

Tenants' watermarks move independently, so a cursor holds a position for each tenant that the
subscriber sees. Beyond MOST_NAMED tenants it names only the ones that are not at the most common
position, and the newest registration: tenants that are registered later are new.
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
from iscp_dagster.serve.live.positions import START, ChangePosition, Positions

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
"""What decoding an arbitrary text may raise."""
_NUMBERS = range(-(2**63), 2**63)


@dataclass(frozen=True, kw_only=True)
class CursorOrigin:
    """What a cursor's positions refer to: `database.table/name`, its table and its generation."""

    index: str
    table_id: str
    generation: int = 0

    @property
    def signs(self) -> tuple[bytes, bytes]:
        """Digests of the index, and of its table and generation."""
        life = f"{self.index}\n{self.table_id}\n{self.generation}"
        return _compute_digest(self.index.encode()), _compute_digest(life.encode())


@dataclass(frozen=True, kw_only=True)
class SubscriptionCursor:
    """Positions by tenant.

    `common_position` is for unnamed tenants registered up to `newest_registration`.

    `row` is the key of the last row sent of a snapshot as of these positions, which continues after
    it; None: no snapshot is under way.
    """

    positions: Positions
    common_position: ChangePosition | None = None
    newest_registration: int = 0
    row: tuple[str, ...] | None = None

    def get_position(self, tenant: str, registration: int) -> ChangePosition:
        """The tenant's position; START for a new one."""
        if tenant in self.positions:
            return self.positions[tenant]
        if self.common_position is not None and registration <= self.newest_registration:
            return self.common_position
        return START

    def move_to_row(self, row: tuple[str, ...]) -> SubscriptionCursor:
        """The same cursor within a snapshot, after that row of it."""
        return replace(self, row=row)

    def move_positions(self, ahead: Positions) -> SubscriptionCursor:
        """The cursor with other positions of the tenants that are `ahead`."""
        if not ahead:
            return self
        return replace(self, positions=dict(self.positions) | dict(ahead))


def build_cursor(positions: Positions, newest_registration: int = 0) -> SubscriptionCursor:
    """A cursor with these positions; `newest_registration` is the newest of all tenants'."""
    if len(positions) <= MOST_NAMED:
        return SubscriptionCursor(positions=dict(positions))
    ((common, _),) = Counter(positions.values()).most_common(1)
    named_positions = {tenant: at for tenant, at in positions.items() if at != common}
    return SubscriptionCursor(
        positions=named_positions, common_position=common, newest_registration=newest_registration
    )


def encode_cursor(cursor: SubscriptionCursor, origin: CursorOrigin) -> str:
    """The cursor as text for a client."""
    content = json.dumps(_to_json(cursor), ensure_ascii=False, separators=(",", ":")).encode()
    packed = zlib.compress(content, 1)
    kind, body = (_PACKED, packed) if len(packed) < len(content) else (_FORMAT, content)
    data = bytes([kind]) + b"".join(origin.signs) + body
    return base64.urlsafe_b64encode(data + _compute_digest(data)).decode().rstrip("=")


def decode_cursor(text: str, origin: CursorOrigin) -> SubscriptionCursor:
    """Read what `encode_cursor` wrote.

    Raises PositionInvalidError for an invalid text, or a cursor of another table or view, and
    PositionExpiredError for one from before the index was rebuilt.
    """
    data = _decode_bytes(text)
    kind, (index, life), body = data[0], (data[1:5], data[5:9]), data[9:]
    own_index, own_life = origin.signs
    if index != own_index:
        raise PositionInvalidError(
            f"The cursor {_quote_text(text)} belongs to another table or view, not to "
            f"{origin.index}; use a cursor of this subscription."
        )
    if life != own_life:
        raise PositionExpiredError(
            f"The cursor {_quote_text(text)} is from before {origin.index} was rebuilt; "
            "subscribe with snapshot: true, without after:."
        )
    try:
        return _from_json(json.loads(_unpack_body(body) if kind == _PACKED else body))
    except _UNREADABLE:
        raise _make_invalid_error(text) from None


def _decode_bytes(text: str) -> bytes:
    if len(text) > MOST_LENGTH:
        raise _make_invalid_error(text)
    try:
        data = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise _make_invalid_error(text) from None
    data, sign = data[:-_SIGN], data[-_SIGN:]
    if (
        len(data) < 1 + 2 * _SIGN
        or _compute_digest(data) != sign
        or data[0] not in {_FORMAT, _PACKED}
    ):
        raise _make_invalid_error(text)
    return data


def _unpack_body(body: bytes) -> bytes:
    decompressor = zlib.decompressobj()
    content = decompressor.decompress(body, 2 * MOST_LENGTH)
    if not decompressor.eof:
        raise ValueError("too long, or cut off")
    return content


def _to_json(cursor: SubscriptionCursor) -> list[Any]:
    """As JSON: tenants grouped by position, then the optional parts."""
    tenants_by_position = defaultdict(list)
    for tenant, at in cursor.positions.items():
        tenants_by_position[at].append(tenant)
    groups = [[*at, sorted(tenants_by_position[at])] for at in sorted(tenants_by_position)]
    row = None if cursor.row is None else list(cursor.row)
    if cursor.common_position is None:
        return [groups] if row is None else [groups, row]
    return [groups, row, *cursor.common_position, cursor.newest_registration]


def _from_json(parsed: list[Any]) -> SubscriptionCursor:
    groups, row, *others = [*parsed, None][:2] + parsed[2:]
    named_positions = {
        str(tenant): _parse_position(version, ordinal)
        for version, ordinal, tenants in groups
        for tenant in tenants
    }
    common, newest = (
        (_parse_position(others[0], others[1]), int(others[2])) if others else (None, 0)
    )
    key = None if row is None else tuple(map(str, row))
    return SubscriptionCursor(
        positions=named_positions, common_position=common, newest_registration=newest, row=key
    )


def _parse_position(version: Any, ordinal: Any) -> ChangePosition:
    position = ChangePosition(int(version), int(ordinal))
    if position.version < START.version or not all(number in _NUMBERS for number in position):
        raise ValueError("not a position")
    return position


def _compute_digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SIGN).digest()


def _quote_text(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _make_invalid_error(text: str) -> PositionInvalidError:
    return PositionInvalidError(
        f"after: {_quote_text(text)} is not a cursor that this server gave; leave it out, or "
        "subscribe with snapshot: true."
    )
