"""What one commit did to a row, paired from a scan's image rows."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeAlias

from iscp_dagster.events.keys import make_event_key
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.declared import images
from iscp_dagster.model.declared.schema import DELETED, TIMESTAMP, VERSION
from iscp_dagster.model.errors import IscpError

SYSTEM = frozenset({*images.IMAGE_COLUMNS, *images.CONDITION_COLUMNS, VERSION, TIMESTAMP, DELETED})
"""The columns of an image row that its view does not have."""

Row: TypeAlias = Mapping[str, Any]


class HalfChangeError(IscpError):
    """A scan returned one image of an update without the other; the range is read again."""

    code = 1_530


@dataclass(frozen=True, kw_only=True)
class ConditionResult:
    """Whether one image meets a trigger's conditions; NULL counts as false."""

    match: bool = False
    unmatch: bool = False


NEITHER = ConditionResult()


@dataclass(frozen=True, kw_only=True)
class RowChange:
    """What one commit did to one row of a view, netted.

    `tenant` is None for a table without a tenant column; `key` is the row's, see
    `make_event_key`. `before` and `after` are the view's columns, None where the row was not in the
    view. `fields` are the columns that an UPDATE changed. `result_before` and `result_after` say
    which of a trigger's conditions the images meet; NEITHER without a trigger.
    """

    tenant: str | None
    key: str
    operation: images.ChangeKind
    before: Row | None
    after: Row | None
    fields: tuple[str, ...] = ()
    result_before: ConditionResult = NEITHER
    result_after: ConditionResult = NEITHER

    @property
    def row(self) -> Row:
        """The row after the change; if it left the view, as it was before."""
        return (self.before if self.after is None else self.after) or {}


StampedChange: TypeAlias = tuple[RowChange, SourceTimestamp]
"""A change with its source timestamp beside it."""


def pair_images(
    rows: Iterable[Row], *, keys: Sequence[str], tenant: str | None
) -> Iterator[StampedChange]:
    """Pair image rows into changes, each as soon as it is complete, in the order of the rows.

    `keys` and `tenant` are the columns' names. The images of an update may come apart from each
    other and in either order. BEGIN rows are not changes. Raises HalfChangeError at the end if one
    image never came, and at once if one came twice.
    """
    halves: dict[Hashable, Row] = {}
    for row in rows:
        if row[images.CHANGE] != images.ChangeKind.UPDATE:
            if row[images.CHANGE] != images.ChangeKind.BEGIN:
                yield _make_single(row, keys, tenant)
            continue
        position = (row[tenant] if tenant else None, row[VERSION], row[images.ORDINAL])
        other = halves.pop(position, None)
        if other is None:
            halves[position] = row
        elif other[images.IMAGE] == row[images.IMAGE]:
            raise _make_half_error(row, keys, tenant)
        else:
            yield _make_update(other, row, keys, tenant)
    if halves:
        raise _make_half_error(next(iter(halves.values())), keys, tenant)


def sort_changes(changes: Iterable[StampedChange]) -> list[StampedChange]:
    """The changes by commit and place in it; where tenants have equal places, the order stays."""
    return sorted(changes, key=lambda stamped: stamped[1])


def _make_single(row: Row, keys: Sequence[str], tenant: str | None) -> StampedChange:
    """A change of one image; the operation says which one."""
    deleted = row[images.CHANGE] == images.ChangeKind.DELETE
    before, after = (row, None) if deleted else (None, row)
    return _make_change(before, after, row, keys, tenant), _get_timestamp(row)


def _make_update(first: Row, second: Row, keys: Sequence[str], tenant: str | None) -> StampedChange:
    before, after = (first, second) if first[images.IMAGE] == images.BEFORE else (second, first)
    return _make_change(before, after, after, keys, tenant), _get_timestamp(after)


def _make_change(
    before: Row | None, after: Row | None, row: Row, keys: Sequence[str], tenant: str | None
) -> RowChange:
    owner = None if tenant is None else str(row[tenant])
    return RowChange(
        tenant=owner,
        key=make_event_key(owner, [row[name] for name in keys]),
        operation=images.ChangeKind(row[images.CHANGE]),
        before=_get_view_columns(before),
        after=_get_view_columns(after),
        fields=tuple(row[images.FIELDS] or ()),
        result_before=_get_result(before),
        result_after=_get_result(after),
    )


def _get_view_columns(row: Row | None) -> Row | None:
    if row is None:
        return None
    return MappingProxyType({name: row[name] for name in row if name not in SYSTEM})


def _get_result(row: Row | None) -> ConditionResult:
    if row is None or images.MATCH not in row:
        return NEITHER
    return ConditionResult(match=row[images.MATCH] is True, unmatch=row.get(images.UNMATCH) is True)


def _get_timestamp(row: Row) -> SourceTimestamp:
    at, version, ordinal = row[TIMESTAMP], int(row[VERSION]), int(row[images.ORDINAL])
    if isinstance(at, datetime):
        return SourceTimestamp.from_datetime(at, version=version, ordinal=ordinal)
    return SourceTimestamp.from_micros(int(at), version=version, ordinal=ordinal)


def _make_half_error(row: Row, keys: Sequence[str], tenant: str | None) -> HalfChangeError:
    change, timestamp = _make_single(row, keys, tenant)
    missing = "before" if row[images.IMAGE] == images.AFTER else "after"
    return HalfChangeError(
        f"The image {missing} the update of {change.key!r} in commit {timestamp.version} did not "
        "come; the range is read again."
    )
