"""Chunks are the same however the stream was cut, and so are their digests."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.clickhouse.chunks import chunks, digest

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


@given(ROWS.filter(bool), st.data())
def test_another_row_is_another_digest(rows, data):
    at = data.draw(st.integers(0, len(rows) - 1))
    changed = [*rows[:at], (rows[at][0] + 1, *rows[at][1:]), *rows[at + 1 :]]
    (one,), (other,) = chunks(batches(rows, 99)), chunks(batches(changed, 99))
    assert digest(one) != digest(other)
