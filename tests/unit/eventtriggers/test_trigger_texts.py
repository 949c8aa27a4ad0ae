"""Rows of a snapshot whose texts are not UTF-8, and rows without a key: each has one clear end."""

from __future__ import annotations

import pyarrow as pa
import pytest

from iscp_dagster.events.hysteresis import Condition
from iscp_dagster.eventtriggers.images import stamped
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
    return stamped(some, None, keys, Condition(unmatch=True), name="shop.trades/large")


def changed(some):
    """The rows as an INSERT, which is handed on."""
    return some.set_column(some.column_names.index("_change"), "_change", pa.array([1]))


def test_a_text_that_is_no_utf_8_reads_as_in_the_change_feed():
    ((change, _),) = told(changed(rows(id=pa.array([7]), note=texts(BYTES))), "id")
    assert change.row == {"id": 7, "note": "a\ufffdb"}


def test_one_within_an_array_says_which_trigger_cannot_take_it():
    nested = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), texts(BYTES))
    with pytest.raises(SchemaError, match=r"^shop.trades/large: a text within an array"):
        told(changed(rows(id=pa.array([7]), notes=nested)), "id")


def test_a_key_is_refused_that_is_no_utf_8_or_null():
    with pytest.raises(KeyColumnError, match=r"^shop.trades/large: key column 'id' has a text"):
        told(changed(rows(id=texts(BYTES))), "id")
    with pytest.raises(KeyColumnError, match=r"^shop.trades/large: key column 'id' is null in row"):
        told(changed(rows(id=pa.array([None], pa.int64()))), "id")
