"""Chunks and their digests do not depend on how the stream was cut."""

from itertools import accumulate

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.clickhouse.write.chunks import (
    compute_row_sizes,
    cut_chunks,
    cut_pieces,
    hash_rows,
)

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
    first = list(cut_chunks(batches(rows, one), length))
    second = list(cut_chunks(batches(rows, other), length))
    assert [c.num_rows for c in first] == [c.num_rows for c in second]
    assert [hash_rows(c) for c in first] == [hash_rows(c) for c in second]
    assert all(c.num_rows == length for c in first[:-1])
    assert sum(c.num_rows for c in first) == len(rows)


@given(ROWS, st.integers(1, 20), st.integers(1, 20), st.sampled_from("abc"))
def test_the_rows_of_one_value_are_cut_as_if_there_were_no_others(rows, size, length, apart):
    at = "abc".index(apart)
    ordered = sorted(rows, key=lambda row: (row[at] is not None, row[at]))
    found = list(cut_chunks(batches(ordered, size), length, apart=apart))
    values = list(dict.fromkeys(row[at] for row in ordered))
    alone = [
        chunk
        for value in values
        for chunk in cut_chunks(batches([row for row in ordered if row[at] == value], size), length)
    ]
    assert list(map(hash_rows, found)) == list(map(hash_rows, alone))


@given(ROWS.filter(bool), st.integers(1, 20), st.integers(1, 20), st.integers(1, 60))
def test_pieces_of_a_size_are_the_same_whatever_batches_the_rows_came_in(rows, one, other, size):
    first, second = (list(cut_pieces(whole(rows, n), size)) for n in (one, other))
    assert [(at, hash_rows(piece)) for at, piece in first] == [
        (at, hash_rows(p)) for at, p in second
    ]
    assert [at for at, _ in first] == list(accumulate([p.num_rows for _, p in first], initial=0))[
        :-1
    ]
    sizes = [weight(piece) for _, piece in first]
    assert all(w <= size or p.num_rows == 1 for w, (_, p) in zip(sizes, first, strict=True))
    # No chunk ends before it must.
    for w, (_, following) in zip(sizes, first[1:], strict=False):
        assert w + weight(following.slice(0, 1)) > size


def whole(rows, size):
    return pa.Table.from_batches(batches(rows, size))


def weight(chunk):
    return int(compute_row_sizes(chunk).sum())


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
    batch = pa.table({"c": pa.array(values, type_)})
    assert compute_row_sizes(batch).tolist() == expected
    for at in range(3):
        assert compute_row_sizes(batch.slice(at, 1)).tolist() == expected[at : at + 1]
    assert compute_row_sizes(batch.slice(0, 0)).tolist() == []


@given(ROWS.filter(bool), st.data())
def test_another_row_is_another_digest(rows, data):
    at = data.draw(st.integers(0, len(rows) - 1))
    changed = [*rows[:at], (rows[at][0] + 1, *rows[at][1:]), *rows[at + 1 :]]
    (one,), (other,) = cut_chunks(batches(rows, 99)), cut_chunks(batches(changed, 99))
    assert hash_rows(one) != hash_rows(other)
