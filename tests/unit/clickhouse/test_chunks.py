"""Chunks and their digests do not depend on how the stream was cut."""

from itertools import accumulate, pairwise

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
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    return pa.table(columns, schema=schema).to_batches(max_chunksize=size)


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
    chunks = list(cut_chunks(batches(ordered, size), length, apart=apart))
    values = list(dict.fromkeys(row[at] for row in ordered))
    alone = [
        chunk
        for value in values
        for chunk in cut_chunks(batches([row for row in ordered if row[at] == value], size), length)
    ]
    assert list(map(hash_rows, chunks)) == list(map(hash_rows, alone))


@given(ROWS.filter(bool), st.integers(1, 20), st.integers(1, 20), st.integers(1, 60))
def test_pieces_do_not_depend_on_the_batches_of_the_rows(rows, one, other, size):
    tables = (pa.Table.from_batches(batches(rows, length)) for length in (one, other))
    first, second = (list(cut_pieces(table, size)) for table in tables)
    digests = [[(start, hash_rows(piece)) for start, piece in each] for each in (first, second)]
    assert digests[0] == digests[1]
    starts, pieces = zip(*first, strict=True)
    assert starts == (0, *accumulate(piece.num_rows for piece in pieces[:-1]))
    assert all(weigh(piece) <= size or piece.num_rows == 1 for piece in pieces)
    # No piece ends before it must.
    for piece, following in pairwise(pieces):
        assert weigh(piece) + weigh(following.slice(0, 1)) > size


def weigh(rows):
    return int(compute_row_sizes(rows).sum())


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
def test_a_row_s_weight_depends_on_its_values_alone(name):
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
