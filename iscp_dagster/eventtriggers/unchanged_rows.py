"""Drops the updates that leave a trigger's rows in their state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.write.tenant_split import get_row_tenants
from iscp_dagster.events.hysteresis import Hysteresis
from iscp_dagster.model.declared import images
from iscp_dagster.model.declared.schema import VERSION


def drop_noop_updates(rows: pa.Table, tenant: str | None, hysteresis: Hysteresis) -> pa.Table:
    """The rows without updates that leave their row in its state.

    A row that matches is active, and one that meets only `unmatch` is not, so an update between
    two such images changes nothing. Its images are dropped where they follow each other, as a scan
    returns them; any other row stays.
    """
    if rows.num_rows < 2:  # noqa: PLR2004 - the images of an update
        return rows
    change, image = (_to_int_array(rows, name) for name in (images.CHANGE, images.IMAGE))
    updates = change == images.ChangeKind.UPDATE
    pairs = updates[:-1] & updates[1:] & (image[:-1] == images.BEFORE) & (image[1:] == images.AFTER)
    for name in (VERSION, images.ORDINAL):
        values = _to_int_array(rows, name)
        pairs &= values[:-1] == values[1:]
    if tenant is not None:
        row_tenants = get_row_tenants(rows, tenant).combine_chunks()
        same_tenant = pc.fill_null(pc.equal(row_tenants[:-1], row_tenants[1:]), fill_value=False)
        pairs &= same_tenant.to_numpy(zero_copy_only=False)
    states = _compute_states(rows, hysteresis)
    noop = pairs & (states[:-1] == states[1:])
    mask = np.ones(rows.num_rows, dtype=bool)
    mask[:-1] &= ~noop
    mask[1:] &= ~noop
    return rows.filter(pa.array(mask))


def _compute_states(rows: pa.Table, hysteresis: Hysteresis) -> Any:
    """An image's state: it matches, it is not active, or it stays as it was."""
    match = _to_bool_array(rows, images.MATCH)
    return match * 2 + (
        _to_bool_array(rows, images.UNMATCH) & ~match if hysteresis.has_unmatch else 0
    )


def _to_int_array(rows: pa.Table, name: str) -> Any:
    return rows[name].cast(pa.int64()).to_numpy()


def _to_bool_array(rows: pa.Table, name: str) -> Any:
    return pc.fill_null(rows[name], fill_value=False).to_numpy().astype(bool)
