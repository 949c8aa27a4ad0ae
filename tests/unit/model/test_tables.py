"""What a declaration refuses, and with which message."""

import pytest

from iscp_dagster import Changes, FullText, Mirror, SourceTable, Vector
from iscp_dagster.api.selection import select_indexes
from iscp_dagster.batches import keepersql
from iscp_dagster.clickhouse.kinds.indexes import resolve_index
from iscp_dagster.clickhouse.write import letters
from iscp_dagster.model.declared.linking.clashes import check_declared_once
from iscp_dagster.model.declared.names import RESERVED_VIEWS
from iscp_dagster.model.declared.tables import Index
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo

COLUMNS = ("region", "id", "title", "body", "embedding")


def orders(**changes):
    return SourceTable("shop.orders", **{"key": "id", "tenant": "region", **changes})


def test_names_come_from_the_declaration():
    table = orders(indexes=[Mirror(), FullText("body", name="words")])
    assert (table.database, table.table, table.keys) == ("shop", "orders", ("id",))
    assert [index.name for index in table.indexes] == ["mirror", "words"]


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: SourceTable("orders", key="id"), "'orders': name it database.table"),
        (lambda: SourceTable("shop.or ders", key="id"), "'or ders' is not an identifier"),
        (lambda: orders(key=(), indexes=[Mirror()]), "declare at least one key column"),
        (lambda: orders(indexes=[Mirror(append=True)]), "append=True, but its source has the key"),
        (lambda: orders(key=("id", "id")), "key column 'id' is declared twice"),
        (lambda: orders(indexes=[Mirror(), Mirror()]), "index 'mirror' is declared twice"),
        (lambda: Mirror(priority=2**31), "Index 'mirror': The priority 2147483648 is out of"),
        (lambda: Mirror(priority="high"), "Index 'mirror': The priority 'high' is not a whole"),
        (lambda: Mirror(exclude="v"), r"exclude='v' is not a list of names; write exclude=\['v'\]"),
        (lambda: Mirror(exclude=[3]), r"exclude=\[3\] is not a list of names"),
        (lambda: Mirror(columns=["a"], exclude=["b"]), "columns= and exclude= are both given"),
        (lambda: orders(indexes=[Mirror(exclude=["id"])]), "mirror: exclude= names 'id', which"),
        (lambda: orders(indexes=[Mirror(exclude=["region"])]), "exclude= names 'region', which"),
        (lambda: orders(indexes=[FullText("body", exclude=["body"])]), "names 'body', which the"),
        (lambda: Changes(exclude=["v"]), r"takes only columns=\[\.\.\.\]"),
        (lambda: Vector("v", dimension=0), "dimension 0 is below 1"),
        (lambda: Vector("v", dimension="3"), "dimension='3' is not a whole number"),
        (lambda: Vector("v", dimension=3, expansion=True), "expansion=True is not a whole"),
        (lambda: Vector(["v"], dimension=3), r"vector=\['v'\] is not text"),
        (lambda: FullText([]), r"text \[\] names no column"),
        (lambda: FullText("a", tokenizer=3), "tokenizer=3 is not text"),
        (lambda: Vector("v", dimension=2, metric="manhattan"), "metric 'manhattan' is unknown"),
        (
            lambda: check_declared_once(
                [
                    SourceTable("shop.one", key="id", path="/lake/x"),
                    SourceTable("shop.two", key="id", path="file:///lake/x/"),
                ]
            ),
            "'shop.one' and 'shop.two' are both declared at the path",
        ),
        (lambda: check_declared_once([orders(), orders()]), "'shop.orders' is declared twice"),
        (lambda: orders().get_index("words"), "has no index 'words'; it has: none"),
        (lambda: orders(indexes=Mirror()), r"indexes=Mirror\(.* is not a list of indexes"),
        (lambda: orders(indexes=[Mirror]), r"indexes=\[<class.* is not a list of indexes"),
        (lambda: orders(key=3), "key=3 names no columns"),
        (lambda: SourceTable(7, key="id"), "Source table 7: name it database.table"),
        (lambda: Mirror(columns="body"), "columns='body' is not a list of names"),
        (lambda: SourceTable("system.t", key="id"), "'system' is ClickHouse's own"),
        (lambda: SourceTable("Information_Schema.t", key="id"), "is ClickHouse's own"),
    ],
)
def test_a_bad_declaration_names_culprit_and_remedy(declare, said):
    with pytest.raises(ConfigError, match=said):
        declare()


def test_two_tables_may_not_write_one_view():
    clash = [
        SourceTable("shop.a", key="id", indexes=[Mirror(name="b_mirror")]),
        SourceTable("shop.a_b", key="id", indexes=[Mirror()]),
    ]
    with pytest.raises(
        ConfigError, match=r"a/b_mirror and shop\.a_b/mirror would both .*'shop\.a_b_mirror'"
    ):
        check_declared_once(clash)


@pytest.mark.parametrize(
    "name",
    ["m__rows", "m__rows_1", "m__rows_20", "m__staging", "m__staging_3", "v_nearest", "nearest"],
)
def test_an_index_may_not_be_named_as_what_belongs_to_another_one(name):
    said = rf"Index shop\.orders/{name}: its index view would be 'orders_{name}', but names that"
    with pytest.raises(ConfigError, match=said):
        orders(indexes=[Mirror(name=name)])
    info = ConsumerInfo(type="mirror", db="shop", table="orders", job=name)
    with pytest.raises(ConfigError, match=said):
        resolve_index(orders(), info)


@pytest.mark.parametrize(("table", "index"), [("t_", "rows_1"), ("t_", "staging"), ("t", "_rows")])
def test_a_table_s_name_may_not_make_an_index_s_view_another_one_s_table(table, index):
    with pytest.raises(ConfigError, match="belong to other index views; rename the index"):
        SourceTable(f"shop.{table}", key="id", indexes=[Mirror(name=index)])


def test_an_index_may_not_be_named_as_what_stands_beside_the_indexes():
    assert {letters.TABLE, keepersql.TABLE} == RESERVED_VIEWS
    for view in RESERVED_VIEWS:
        with pytest.raises(ConfigError, match=f"'{view}', but a table of this name exists beside"):
            SourceTable("shop.iscp", key="id", indexes=[Mirror(name=view.removeprefix("iscp_"))])


@pytest.mark.parametrize(
    "name", ["rows", "staging_1", "M__ROWS", "m__rows_x", "nearest_2", "m_row"]
)
def test_other_names_are_free_and_case_tells_them_apart(name):
    free = orders(indexes=[Mirror(), Mirror(name="Mirror"), Mirror(name=name)])
    check_declared_once([free, SourceTable("shop.Orders", key="id", indexes=[Mirror()])])


@pytest.mark.parametrize("other", ["shop.orders_mirror", "shop_orders.mirror"])
def test_tables_may_not_share_a_name_in_dagster(other):
    ours = [orders(indexes=[Mirror()]), SourceTable("shop.orders_x", key="id")]
    check_declared_once(ours)
    said = {
        "shop.orders_mirror": r"shop\.orders/mirror and the table shop\.orders_mirror would both",
        "shop_orders.mirror": r"shop\.orders_x and shop_orders\.x would both have the name in Dag",
    }
    with pytest.raises(ConfigError, match=said[other]):
        check_declared_once([*ours, SourceTable(other.replace(".mirror", ".x"), key="id")])


def test_an_index_carries_key_tenant_and_what_it_needs():
    table = orders()
    index = FullText("body", columns=["title"])
    assert table.select_columns(index, COLUMNS) == ("region", "id", "title", "body")
    assert table.select_columns(Mirror(), COLUMNS) == COLUMNS


def test_a_column_that_the_source_lacks_is_named():
    with pytest.raises(ConfigError, match=r"shop\.orders/text: the source has no column 'text'"):
        orders().select_columns(FullText("text"), COLUMNS)


@pytest.mark.parametrize(
    ("index", "rebuilt"),
    [
        (FullText("text"), True),
        (Mirror(columns=["text"]), False),
        (Index(name="own", columns=["text"]), False),
    ],
)
def test_a_rebuild_follows_where_the_column_that_makes_the_table_was_renamed(index, rebuilt):
    with pytest.raises(ConfigError) as caught:
        orders().select_columns(index, COLUMNS)
    command = f"then rebuild it (`iscp job rebuild shop.orders/{index.name} --tenant '*'`)"
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
    found = select_indexes(names, tables)
    picked = [[table.name] if i is None else [f"{table.name}/{n}" for n in i] for table, i in found]
    assert [name for each in picked for name in each] == indexes


@pytest.mark.parametrize("name", ["word", "shop.a/word", "shop.d", "a", "x/mirror", ""])
def test_a_name_that_names_nothing_is_refused(name):
    tables = [SourceTable("shop.a", key="id", indexes=[Mirror()])]
    with pytest.raises(
        ConfigError, match=r"No index .* is declared or registered; there are: shop\.a/m"
    ):
        select_indexes([name], tables)


def test_a_command_names_indexes_that_are_only_registered_too():
    tables = [
        SourceTable("shop.a", key="id", indexes=[Mirror()]),
        SourceTable("shop.b", key="id"),
    ]
    held = [JobID(db="shop", table=table, job="copy") for table in ("a", "b", "gone")]
    assert select_indexes([], tables, held) == [(tables[0], None), (tables[1], None)]
    assert select_indexes(["b/copy"], tables, held) == [(tables[1], ["copy"])]
    assert select_indexes(["copy"], tables, held) == [(tables[0], ["copy"]), (tables[1], ["copy"])]
    assert select_indexes(["shop.a"], tables, held) == [(tables[0], ["mirror", "copy"])]
    with pytest.raises(ConfigError, match=r"shop\.a/copy, shop\.a/mirror, shop\.b/copy\.$"):
        select_indexes(["shop.gone/copy"], tables, held)


def test_an_index_carries_what_it_does_not_exclude():
    table = orders(indexes=[FullText("body", exclude=["embedding"]), Mirror()])
    words, mirror = table.indexes
    assert table.select_columns(words, COLUMNS) == COLUMNS[:-1]
    assert table.select_columns(words, (*COLUMNS, "later")) == (*COLUMNS[:-1], "later")
    assert words.definition["exclude"] == ["embedding"]
    assert "exclude" not in mirror.definition, "tables that were made before stay as they are"
    assert table.select_columns(words, COLUMNS[:-1]) == COLUMNS[:-1], (
        "what is left out may be dropped"
    )


def test_a_spec_says_either_which_columns_an_index_has_or_which_not():
    table = orders(indexes=[Mirror(exclude=["embedding"]), FullText("body", columns=["title"])])

    def index(job, type_, **said):
        return resolve_index(
            table, ConsumerInfo(type=type_, db="shop", table="orders", job=job, **said)
        )

    narrow = index("mirror", "mirror", columns=("title",))
    assert table.select_columns(narrow, COLUMNS) == ("region", "id", "title")
    wide = index("text", "text", options={"exclude": ["embedding"]})
    assert table.select_columns(wide, COLUMNS) == COLUMNS[:-1]
    with pytest.raises(ConfigError, match="both given"):
        index("mirror", "mirror", columns=("title",), options={"exclude": ["body"]})
