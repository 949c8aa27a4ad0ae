"""Keys that are equal in Spark are written alike, so that they are one key in ClickHouse."""

from math import inf, nan

import numpy as np
import pyarrow as pa
import pytest

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.tables.ddl import IndexShape
from iscp_dagster.clickhouse.types.wire import encode_column
from iscp_dagster.model.declared.schema import DeltaField, Primitive

OTHER_NAN = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]


def resolve_types(type_, **types):
    """Return the stored types of a key `k` and a value `v` of one type."""
    fields = [DeltaField(name=name, type=Primitive(type_)) for name in "kv"]
    source = SourceTable("shop.orders", key="k")
    return IndexShape(source=source, index=Mirror(types=types), fields=fields).stored_types


def encode(values, stored):
    return encode_column(pa.chunked_array([values]), stored).combine_chunks()


def list_bits(values):
    return [value.tobytes() for value in values.to_numpy()]


@pytest.mark.parametrize("type_", ["float", "double"])
def test_both_zeros_and_all_nans_are_one_key(type_):
    kind = pa.float32() if type_ == "float" else pa.float64()
    values = pa.array(np.array([0.0, -0.0, nan, OTHER_NAN, -1.0, inf]), pa.float64()).cast(kind)
    stored = resolve_types(type_)
    assert len(set(list_bits(encode(values, stored["k"])))) == len({0.0, nan, -1.0, inf})
    # A column that is no key keeps its bits.
    assert list_bits(encode(values, stored["v"])) == list_bits(values)


def test_both_zeros_are_one_key_as_text_too():
    stored = resolve_types("double", k="String", v="String")
    values = pa.array([0.0, -0.0, 1.5])
    assert encode(values, stored["k"]).to_pylist() == ["0", "0", "1.5"]
    assert encode(values, stored["v"]).to_pylist() == ["0", "-0", "1.5"]
