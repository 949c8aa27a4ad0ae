"""Image rows on their way to a trigger: what is dropped, and which values are refused."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.events.hysteresis import Hysteresis
from iscp_dagster.eventtriggers.images import build_changes
from iscp_dagster.eventtriggers.unchanged_rows import drop_noop_updates
from iscp_dagster.model.errors import KeyColumnError, SchemaError
from support.errors import raises_naming
from support.lake.image_rows import GONE, SCHEMA, Trades

HYSTERESIS = Hysteresis(has_unmatch=True)


def list_kept(before, after, *, hysteresis=True):
    """Return the amounts in the kept images of one update between these amounts."""
    trades = Trades([{("acme", 1): before}, {("acme", 1): after}], hysteresis=hysteresis)
    rows = pa.Table.from_pylist(trades.tail(0, 1), SCHEMA)
    return drop_noop_updates(rows, "desk", Hysteresis(has_unmatch=hysteresis))["amount"].to_pylist()


@pytest.mark.parametrize(("before", "after"), [(600, 700), (450, None), (100, 200)])
def test_an_update_between_images_alike_is_dropped(before, after):
    assert list_kept(before, after) == []


@pytest.mark.parametrize(
    ("before", "after"), [(600, 450), (450, 600), (450, 100), (100, 450), (600, 100), (100, 600)]
)
def test_an_update_that_may_move_its_row_is_kept(before, after):
    assert list_kept(before, after) == [before, after]


def test_without_hysteresis_only_match_counts():
    assert list_kept(450, 100, hysteresis=False) == []
    assert list_kept(600, 100, hysteresis=False) == [600, 100]


@given(st.lists(st.sampled_from([100, 450, 600, GONE]), min_size=2, max_size=8), st.integers(0, 99))
def test_images_of_different_changes_are_no_pair(amounts, cut):
    """Whatever is cut off or missing, no half of an update and no other row is dropped."""
    commits = [{(desk, 1): each for desk in ("acme", "globex")} for each in amounts]
    rows = Trades(commits).tail(0, len(commits) - 1)
    rest = rows[:cut] + rows[cut + 1 :]
    kept = drop_noop_updates(pa.Table.from_pylist(rest, SCHEMA), "desk", HYSTERESIS).to_pylist()

    def get_place(row):
        return row["desk"], row["_version"], row["_ordinal"], row["_change"]

    dropped = [row for row in rest if row not in kept]
    assert [row for row in rest if row in kept] == kept
    assert {row["_change"] for row in dropped} <= {2}
    for row in dropped:
        assert sum(get_place(each) == get_place(row) for each in dropped) == 2


BYTES = pa.array([b"a\xffb"])


def texts(values):
    """Texts of any bytes, as Spark hands them over."""
    return pa.Array.from_buffers(pa.string(), len(values), values.buffers())


def read(*keys, **columns):
    """Return the changes of one row that was inserted."""
    system = {"_change": 1, "_image": 1, "_ordinal": 0, "_version": 1, "_timestamp": 5}
    arrays = {name: pa.array([value]) for name, value in system.items()}
    rows = pa.table({**columns, **arrays, "_match": [True], "_unmatch": [False]})
    return build_changes(rows, None, keys, HYSTERESIS, name="shop.trades/large")


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
