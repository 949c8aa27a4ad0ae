"""Keys that Spark holds equal are written alike, so that ClickHouse knows them as one."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pyarrow as pa
import pytest

from iscp_dagster.clickhouse.types.stored import Stored, stored_column
from iscp_dagster.clickhouse.types.wire import sent
from iscp_dagster.model.declared.schema import Primitive

OTHER_NAN = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]


def written(values, stored):
    return sent(pa.chunked_array([values]), stored).combine_chunks()


def bits(values):
    return [each.tobytes() for each in values.to_numpy()]


@pytest.mark.parametrize("type_", ["float", "double"])
def test_both_zeros_and_all_nans_are_one_key(type_):
    kind = pa.float32() if type_ == "float" else pa.float64()
    values = pa.array(np.array([0.0, -0.0, nan, OTHER_NAN, -1.0, inf]), pa.float64()).cast(kind)
    stored = stored_column(Primitive(type_), None, nullable=False, at="k", key=True)
    found = written(values, Stored(source=stored.source, type=stored.type, key=True))
    assert len(set(bits(found))) == len({0.0, nan, -1.0, inf})
    # What names no row is kept to the bit.
    assert bits(written(values, stored)) == bits(values)


def test_as_text_too():
    stored = stored_column(Primitive("double"), "String", nullable=False, at="k", key=True)
    key = Stored(source=stored.source, type=stored.type, key=True)
    values = pa.array([0.0, -0.0, 1.5])
    assert written(values, key).to_pylist() == ["0", "0", "1.5"]
    assert written(values, stored).to_pylist() == ["0", "-0", "1.5"]
