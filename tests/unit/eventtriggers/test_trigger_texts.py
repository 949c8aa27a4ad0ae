"""Values that an event cannot have, and rows without a key, are refused."""

import pyarrow as pa
import pytest

from iscp_dagster.events.hysteresis import Hysteresis
from iscp_dagster.eventtriggers.images import build_changes
from iscp_dagster.model.errors import KeyColumnError, SchemaError
from support.errors import raises_naming

BYTES = pa.array([b"a\xffb"])


def texts(values):
    """Texts of any bytes, as Spark hands them over."""
    return pa.Array.from_buffers(pa.string(), len(values), values.buffers())


def read(*keys, **columns):
    """Return the changes of one row that was inserted."""
    system = {"_change": 1, "_image": 1, "_ordinal": 0, "_version": 1, "_timestamp": 5}
    arrays = {name: pa.array([value]) for name, value in system.items()}
    rows = pa.table({**columns, **arrays, "_match": [True], "_unmatch": [False]})
    return build_changes(rows, None, keys, Hysteresis(has_unmatch=True), name="shop.trades/large")


def test_a_text_that_is_not_utf_8_reads_as_in_the_change_feed():
    ((change, _),) = read("id", id=pa.array([7]), note=texts(BYTES))
    assert change.row == {"id": 7, "note": "a\ufffdb"}


@pytest.mark.parametrize(
    "values",
    [
        pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), texts(BYTES)),
        pa.array([10**18]).cast(pa.timestamp("us", tz="UTC")),
        pa.array([10**18]).cast(pa.timestamp("us")),
        pa.array([10**7], pa.int32()).cast(pa.date32()),
        pa.array([-(10**6)], pa.int32()).cast(pa.date32()),
    ],
)
def test_a_value_that_python_does_not_have_is_refused_with_trigger_and_column(values):
    with raises_naming(SchemaError, "shop.trades/large", "'odd'"):
        read("id", id=pa.array([7]), odd=values)


@pytest.mark.parametrize(
    ("key", "value"), [(texts(BYTES), "UTF-8"), (pa.array([None], pa.int64()), "null")]
)
def test_a_key_that_is_not_utf_8_or_is_null_is_refused(key, value):
    with raises_naming(KeyColumnError, "shop.trades/large", "'id'", value):
        read("id", id=key)
