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
from iscp_dagster.model.portions import bisect_on_failure, split_into_halves

T = TypeVar("T")


@dataclass(frozen=True)
class TenantRows:
    """One tenant's rows; `rows` is a slice."""

    tenant: str
    rows: pa.Table


def get_row_tenants(rows: pa.Table, column: str) -> pa.ChunkedArray:
    """Return each row's tenant, as partitions name it."""
    return pc.cast(rows[column], pa.string())


def filter_tenants(rows: pa.Table, column: str, tenants: Collection[str]) -> pa.Table:
    """Return the rows of these tenants."""
    names = pa.array(sorted(tenants), pa.string())
    return rows.filter(pc.is_in(get_row_tenants(rows, column), value_set=names))


def exclude_tenants(rows: pa.Table, column: str, tenants: Collection[str]) -> pa.Table:
    """Return the rows of all other tenants."""
    if not tenants:
        return rows
    names = pa.array(sorted(tenants), pa.string())
    return rows.filter(pc.invert(pc.is_in(get_row_tenants(rows, column), value_set=names)))


def split_by_tenant(rows: pa.Table, names: pa.ChunkedArray) -> list[TenantRows]:
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


def bisect_tenants(
    rows: pa.Table,
    column: str,
    act: Callable[[pa.Table], T],
    faults: type[IscpError] | tuple[type[IscpError], ...],
    act_alone: Callable[[pa.Table], T] | None = None,
) -> tuple[list[T], dict[str, IscpError]]:
    """Act on the rows; if that raises one of `faults`, act on ever fewer tenants' rows.

    Returns the results of the calls that succeeded, and the error of each other tenant.
    `act_alone`, if given, acts on a single tenant's rows. Raises other errors.
    """
    try:
        return [act(rows)], {}
    except faults:
        if not rows.num_rows or rows[column].null_count:
            raise

    def attempt(parts: Sequence[TenantRows]) -> tuple[list[T], IscpError | None] | None:
        action = act_alone if len(parts) == 1 and act_alone else act
        try:
            return [action(pa.concat_tables([part.rows for part in parts]))], None
        except faults as error:
            return ([], error) if len(parts) == 1 else None

    results: list[T] = []
    errors: dict[str, IscpError] = {}
    for half in split_into_halves(split_by_tenant(rows, get_row_tenants(rows, column))):
        for parts, (part_results, error) in bisect_on_failure(half, attempt):
            results += part_results
            if error is not None:
                errors[parts[0].tenant] = error
    return results, errors
