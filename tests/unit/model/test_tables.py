"""Declared tables and indexes: which are refused, and which columns and names they have."""

from itertools import chain

import pytest

from iscp_dagster import FullText, Mirror, SourceTable, Vector
from iscp_dagster.api.selection import select_indexes
from iscp_dagster.batchstates import keepersql
from iscp_dagster.clickhouse.kinds.index_kind import resolve_index
from iscp_dagster.clickhouse.write import letters
from iscp_dagster.model.declared.linking.clashes import ClashError, check_declared_once
from iscp_dagster.model.declared.names import RESERVED_VIEWS
from iscp_dagster.model.declared.tables import Index
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo
from support.errors import raises_naming

COLUMNS = ("region", "id", "title", "body", "embedding")


def orders(**changes):
    return SourceTable("shop.orders", **{"key": "id", "tenant": "region", **changes})


def test_names_come_from_the_declaration():
    table = orders(indexes=[Mirror(), FullText("body", name="words")])
    assert (table.database, table.table, table.keys) == ("shop", "orders", ("id",))
    assert [index.name for index in table.indexes] == ["mirror", "words"]


@pytest.mark.parametrize(
    ("declare", "culprits"),
    [
        (lambda: SourceTable("orders", key="id"), ("'orders'", "database.table")),
        (lambda: SourceTable(7, key="id"), ("Source table 7", "database.table")),
        (lambda: SourceTable("shop.or ders", key="id"), ("'or ders'", "identifier")),
        (lambda: SourceTable("system.t", key="id"), ("database", "'system'")),
        (lambda: SourceTable("Information_Schema.t", key="id"), ("'Information_Schema'",)),
        (lambda: orders(key=3), ("'shop.orders'", "key=3")),
        (lambda: orders(key=("id", "id")), ("shop.orders", "key column 'id'")),
        (lambda: orders(key=(), indexes=[Mirror()]), ("'shop.orders'", "append=True", "'mirror'")),
        (lambda: orders(indexes=[Mirror(append=True)]), ("shop.orders/mirror", "append=True")),
        (lambda: orders(indexes=[Mirror(), Mirror()]), ("shop.orders", "index 'mirror'")),
        (lambda: orders(indexes=[Mirror(exclude=["id"])]), ("shop.orders/mirror", "'id'")),
        (lambda: orders(indexes=[Mirror(exclude=["region"])]), ("shop.orders/mirror", "'region'")),
        (lambda: orders(indexes=[FullText("t", exclude=["t"])]), ("shop.orders/text", "'t'")),
        (lambda: orders(indexes=Mirror()), ("'shop.orders'", f"indexes={Mirror()!r}")),
        (lambda: orders(indexes=[Mirror]), ("'shop.orders'", f"indexes={[Mirror]!r}")),
        (lambda: orders().get_index("words"), ("shop.orders", "'words'", "none")),
        (lambda: Mirror(priority=2**31), ("'mirror'", "priority", 2**31)),
        (lambda: Mirror(priority="high"), ("'mirror'", "priority", "'high'")),
        (lambda: Mirror(columns="body"), ("'mirror'", "columns='body'", "columns=['body']")),
        (lambda: Mirror(exclude="v"), ("'mirror'", "exclude='v'", "exclude=['v']")),
        (lambda: Mirror(exclude=[3]), ("'mirror'", "exclude=[3]")),
        (lambda: Mirror(columns=["a"], exclude=["b"]), ("'mirror'", "columns=", "exclude=")),
        (lambda: Vector("v", dimension=0), ("'vector'", "dimension 0")),
        (lambda: Vector("v", dimension="3"), ("'vector'", "dimension='3'")),
        (lambda: Vector("v", dimension=3, expansion=True), ("'vector'", "expansion=True")),
        (lambda: Vector(["v"], dimension=3), ("'vector'", "vector=['v']")),
        (lambda: Vector("v", dimension=2, metric="manhattan"), ("'vector'", "'manhattan'")),
        (lambda: FullText([]), ("'text'", "text []")),
        (lambda: FullText("a", tokenizer=3), ("'text'", "tokenizer=3")),
        (lambda: orders(buckets=0), ("'shop.orders'", "buckets=0", "1,024", "64")),
        (lambda: orders(buckets=100_000), ("'shop.orders'", "buckets=100000")),
        (lambda: orders(buckets=True), ("'shop.orders'", "buckets=True")),
        (lambda: orders(buckets="64"), ("'shop.orders'", "buckets='64'")),
        (lambda: orders(buckets=64, tenant=None), ("'shop.orders'", "tenant=")),
        (lambda: orders(on_replace="drop"), ("on_replace='drop'", "strand", "rebuild")),
        (
            lambda: orders(key=(), buckets=64, indexes=[Mirror(append=True)]),
            ("shop.orders/mirror", "append=True", "buckets=64"),
        ),
    ],
)
def test_a_bad_declaration_names_culprit_and_remedy(declare, culprits):
    with raises_naming(ConfigError, *culprits):
        declare()


@pytest.mark.parametrize(
    ("tables", "culprits"),
    [
        ([orders(), orders()], ("source table 'shop.orders'",)),
        (
            [
                SourceTable("shop.one", key="id", path="/lake/x"),
                SourceTable("shop.two", key="id", path="file:///lake/x/"),
            ],
            ("'shop.one'", "'shop.two'", "'file:///lake/x/'"),
        ),
        (
            [
                SourceTable("shop.a", key="id", indexes=[Mirror(name="b_mirror")]),
                SourceTable("shop.a_b", key="id", indexes=[Mirror()]),
            ],
            ("shop.a/b_mirror", "shop.a_b/mirror", "'shop.a_b_mirror'"),
        ),
    ],
    ids=["name", "path", "index view"],
)
def test_two_tables_share_nothing(tables, culprits):
    with raises_naming(ClashError, *culprits):
        check_declared_once(tables)


@pytest.mark.parametrize(
    "name",
    ["m__rows", "m__rows_1", "m__rows_20", "m__staging", "m__staging_3", "v_nearest", "nearest"],
)
def test_an_index_may_not_have_a_name_that_belongs_to_another_one(name):
    culprits = f"shop.orders/{name}", f"'orders_{name}'", "__rows"
    with raises_naming(ConfigError, *culprits):
        orders(indexes=[Mirror(name=name)])
    info = ConsumerInfo(type="mirror", db="shop", table="orders", job=name)
    with raises_naming(ConfigError, *culprits):
        resolve_index(orders(), info)


@pytest.mark.parametrize(
    ("table", "index"),
    [
        *(("t_", "rows_1"), ("t_", "staging"), ("t", "_rows")),
        *(("iscp", view.removeprefix("iscp_")) for view in sorted(RESERVED_VIEWS)),
    ],
)
def test_a_table_s_name_may_not_make_an_index_s_view_another_table(table, index):
    with raises_naming(ConfigError, f"shop.{table}/{index}", f"'{table}_{index}'"):
        SourceTable(f"shop.{table}", key="id", indexes=[Mirror(name=index)])


def test_the_tables_beside_the_indexes_are_reserved():
    assert {letters.TABLE, keepersql.TABLE} == RESERVED_VIEWS


@pytest.mark.parametrize(
    "name", ["rows", "staging_1", "M__ROWS", "m__rows_x", "nearest_2", "m_row"]
)
def test_other_names_are_free_and_their_case_matters(name):
    free = orders(indexes=[Mirror(), Mirror(name="Mirror"), Mirror(name=name)])
    check_declared_once([free, SourceTable("shop.Orders", key="id", indexes=[Mirror()])])


@pytest.mark.parametrize(
    ("other", "culprits"),
    [
        ("shop.orders_mirror", ("asset", "shop.orders/mirror", "shop.orders_mirror")),
        ("shop_orders.x", ("Dagster", "shop.orders_x", "shop_orders.x")),
    ],
)
def test_tables_may_not_share_a_name_in_dagster(other, culprits):
    tables = [orders(indexes=[Mirror()]), SourceTable("shop.orders_x", key="id")]
    check_declared_once(tables)
    with raises_naming(ClashError, *culprits):
        check_declared_once([*tables, SourceTable(other, key="id")])


def test_an_index_carries_key_tenant_and_the_columns_that_it_needs():
    table = orders()
    index = FullText("body", columns=["title"])
    assert table.select_columns(index, COLUMNS) == ("region", "id", "title", "body")
    assert table.select_columns(Mirror(), COLUMNS) == COLUMNS


@pytest.mark.parametrize(
    ("index", "rebuilt"),
    [
        (FullText("text"), True),
        (Mirror(columns=["text"]), False),
        (Index(name="own", columns=["text"]), False),
    ],
)
def test_a_missing_column_is_named_with_a_rebuild_if_the_table_depends_on_it(index, rebuilt):
    with raises_naming(ConfigError, f"shop.orders/{index.name}", "'text'") as caught:
        orders().select_columns(index, COLUMNS)
    command = f"iscp job rebuild shop.orders/{index.name} --tenant '*'"
    assert (command in str(caught.value)) is rebuilt


@pytest.mark.parametrize(
    ("names", "indexes"),
    [
        ([], ["shop.a", "shop.b"]),
        (["mirror"], ["shop.a/mirror", "shop.b/mirror"]),
        (["a/words"], ["shop.a/words"]),
        (["shop.b/mirror", "mirror"], ["shop.a/mirror", "shop.b/mirror"]),
        (["shop.a"], ["shop.a/mirror", "shop.a/words"]),
    ],
)
def test_a_command_names_indexes_as_it_prints_them(names, indexes):
    words = FullText("body", name="words")
    tables = [
        SourceTable("shop.a", key="id", indexes=[Mirror(), words]),
        SourceTable("shop.b", key="id", indexes=[Mirror()]),
        SourceTable("shop.c", key="id"),
    ]
    selected = [
        [table.name] if jobs is None else [f"{table.name}/{job}" for job in jobs]
        for table, jobs in select_indexes(names, tables)
    ]
    assert [*chain(*selected)] == indexes


@pytest.mark.parametrize("name", ["word", "shop.a/word", "shop.d", "a", "x/mirror", ""])
def test_a_name_of_no_index_is_refused(name):
    tables = [SourceTable("shop.a", key="id", indexes=[Mirror()])]
    with raises_naming(ConfigError, repr(name), "shop.a/mirror"):
        select_indexes([name], tables)


def test_a_command_names_indexes_that_are_only_registered_too():
    tables = [SourceTable("shop.a", key="id", indexes=[Mirror()]), SourceTable("shop.b", key="id")]
    registered = [JobID(db="shop", table=table, job="copy") for table in ("a", "b", "gone")]

    def select(*names):
        return select_indexes(names, tables, registered)

    assert select() == [(tables[0], None), (tables[1], None)]
    assert select("b/copy") == [(tables[1], ["copy"])]
    assert select("copy") == [(tables[0], ["copy"]), (tables[1], ["copy"])]
    assert select("shop.a") == [(tables[0], ["mirror", "copy"])]
    with raises_naming(ConfigError, "shop.gone/copy", "shop.a/copy, shop.a/mirror, shop.b/copy."):
        select("shop.gone/copy")


def test_an_index_carries_the_columns_that_it_does_not_exclude():
    table = orders(indexes=[FullText("body", exclude=["embedding"]), Mirror()])
    words, mirror = table.indexes
    assert table.select_columns(words, COLUMNS) == COLUMNS[:-1]
    assert table.select_columns(words, (*COLUMNS, "later")) == (*COLUMNS[:-1], "later")
    assert words.definition["exclude"] == ["embedding"]
    assert "exclude" not in mirror.definition, "tables that were made before stay as they are"
    # An excluded column may be dropped from the source.
    assert table.select_columns(words, COLUMNS[:-1]) == COLUMNS[:-1]


def test_a_spec_names_either_the_columns_of_an_index_or_those_left_out():
    table = orders(indexes=[Mirror(exclude=["embedding"]), FullText("body", columns=["title"])])

    def resolve(kind, **changes):
        info = ConsumerInfo(type=kind, db="shop", table="orders", job=kind, **changes)
        return resolve_index(table, info)

    narrow = resolve("mirror", columns=("title",))
    assert table.select_columns(narrow, COLUMNS) == ("region", "id", "title")
    wide = resolve("text", options={"exclude": ["embedding"]})
    assert table.select_columns(wide, COLUMNS) == COLUMNS[:-1]
    with raises_naming(ConfigError, "'mirror'", "columns=", "exclude="):
        resolve("mirror", columns=("title",), options={"exclude": ["body"]})
