"""Tables of changes indexes on the real engine: how histories begin, are read and are folded."""

import itertools
import json
import re

import pyarrow as pa
import pytest

from iscp_dagster import Changes, SourceTable
from iscp_dagster.clickhouse.tables.ownership import read_definition
from iscp_dagster.model.declared.images import IMAGE_FIELDS
from iscp_dagster.model.errors import FeedGoneError, SchemaError
from iscp_dagster.model.moment import HistoryStart, Moment
from support.errors import raises_naming
from support.lake.row_writer import (
    MICROS,
    build_store,
    check_staged,
    make_fields,
    put_in_place,
    query,
    write,
)
from support.paths import ROOT

VIEW = [{"where": "amount > 100", "columns": {"gross": "amount * 1.19"}}]
NUMBERS = itertools.count()


@pytest.fixture
def make(endpoint):
    """Give a function that makes the tables of a changes index, and one to stage rows in."""

    def build(name=None, *, tenant="desk", generation=0, gross="decimal(10,2)"):
        source = SourceTable(name or f"dealt{next(NUMBERS)}.trades", key="id", tenant=tenant)
        index = Changes(name="big_trades", view=VIEW)
        fields = (*make_fields(desk="string", id="long", gross=gross), *IMAGE_FIELDS)
        store = build_store(endpoint, source, index, fields, generation=generation)
        store.create_staging_table()
        return store

    return build


def image(id_, version, change, side, *fields, gross=1, ordinal=0, desk="acme", fresh=False):
    return {
        "desk": desk,
        "id": id_,
        "gross": gross,
        "_change": change,
        "_image": side,
        "_fields": list(fields),
        "_ordinal": ordinal,
        "_version": version,
        "_timestamp": MICROS + version,
        "_deleted": False,
        "_fresh": fresh,
    }


TYPES = pa.schema(
    [
        *(("desk", pa.string()), ("id", pa.int64()), ("gross", pa.decimal128(10, 2))),
        *(("_change", pa.int8()), ("_image", pa.int8()), ("_fields", pa.list_(pa.string()))),
        *(("_ordinal", pa.int64()), ("_version", pa.int64()), ("_timestamp", pa.int64())),
        *(("_deleted", pa.bool_()), ("_fresh", pa.bool_())),
    ]
)


def rows(*images):
    return pa.Table.from_pylist(list(images), TYPES)


HISTORY = (
    image(1, 5, 1, 1, gross=2, fresh=True),
    *(image(2, 5, 2, side, "gross", gross=side + 3, ordinal=1) for side in (0, 1)),
    image(3, 6, 3, 0, gross=9),
    image(1, 7, 3, 0, gross=2),
)


def begin_histories(store, *base, at=4, gap=()):
    """Publish BASE rows of `acme`, and the beginning of an empty `globex`."""
    write(store, rows(*base), staged=True, upto=at)
    check_staged(store, "acme", version=at, rows=len(base))
    store.refresh_epochs().stage_history_starts(["acme", "globex"], Moment(at, MICROS + at), gap)
    put_in_place(store, "acme", rows=len(base), version=at)
    put_in_place(store, "globex", rows=0, version=at)
    store.drop_staging_table()


def test_images_are_kept_in_order_and_a_replay_changes_nothing(make):
    store = make()
    begin_histories(store, image(2, 4, 0, 1, gross=3), image(3, 4, 0, 1, gross=9))
    for _ in range(2):
        receipts = write(store, rows(*HISTORY), since=4, upto=7)
        assert [each.code for each in receipts] == [0]
    columns = "_version, _ordinal, id, _change, _image, _fields, gross"
    order = "ORDER BY _version, _ordinal, _image"
    images = query(store, f"SELECT {columns} FROM {{view}} WHERE _change > 0 {order}")
    assert [(*row[:5], list(row[5]), int(row[6])) for row in images] == [
        (5, 0, 1, 1, 1, [], 2),
        (5, 1, 2, 2, 0, ["gross"], 3),
        (5, 1, 2, 2, 1, ["gross"], 4),
        (6, 0, 3, 3, 0, [], 9),
        (7, 0, 1, 3, 0, [], 2),
    ]
    names = [name for name, *_ in query(store, "DESCRIBE {view}")]
    assert names[3:] == ["_change", "_fields", "_version", "_timestamp", "_ordinal", "_image"]
    as_of = store.shape.qualify_name(f"{store.shape.view}_as_of")
    states = {
        v: query(store, f"SELECT id, toInt32(gross) FROM {as_of}(version = {v}) ORDER BY id")
        for v in (3, 4, 5, 6, 7)
    }
    assert states == {
        3: [],
        4: [(2, 3), (3, 9)],
        5: [(1, 2), (2, 4), (3, 9)],
        6: [(1, 2), (2, 4)],
        7: [(2, 4)],
    }


def test_a_history_has_a_beginning_even_without_rows(make):
    store = make()
    assert store.read_beginnings() == {}
    begin_histories(store, image(2, 4, 0, 1))
    at = Moment(4, MICROS + 4)
    assert store.read_beginnings() == {"acme": HistoryStart(at=at), "globex": HistoryStart(at=at)}
    assert query(store, "SELECT desk, id, _change FROM {view}") == [("acme", 2, 0)]
    later = make(store.shape.source.name)
    begin_histories(later, image(7, 9, 0, 1), at=9, gap=["versions 5 to 9: why"])
    beginnings = later.read_beginnings(["acme"])
    assert (beginnings.keys(), beginnings["acme"].gap) == ({"acme"}, ("versions 5 to 9: why",))
    assert query(later, "SELECT desk, id, _version FROM {view}") == [("acme", 7, 9)]
    assert later.find_replaced_tenants(["acme", "globex"], 8) == {"acme", "globex"}
    assert later.find_replaced_tenants(["acme", "globex"], 9) == frozenset()


def test_a_table_without_tenants_has_one_history(make):
    store = make(tenant=None)
    write(store, rows(image(1, 4, 0, 1)), staged=True, upto=4)
    store.refresh_epochs().stage_history_starts(["default"], Moment(4, 5))
    put_in_place(store, "default", rows=1, version=4)
    assert store.read_beginnings() == {"default": HistoryStart(at=Moment(4, 5))}


def test_a_key_that_is_inserted_while_it_is_in_the_view_is_found(make):
    store = make()
    begin_histories(store, image(2, 4, 0, 1), image(3, 4, 0, 1))
    write(store, rows(*HISTORY), since=4, upto=7)
    # 1 and 3 have left the view; 0 is the key of the mark, and was never in it.
    for key in (0, 1, 3):
        write(store, rows(image(key, 8, 1, 1, fresh=True)), since=7, upto=8)
    with raises_naming(FeedGoneError, "{'id': 2}"):
        write(store, rows(image(2, 8, 1, 1, fresh=True)), since=7, upto=8)


def test_types_of_calculated_columns_are_kept_with_the_table(make):
    store = make()
    definition = read_definition(store.endpoint, store.shape)
    assert [each["type"] for each in definition["calculated"]] == ["decimal(10,2)"]
    assert definition["view"] == VIEW
    json.dumps(definition)
    wider = "decimal(12,2)"
    with raises_naming(SchemaError, "calculated", "decimal(10,2)", "decimal(12,2)"):
        make(store.shape.source.name, gross=wider)
    assert make(store.shape.source.name, generation=1, gross=wider).read_beginnings() == {}


def test_the_queries_of_the_page_on_views_give_changes(make):
    store = make("shop.trades")
    begin_histories(store, image(2, 41, 0, 1), image(3, 41, 0, 1), at=41)
    later = [each | {"_version": each["_version"] + 40} for each in HISTORY]
    write(store, rows(*later), since=41, upto=47)
    page = (ROOT / "docs" / "views.md").read_text()
    changes, fold = re.findall(r"```sql\n(SELECT .*?)```", page, re.DOTALL)
    assert [id_ for id_, *_ in query(store, changes)] == [1, 2, 2, 3, 1]
    assert sorted(id_ for id_, *_ in query(store, fold)) == [2, 3]
