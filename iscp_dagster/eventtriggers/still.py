"""Changes that move no row of a trigger, which need not be held."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.write.tenantwise import named
from iscp_dagster.events.hysteresis import Condition
from iscp_dagster.model.declared import images
from iscp_dagster.model.declared.schema import VERSION


def moving(rows: pa.Table, tenant: str | None, condition: Condition) -> pa.Table:
    """The rows without updates that leave their row where it was.

    A row that matches is active, and one that meets `unmatch` alone is not, so that an update
    between two images alike moves nothing. Its images are dropped where they follow each other, as
    a scan hands them on; any other row stays.
    """
    if rows.num_rows < 2:  # noqa: PLR2004 - the images of an update
        return rows
    change, image = (_numbers(rows, name) for name in (images.CHANGE, images.IMAGE))
    updates = change == images.ChangeKind.UPDATE
    pairs = updates[:-1] & updates[1:] & (image[:-1] == images.BEFORE) & (image[1:] == images.AFTER)
    for name in (VERSION, images.ORDINAL):
        values = _numbers(rows, name)
        pairs &= values[:-1] == values[1:]
    if tenant is not None:
        owners = named(rows, tenant).combine_chunks()
        same = pc.fill_null(pc.equal(owners[:-1], owners[1:]), fill_value=False)
        pairs &= same.to_numpy(zero_copy_only=False)
    standing = _standing(rows, condition)
    still = pairs & (standing[:-1] == standing[1:])
    kept = np.ones(rows.num_rows, dtype=bool)
    kept[:-1] &= ~still
    kept[1:] &= ~still
    return rows.filter(pa.array(kept))


def _standing(rows: pa.Table, condition: Condition) -> Any:
    """Where an image stands: it matches, it is not active, or it stays as it was."""
    match = _flags(rows, images.MATCH)
    return match * 2 + (_flags(rows, images.UNMATCH) & ~match if condition.unmatch else 0)


def _numbers(rows: pa.Table, name: str) -> Any:
    return rows[name].cast(pa.int64()).to_numpy()


def _flags(rows: pa.Table, name: str) -> Any:
    return pc.fill_null(rows[name], fill_value=False).to_numpy().astype(bool)
