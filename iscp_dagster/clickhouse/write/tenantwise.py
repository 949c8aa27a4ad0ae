"""Splits rows by tenant, so that one tenant's fault does not stop the others.

Runs in Spark's executors too: it imports neither dagster nor pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.portions import halves, in_halves

T = TypeVar("T")


@dataclass(frozen=True)
class TenantRows:
    """One tenant's rows; `rows` is a slice."""

    tenant: str
    rows: pa.Table


def named(rows: pa.Table, column: str) -> pa.ChunkedArray:
    """Return each row's tenant, as partitions name it."""
    return pc.cast(rows[column], pa.string())


def among(rows: pa.Table, column: str, tenants: Collection[str]) -> pa.Table:
    """Return the rows of these tenants."""
    wanted = pa.array(sorted(tenants), pa.string())
    return rows.filter(pc.is_in(named(rows, column), value_set=wanted))


def without(rows: pa.Table, column: str, tenants: Collection[str]) -> pa.Table:
    """Return the rows of all other tenants."""
    if not tenants:
        return rows
    left_out = pa.array(sorted(tenants), pa.string())
    return rows.filter(pc.invert(pc.is_in(named(rows, column), value_set=left_out)))


def parted(rows: pa.Table, names: pa.ChunkedArray) -> list[TenantRows]:
    """Split the rows by tenant, keeping their order; `names` has every row's tenant."""
    names = names.combine_chunks()
    order = pc.sort_indices(names)
    ordered, names = rows.take(order), names.take(order)
    parts, start = [], 0
    runs = pc.run_end_encode(names)
    for tenant, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        parts.append(TenantRows(tenant, ordered.slice(start, end - start)))
        start = end
    return parts


def halved(
    rows: pa.Table,
    column: str,
    act: Callable[[pa.Table], T],
    faults: type[IscpError] | tuple[type[IscpError], ...],
    alone: Callable[[pa.Table], T] | None = None,
) -> tuple[list[T], dict[str, IscpError]]:
    """Act on the rows; if that raises one of `faults`, act on ever fewer tenants' rows.

    Returns the results of the calls that succeeded, and the error of each other tenant. `alone`, if
    given, acts on a single tenant's rows. Raises other errors.
    """
    try:
        return [act(rows)], {}
    except faults:
        if not rows.num_rows or rows[column].null_count:
            raise

    def attempt(parts: Sequence[TenantRows]) -> tuple[list[T], IscpError | None] | None:
        last = alone if len(parts) == 1 and alone else act
        try:
            return [last(pa.concat_tables([each.rows for each in parts]))], None
        except faults as error:
            return ([], error) if len(parts) == 1 else None

    done: list[T] = []
    wrong: dict[str, IscpError] = {}
    for half in halves(parted(rows, named(rows, column))):
        for parts, (found, error) in in_halves(half, attempt):
            done += found
            if error is not None:
                wrong[parts[0].tenant] = error
    return done, wrong
