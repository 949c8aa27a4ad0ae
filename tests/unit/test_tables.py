"""What a declaration refuses, and what it says."""

from __future__ import annotations

import pytest

from iscp_dagster import FullText, Mirror, SourceTable, Vector
from iscp_dagster.commands.tables import chosen
from iscp_dagster.core.errors import ConfigError
from iscp_dagster.core.tables import check_declared_once

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
        (lambda: orders(indexes=[Mirror(append=True)]), "append=True, and its source the key"),
        (lambda: orders(key=("id", "id")), "key column 'id' is declared twice"),
        (lambda: orders(indexes=[Mirror(), Mirror()]), "index 'mirror' is declared twice"),
        (lambda: Vector("v", dimension=0), "dimension 0 is below 1"),
        (lambda: Vector("v", dimension=2, metric="manhattan"), "metric 'manhattan' is unknown"),
        (lambda: check_declared_once([orders(), orders()]), "'shop.orders' is declared twice"),
        (lambda: orders().index("words"), "has no index 'words'; it has: none"),
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
    with pytest.raises(ConfigError, match=r"index view 'shop\.a_b_mirror' is declared twice"):
        check_declared_once(clash)


def test_an_index_carries_key_tenant_and_what_it_needs():
    table = orders()
    index = FullText("body", columns=["title"])
    assert table.columns_of(index, COLUMNS) == ("region", "id", "title", "body")
    assert table.columns_of(Mirror(), COLUMNS) == COLUMNS


def test_a_column_that_the_source_lacks_is_named():
    with pytest.raises(ConfigError, match=r"shop\.orders\.text: the source has no column 'text'"):
        orders().columns_of(FullText("text"), COLUMNS)


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
    found = chosen(names, tables)
    picked = [[table.name] if i is None else [f"{table.name}/{n}" for n in i] for table, i in found]
    assert [name for each in picked for name in each] == indexes


@pytest.mark.parametrize("name", ["word", "shop.a/word", "shop.d", "a", "x/mirror", ""])
def test_a_name_that_names_nothing_is_refused(name):
    tables = [SourceTable("shop.a", key="id", indexes=[Mirror()])]
    with pytest.raises(ConfigError, match=r"No index .* is declared; there are: shop\.a/mirror"):
        chosen([name], tables)
