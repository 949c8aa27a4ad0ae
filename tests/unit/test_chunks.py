"""Chunks are the same however the stream was cut, and so are their digests."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.clickhouse.chunks import chunks, digest, weights

ROWS = st.lists(
    st.tuples(st.integers(-5, 5), st.none() | st.text(max_size=3), st.booleans()), max_size=60
)


def batches(rows, size):
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.bool_())])
    table = pa.table(
        [list(column) for column in zip(*rows, strict=True)] or [[], [], []], schema=schema
    )
    return table.to_batches(max_chunksize=size)


@given(ROWS, st.integers(1, 20), st.integers(1, 20), st.integers(1, 20))
def test_cutting_elsewhere_gives_the_same_chunks(rows, one, other, length):
    first = list(chunks(batches(rows, one), length))
    second = list(chunks(batches(rows, other), length))
    assert [c.num_rows for c in first] == [c.num_rows for c in second]
    assert [digest(c) for c in first] == [digest(c) for c in second]
    assert all(c.num_rows == length for c in first[:-1])
    assert sum(c.num_rows for c in first) == len(rows)


@given(ROWS, st.integers(1, 20), st.integers(1, 20), st.integers(1, 60))
def test_chunks_of_a_size_are_the_same_however_the_stream_was_cut(rows, one, other, size):
    first = list(chunks(batches(rows, one), 7, size))
    second = list(chunks(batches(rows, other), 7, size))
    assert [digest(c) for c in first] == [digest(c) for c in second]
    assert sum(c.num_rows for c in first) == len(rows)
    sizes = [weight(chunk) for chunk in first]
    assert all(w <= size or c.num_rows == 1 for w, c in zip(sizes, first, strict=True))
    # None ends before it has to.
    for chunk, w, following in zip(first, sizes, first[1:], strict=False):
        assert chunk.num_rows == 7 or w + weight(following.slice(0, 1)) > size


def weight(chunk):
    return sum(int(weights(batch).sum()) for batch in chunk.to_batches())


NESTED = {
    "text": (pa.string(), ["a", None, "\u00e9\u00e9"], [1, 0, 4]),
    "large": (pa.large_binary(), [b"a", None, b"aaa"], [1, 0, 3]),
    "flag": (pa.bool_(), [True, None, False], [1, 1, 1]),
    "number": (pa.decimal128(20, 2), [None, None, None], [16, 16, 16]),
    "list": (pa.list_(pa.string()), [["a", "bb"], None, []], [3, 0, 0]),
    "floats": (pa.list_(pa.float32()), [[1.0, 2.0], None, [3.0]], [8, 0, 4]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("kk", 1)], [], None], [6, 0, 0]),
    "struct": (pa.struct([("b", pa.string())]), [{"b": "zz"}, None, {"b": None}], [2, 0, 0]),
}


@pytest.mark.parametrize("name", sorted(NESTED))
def test_a_rows_weight_is_that_of_its_values_in_whatever_batch(name):
    type_, values, expected = NESTED[name]
    batch = pa.record_batch({"c": pa.array(values, type_)})
    assert weights(batch).tolist() == expected
    for at in range(3):
        assert weights(batch.slice(at, 1)).tolist() == expected[at : at + 1]
    assert weights(batch.slice(0, 0)).tolist() == []


@given(ROWS.filter(bool), st.data())
def test_another_row_is_another_digest(rows, data):
    at = data.draw(st.integers(0, len(rows) - 1))
    changed = [*rows[:at], (rows[at][0] + 1, *rows[at][1:]), *rows[at + 1 :]]
    (one,), (other,) = chunks(batches(rows, 99)), chunks(batches(changed, 99))
    assert digest(one) != digest(other)
