"""Columns, tenants and tables of any name: built, changed and verified on the real engines."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from iscp_dagster import FullText, Mirror, SourceTable, Vector
from iscp_dagster.clickhouse.connect import quoting as clickhouse
from iscp_dagster.clickhouse.tables.ddl import RESERVED_COLUMNS
from iscp_dagster.clickhouse.tables.parts import NULL
from iscp_dagster.delta.checks import is_reserved
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.spark.quoting import quote_identifier, quote_string
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from iscp_dagster.upkeep.verify import compare_or_raise
from support.lake.delta_tables import FEED, Table

MAPPED = f"{FEED}, delta.columnMapping.mode = 'name'"
ONLY_MAPPED = " ,;{}()\n\t=\0"
"""Characters that are allowed only in mapped columns: by Delta or, for the last, by us."""
NUMBERS = count()
PLAIN = (
    *("s.a", "s.b", ".", "quo'te", "distance", "sla/sh", "_rank", "a.b.c", "x.null", "back\\slash"),
    *("new\\n", 'quo"te', "..", "x.size0", "../up", "per%20cent", "ha#sh", "né名", "dol$lar"),
    *("star*", "--", "/*", "0", "select", "tenant", "k", "query", "row", "h", "key_0", "in_h"),
    *("c0", "_upsert", "_insert", "times", "fresh", "id", "😀", "back`tick", "``.`", "%s"),
    *("_change", "_metadata", "_file", "null", "true", "from", "FINAL", "Array", "_tenant", "rows"),
    *("entry", "element", "key", "value", "list", "count", "nan", "*", "?", "$1", "@", "\x7f"),
)
SPACED = (
    *("a b", " ", "line\nbreak", "ta\tb", "semi;colon", "e=q", "{br}", "(pa)", "co,mma"),
    *("{version:UInt64}", "%(version)s", "{t}", " k", "k ", "1 + 1", "count()", "a\r\nb", "\0"),
)
KEY = "k'\\{}"
HARD = "`'\"\\.%${}:;,()=/*-#\n\t\0 aAkKßΣς0_\u0130\u0131\u017f"
TABLES = ("select", "table", "FROM", "final", "rows", "_", "default", "Values", "order", "view")


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names of a table, its columns and its tenants, all different even ignoring case."""

    table: str
    tenant: str
    keys: tuple[str, ...]
    vector: str
    struct: str
    fields: tuple[str, ...]
    """Fields of the struct."""
    others: tuple[str, ...]
    """Text columns."""
    tenants: tuple[str, ...]
    mapped: bool = True

    @property
    def types(self) -> dict[str, str]:
        nested = ", ".join(f"{quote_identifier(name)}: STRING" for name in self.fields)
        return {
            self.tenant: "STRING",
            **dict.fromkeys(self.keys, "STRING"),
            self.vector: "ARRAY<FLOAT>",
            self.struct: f"STRUCT<{nested}>",
            **dict.fromkeys(self.others, "STRING"),
        }


def is_free(name):
    """Whether neither the pipeline nor ClickHouse reserves the name."""
    return not is_reserved(name) and name not in RESERVED_COLUMNS


def is_field(name):
    """Whether a struct may have the field; ClickHouse reserves `null`, only there."""
    return name != NULL


def without_case(name):
    """Fold case, at least as far as Spark does to compare names."""
    return name.upper().casefold()


def called(special, refused):
    signs = st.characters(exclude_categories=["Cs"], exclude_characters=refused)
    hard = "".join(each for each in HARD if each not in refused)
    names = st.one_of(
        st.sampled_from(special),
        st.sampled_from(special).map(str.swapcase),
        st.text(signs, min_size=1, max_size=8),
        st.text(hard, min_size=1, max_size=5),
    )
    return names.filter(is_free)


def unlike(names, least, most):
    return st.lists(names, min_size=least, max_size=most, unique_by=without_case)


@st.composite
def tables_of_any_names(draw):
    mapped = draw(st.booleans())
    columns = called((*PLAIN, *SPACED), "") if mapped else called(PLAIN, ONLY_MAPPED)
    chosen = draw(unlike(columns, 16, 40))
    tenant, vector, struct, first, second, *others = chosen
    fields = draw(unlike(columns.filter(is_field), 1, 4))
    taken = set(map(without_case, chosen))
    # ClickHouse's names of a column's parts must not equal those of other columns.
    free = [each for each in fields if without_case(f"{struct}.{each}") not in taken]
    parts = [f"{vector}.size0", f"{others[0]}.null"]
    return Names(
        table=draw(
            st.sampled_from(TABLES) | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True)
        ),
        tenant=tenant,
        keys=(first, second)[: draw(st.integers(0, 2))],
        vector=vector,
        struct=struct,
        fields=tuple(free or ["field"]),
        others=(*others, *(each for each in parts if without_case(each) not in taken)),
        tenants=tuple(draw(unlike(called((*PLAIN, *SPACED), "\0"), 2, 3))),
        mapped=mapped,
    )


class Rows:
    """A Delta table with these names, its indexes in ClickHouse, and its changes."""

    def __init__(self, deployment, names):
        self.names = names
        indexes = [Mirror(append=True)]
        if names.keys:
            texts = list(names.others[:3])
            indexes = [Mirror(), FullText(texts), Vector(names.vector, dimension=2)]
        source = SourceTable(
            f"odd{next(NUMBERS)}.{names.table}",
            key=names.keys,
            tenant=names.tenant,
            indexes=indexes,
        )
        self.table = Table(deployment, source)
        listed = ", ".join(
            f"{quote_identifier(name)} {type_}" for name, type_ in names.types.items()
        )
        self.sql(
            f"CREATE TABLE {self.delta} ({listed}) USING delta "
            f"PARTITIONED BY ({quote_identifier(names.tenant)}) "
            f"TBLPROPERTIES ({MAPPED if names.mapped else FEED})"
        )

    def sql(self, statement):
        self.table.deployment.spark().sql(statement).collect()

    @property
    def delta(self):
        return quote_identifier("delta", self.table.path)

    def put(self, *rows):
        """Insert rows of (tenant, number), each column with a different value."""
        listed = ", ".join(f"({', '.join(self.row(*each))})" for each in rows)
        self.sql(f"INSERT INTO {self.delta} VALUES {listed}")

    def row(self, tenant, number):
        names = self.names
        nested = ", ".join(quote_string(f"{name} {number}") for name in names.fields)
        return [
            quote_string(tenant),
            *(quote_string(KEY.format(number)) for _ in names.keys),
            f"array({number}F, 1F)",
            f"struct({nested})",
            *(quote_string(f"{name} {number}") for name in names.others),
        ]

    def change(self):
        """Update a row, delete one and insert one."""
        first, last = (
            f"{quote_identifier(self.names.keys[0])} = {quote_string(KEY.format(n))}"
            for n in (1, 2)
        )
        if any("`" in name for name in self.names.types):
            # Delta refuses to update a table with a backtick in a column's name.
            self.sql(f"DELETE FROM {self.delta} WHERE {first}")
            self.put(*((tenant, 1) for tenant in self.names.tenants))
        else:
            changed = quote_identifier(self.names.others[0])
            self.sql(f"UPDATE {self.delta} SET {changed} = 'other' WHERE {first}")
        self.sql(f"DELETE FROM {self.delta} WHERE {last}")

    def follow(self, kind):
        outcomes = self.table.follow()
        assert outcomes
        assert all(isinstance(each, RowDelivery) for each in outcomes), outcomes
        assert {each.plan.kind for each in outcomes} == {kind}

    def check(self):
        verdicts = self.table.verdicts()
        assert len(verdicts) == len(self.table.source.indexes) * len(self.names.tenants)
        assert [each for each in verdicts if not each.agrees] == []

    def search(self):
        """Check that a word finds the new row, and that the row is nearest to its vector."""
        word, tenant = self.names.others[0], self.names.tenants[0]
        mine = (
            f"{clickhouse.quote_identifier(self.names.tenant)} = {clickhouse.quote_string(tenant)}"
        )
        found = f"{mine} AND hasAllTokens({clickhouse.quote_identifier(word)}, '9')"
        key = clickhouse.quote_identifier(self.names.keys[0])
        new = (KEY.format(9),)
        assert new in self.table.query(f"SELECT {key} FROM {{text}} WHERE {found}")
        nearest = self.table.view(self.table.source.get_index("vector"), "_nearest")
        near = f"{nearest}(query=[9,1], tenant={clickhouse.quote_string(tenant)}, k=1)"
        assert self.table.query(f"SELECT {key} FROM {near}") == [new]


@pytest.fixture
def deployment(spark_deployment):
    return spark_deployment


def fixed():
    names = [each for each in (*PLAIN, *SPACED) if "`" not in each]
    return Names(
        table="select",
        tenant="te.na\\nt'",
        keys=("k.e/y", "ke\\y."),
        vector="v.ec\\",
        struct="st.ruct",
        fields=("a.b", "c\\'"),
        others=tuple({without_case(each): each for each in names}.values()),
        tenants=("a", "b.c\\"),
    )


@given(names=tables_of_any_names())
@example(names=fixed())
@settings(
    max_examples=3,
    derandomize=True,
    # No shrinking: an example takes too long.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)
def test_any_names_are_built_changed_and_verified(deployment, names):
    rows = Rows(deployment, names)
    rows.put(*((tenant, number) for tenant in names.tenants for number in range(4)))
    rows.follow(ReadKind.SNAPSHOT)
    if names.keys:
        rows.change()
    rows.put(*((tenant, 9) for tenant in names.tenants))
    rows.follow(ReadKind.TAIL)
    rows.check()
    if names.keys:
        rows.search()


def test_rows_without_a_key_are_told_apart_by_all_their_columns(deployment):
    typed = {"te.nant": "STRING", "b\\": "STRING", "m.ap": "MAP<STRING, INT>", "_rank": "INT"}
    listed = ", ".join(f"{quote_identifier(name)} {type_}" for name, type_ in typed.items())
    table = Table.make(deployment, Mirror(append=True), columns=listed, tenant="te.nant", key=())
    table.sql("INSERT INTO {t} VALUES ('a', 'x', map('y', 1), 7)")
    table.follow()
    table.sql("INSERT INTO {t} VALUES ('a', 'x', map('y', 1), 8), ('a', 'x', map('y', 1), 8)")
    (tail,) = table.follow()
    assert tail.plan.kind is ReadKind.TAIL
    told = []
    verdicts = compare_or_raise(deployment, table.source, report=told.append)
    assert [(each.agrees, each.rows) for each in verdicts] == [(True, 3)]
    assert told == [f"comparing {table.source.name}/mirror, a, at version {table.version}"]


def test_a_url_with_escapes_names_one_folder_for_all_readers(spark_deployment, tmp_path):
    properties = f"{FEED}, delta.enableDeletionVectors = true"
    folder = f"delta.`{tmp_path}/rel x#1`"
    sql = spark_deployment.spark().sql
    columns = "tenant STRING, id BIGINT, name STRING"
    sql(
        f"CREATE TABLE {folder} ({columns}) USING delta PARTITIONED BY (tenant) "
        f"TBLPROPERTIES ({properties})"
    )
    sql(f"INSERT INTO {folder} SELECT 'a', id, 'x' FROM range(0, 20, 1, 1)")
    url = f"{(tmp_path / 'rel x#1').as_uri()}"
    assert url.endswith("/rel%20x%231")
    table = Table.make(spark_deployment, Mirror(), create=False, path=url)
    table.follow()
    sql(f"DELETE FROM {folder} WHERE id = 3")
    table.follow()
    assert table.query("SELECT count() FROM {mirror}") == [(19,)]
    table.check()
    # The log counts the row that only its deletion vector takes away.
    assert [verdict.logged for verdict in table.verdicts()] == [19]
