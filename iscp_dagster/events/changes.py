"""What became of a row in one commit, made of the image rows that a scan hands on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeAlias

from iscp_dagster.events.keys import event_key
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.declared import images
from iscp_dagster.model.declared.schema import DELETED, TIMESTAMP, VERSION
from iscp_dagster.model.errors import IscpError

SYSTEM = frozenset({*images.IMAGE_COLUMNS, *images.CONDITION_COLUMNS, VERSION, TIMESTAMP, DELETED})
"""The columns of an image row that are no column of its view."""

Row: TypeAlias = Mapping[str, Any]


class HalfChangeError(IscpError):
    """A scan handed on one image of an update without the other; the range is read again."""

    code = 1_530


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Whether one image meets a trigger's conditions; NULL counts as false."""

    match: bool = False
    unmatch: bool = False


NEITHER = Truth()


@dataclass(frozen=True, kw_only=True)
class Change:
    """What one commit did to one row of a view, netted.

    `tenant` is None for a table without a tenant column; `key` is the row's `event_key`. `before`
    and `after` are the view's columns, None where the row was not in the view. `fields` are the
    columns that an UPDATE changed. `was` and `becomes` say what a trigger's conditions make of the
    images; NEITHER where no trigger asks.
    """

    tenant: str | None
    key: str
    operation: images.ChangeKind
    before: Row | None
    after: Row | None
    fields: tuple[str, ...] = ()
    was: Truth = NEITHER
    becomes: Truth = NEITHER

    @property
    def row(self) -> Row:
        """The row after the change; if it left the view, as it was before."""
        return (self.before if self.after is None else self.after) or {}


Stamped: TypeAlias = tuple[Change, SourceTimestamp]
"""A change with its source timestamp beside it."""


def changes_of(
    rows: Iterable[Row], *, keys: Sequence[str], tenant: str | None
) -> Iterator[Stamped]:
    """Pair image rows to changes, each as soon as it is whole; order is as the rows came.

    `keys` and `tenant` are the columns' names. The images of an update may come apart from each
    other and in either order. BEGIN rows are no changes. Raises HalfChangeError at the end if one
    image never came, and at once if one came twice.
    """
    halves: dict[Hashable, Row] = {}
    for row in rows:
        if row[images.CHANGE] != images.ChangeKind.UPDATE:
            if row[images.CHANGE] != images.ChangeKind.BEGIN:
                yield _single(row, keys, tenant)
            continue
        place = (row[tenant] if tenant else None, row[VERSION], row[images.ORDINAL])
        other = halves.pop(place, None)
        if other is None:
            halves[place] = row
        elif other[images.IMAGE] == row[images.IMAGE]:
            raise _half(row, keys, tenant)
        else:
            yield _update(other, row, keys, tenant)
    if halves:
        raise _half(next(iter(halves.values())), keys, tenant)


def in_order(changes: Iterable[Stamped]) -> list[Stamped]:
    """The changes by commit and place in it; those of different tenants stay as they came."""
    return sorted(changes, key=lambda each: each[1])


def _single(row: Row, keys: Sequence[str], tenant: str | None) -> Stamped:
    """A change of one image: which one it is follows from the operation."""
    gone = row[images.CHANGE] == images.ChangeKind.DELETE
    before, after = (row, None) if gone else (None, row)
    return _change(before, after, row, keys, tenant), _timestamp(row)


def _update(one: Row, other: Row, keys: Sequence[str], tenant: str | None) -> Stamped:
    before, after = (one, other) if one[images.IMAGE] == images.BEFORE else (other, one)
    return _change(before, after, after, keys, tenant), _timestamp(after)


def _change(
    before: Row | None, after: Row | None, row: Row, keys: Sequence[str], tenant: str | None
) -> Change:
    owner = None if tenant is None else str(row[tenant])
    return Change(
        tenant=owner,
        key=event_key(owner, [row[name] for name in keys]),
        operation=images.ChangeKind(row[images.CHANGE]),
        before=_columns(before),
        after=_columns(after),
        fields=tuple(row[images.FIELDS] or ()),
        was=_truth(before),
        becomes=_truth(after),
    )


def _columns(row: Row | None) -> Row | None:
    if row is None:
        return None
    return MappingProxyType({name: row[name] for name in row if name not in SYSTEM})


def _truth(row: Row | None) -> Truth:
    if row is None or images.MATCH not in row:
        return NEITHER
    return Truth(match=row[images.MATCH] is True, unmatch=row.get(images.UNMATCH) is True)


def _timestamp(row: Row) -> SourceTimestamp:
    at, version, ordinal = row[TIMESTAMP], int(row[VERSION]), int(row[images.ORDINAL])
    if isinstance(at, datetime):
        return SourceTimestamp.of(at, version=version, ordinal=ordinal)
    return SourceTimestamp.of_micros(int(at), version=version, ordinal=ordinal)


def _half(row: Row, keys: Sequence[str], tenant: str | None) -> HalfChangeError:
    change, timestamp = _single(row, keys, tenant)
    lacking = "before" if row[images.IMAGE] == images.AFTER else "after"
    return HalfChangeError(
        f"The image {lacking} the update of {change.key!r} in commit {timestamp.version} did not "
        "come; the range is read again."
    )
