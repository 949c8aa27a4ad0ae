"""Whether a column with rows in it can be altered to another type."""

from __future__ import annotations

import re
from collections.abc import Mapping

from iscp_dagster.clickhouse.types.typetext import ChType, TypeTextError, parsed

INTEGER = re.compile(r"(U?)Int(\d+)")
LINES = (("BFloat16", "Float32", "Float64"), ("Date", "Date32"))


def same_type(held: str, wanted: str) -> bool:
    """Whether the two texts name one type; the server may write a type differently."""
    return held == wanted or _known(held) == parsed(wanted)


def widens(held: str, wanted: str) -> bool:
    """Whether ClickHouse's type `wanted` holds every value of `held`, so that rows can stay."""
    before, after = _known(held), parsed(wanted)
    if before is None or (_nullable(before) and not _nullable(after)):
        return False
    return _wider(before.bare, after.bare)


def _wider(before: ChType, after: ChType) -> bool:
    if before == after or any(
        before.name in line and after.name in line[line.index(before.name) :] for line in LINES
    ):
        return True
    same_kind = before.name.rstrip("0123456789") == after.name.rstrip("0123456789")
    if same_kind and before.name.startswith("Enum"):
        smaller = after.name in {before.name, "Enum16"}
        return smaller and _members(before).items() <= _members(after).items()
    if before.name == after.name == "Decimal":
        return before.numbers[1] == after.numbers[1] and before.numbers[0] < after.numbers[0]
    return _more_bits(before.name, after.name)


def _more_bits(before: str, after: str) -> bool:
    narrow, wide = INTEGER.fullmatch(before), INTEGER.fullmatch(after)
    if not narrow or not wide:
        return False
    # An unsigned type fits a wider signed one, never the other way round.
    return int(narrow[2]) < int(wide[2]) and (bool(narrow[1]) or not wide[1])


def _members(enum: ChType) -> Mapping[str, int]:
    return dict(zip(enum.names, enum.numbers, strict=True))


def _nullable(type_: ChType) -> bool:
    inner = type_.parts[0] if type_.name == "LowCardinality" else type_
    return inner.name == "Nullable"


def _known(written: str) -> ChType | None:
    """Parse a type of the server's; None for one that no declaration can name."""
    try:
        return parsed(written)
    except TypeTextError:
        return None
