"""Values that an event cannot have, and rows without a key: each has one clear end."""

import pyarrow as pa
import pytest

from iscp_dagster.events.hysteresis import Hysteresis
from iscp_dagster.eventtriggers.images import build_changes
from iscp_dagster.model.errors import KeyColumnError, SchemaError

BYTES = pa.array([b"a\xffb"])


def texts(values):
    """Texts of any bytes, as Spark hands them over."""
    return pa.Array.from_buffers(pa.string(), len(values), values.buffers())


def rows(**columns):
    system = {"_change": 0, "_image": 1, "_ordinal": 0, "_version": 1, "_timestamp": 5}
    made = {name: pa.array([value]) for name, value in system.items()}
    return pa.table({**columns, **made, "_match": [True], "_unmatch": [False]})


def told(some, *keys):
    return build_changes(some, None, keys, Hysteresis(unmatch=True), name="shop.trades/large")


def changed(some):
    """The rows as an INSERT, which is handed on."""
    return some.set_column(some.column_names.index("_change"), "_change", pa.array([1]))


def test_a_text_that_is_no_utf_8_reads_as_in_the_change_feed():
    ((change, _),) = told(changed(rows(id=pa.array([7]), note=texts(BYTES))), "id")
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
def test_a_value_that_python_does_not_have_is_told_with_trigger_and_column(values):
    with pytest.raises(SchemaError, match=r"^shop.trades/large: column 'odd' has a value that"):
        told(changed(rows(id=pa.array([7]), odd=values)), "id")


def test_a_key_is_refused_that_is_no_utf_8_or_null():
    with pytest.raises(KeyColumnError, match=r"^shop.trades/large: key column 'id' has a text"):
        told(changed(rows(id=texts(BYTES))), "id")
    with pytest.raises(KeyColumnError, match=r"^shop.trades/large: key column 'id' is null in row"):
        told(changed(rows(id=pa.array([None], pa.int64()))), "id")
