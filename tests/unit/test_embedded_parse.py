"""The embedded server tells statements apart without help from the engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.clickhouse.embedded.errors import EngineError
from iscp_dagster.clickhouse.embedded.parse import parse
from iscp_dagster.clickhouse.embedded.rewrite import (
    insert_from,
    kill_by_engine_ids,
    select_into,
)
from iscp_dagster.clickhouse.embedded.statement import Verb
from iscp_dagster.clickhouse.embedded.tokens import (
    quote_name,
    quote_string,
    split_list,
    tokens,
    unquote,
)

INSERTS = [
    (b"INSERT INTO t FORMAT CSV\n1,2\n", "CSV", b"1,2\n"),
    (b"insert into t (a, `b c`) format TSV \t\r\n1\t2", "TSV", b"1\t2"),
    (b"INSERT INTO t VALUES (1, 'FORMAT x')", "Values", b" (1, 'FORMAT x')"),
    (b"INSERT INTO t SETTINGS async_insert=0 VALUES (1)", "Values", b" (1)"),
    (b"INSERT INTO t SETTINGS a=1, b='x' FORMAT JSONEachRow\n\n{}", "JSONEachRow", b"\n{}"),
    (b"-- it's\nINSERT /* FORMAT X */ INTO t FORMAT Native\n\x00'\"`", "Native", b"\x00'\"`"),
    (b"# x\nINSERT INTO FUNCTION file('a;b','CSV','x Int8') FORMAT CSV 7", "CSV", b"7"),
    (b"INSERT INTO `format` FORMAT CSV\n1", "CSV", b"1"),
    (b"INSERT INTO format FORMAT CSV\n1", "CSV", b"1"),
    (b"INSERT INTO db.values VALUES (1)", "Values", b" (1)"),
    (b"INSERT INTO db.t (format, values) FORMAT CSV\n1", "CSV", b"1"),
    (b"INSERT INTO t FORMAT Values (1);", "Values", b"(1);"),
    (b"INSERT INTO {t:Identifier} FORMAT TSV\n1", "TSV", b"1"),
    (b'INSERT INTO "a;b" FORMAT `CSV`\n1', "CSV", b"1"),
    (b"INSERT INTO t SELECT a + 1 FROM input('a Int8') FORMAT CSV\n1", "CSV", b"1"),
    (b"INSERT INTO t", "Values", b""),
]


@pytest.mark.parametrize(("text", "name", "rows"), INSERTS)
def test_insert_with_rows(text, name, rows):
    statement = parse(text, complete=True)
    assert (statement.verb, statement.format) == (Verb.INSERT_ROWS, name)
    assert text[statement.data_start :] == rows


@pytest.mark.parametrize(("text", "name", "rows"), INSERTS[:-1])
def test_insert_head_is_found_in_any_piece(text, name, rows):
    whole = parse(text, complete=True)
    for size in range(len(text)):
        early = parse(text[:size], complete=False)
        if early is not None:
            assert (early.text, early.format) == (whole.text, name)
            assert early.data_start == whole.data_start


@pytest.mark.parametrize(
    "text",
    [
        b"INSERT INTO t SELECT 1",
        b"INSERT INTO t SELECT format FROM s",
        b"INSERT INTO t WITH x AS (SELECT 1) SELECT * FROM x",
        b"WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
        b"INSERT INTO t SELECT * FROM VALUES('a Int8', 1)",
        b"INSERT INTO t (SELECT 1)",
    ],
)
def test_insert_select_is_a_query(text):
    statement = parse(text, complete=True)
    assert statement.verb is Verb.OTHER
    assert statement.text == text
    assert not statement.reads_only


@pytest.mark.parametrize(
    ("text", "name", "head"),
    [
        (b"SELECT 1", None, b"SELECT 1"),
        (b"SELECT 1;", None, b"SELECT 1"),
        (b"SELECT 1 FORMAT JSON", "JSON", b"SELECT 1 "),
        (b"SELECT 1 FORMAT JSON SETTINGS max_threads = 1;", "JSON", b"SELECT 1 "),
        (b"SELECT 'FORMAT CSV' AS format", None, b"SELECT 'FORMAT CSV' AS format"),
        (b"SELECT format FROM t", None, b"SELECT format FROM t"),
        (b"SELECT * FROM format f", None, b"SELECT * FROM format f"),
        (b"(SELECT 1 FORMAT) UNION (SELECT 2)", None, b"(SELECT 1 FORMAT) UNION (SELECT 2)"),
        (b"WITH 1 AS x SELECT x format TSV -- end", "TSV", b"WITH 1 AS x SELECT x "),
        (b"FROM t SELECT * FORMAT Null", "Null", b"FROM t SELECT * "),
        (b"SELECT $$;FORMAT$$ FORMAT CSV", "CSV", b"SELECT $$;FORMAT$$ "),
    ],
)  # fmt: skip
def test_select(text, name, head):
    statement = parse(text, complete=True)
    assert (statement.verb, statement.format) == (Verb.SELECT, name)
    assert statement.text[: statement.cut] == head
    assert statement.reads_only


@pytest.mark.parametrize(
    ("text", "verb", "reads"),
    [
        (b"KILL QUERY WHERE query_id = 'x'", Verb.KILL, False),
        (b"SHOW TABLES", Verb.OTHER, True),
        (b"EXPLAIN SELECT 1", Verb.OTHER, True),
        (b"CREATE TABLE t (a Int8) ENGINE = Memory", Verb.OTHER, False),
        (b"ALTER TABLE t DELETE WHERE 1", Verb.OTHER, False),
    ],
)
def test_other_statements(text, verb, reads):
    statement = parse(text, complete=True)
    assert (statement.verb, statement.reads_only) == (verb, reads)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"", 62),
        (b" ; ", 62),
        (b"-- only a comment", 62),
        (b"SELECT 1; SELECT 2", 62),
        (b"INSERT INTO t FORMAT CSV;\n1", 62),
        (b"SELECT 1 INTO OUTFILE 'x'", 358),
        (b"INSERT INTO t FROM INFILE 'x' FORMAT CSV", 78),
    ],
)
def test_refused(text, number):
    with pytest.raises(EngineError) as refused:
        parse(text, complete=True)
    assert refused.value.number == number


def test_results_go_to_the_pipe():
    statement = parse(b"SELECT 1 -- end", complete=True)
    assert select_into(statement, 7, "TSV") == (
        b"SELECT 1 -- end\n INTO OUTFILE '/dev/fd/7' APPEND FORMAT `TSV`"
    )


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        (
            b"INSERT INTO t (a) SETTINGS b=1 FORMAT CSV\n1",
            (
                b"INSERT INTO t (a) \nFROM INFILE '/dev/fd/7' COMPRESSION 'none' "
                b"SETTINGS b=1 \nFORMAT `CSV`"
            ),
        ),
        (
            b"INSERT INTO t SELECT a FROM input('a Int8') FORMAT CSV\n1",
            b"INSERT INTO t SELECT a FROM file('/dev/fd/7', 'CSV', 'a Int8') ",
        ),
    ],
)
def test_rows_come_from_the_pipe(text, sql):
    assert insert_from(parse(text, complete=True), 7) == sql


def test_kill_names_the_engine_s_query():
    text = b"KILL QUERY WHERE query_id = 'mine' OR query_id IN ('yours', 'mine')"
    assert kill_by_engine_ids(text, {"mine": "e1"}) == (
        b"KILL QUERY WHERE query_id = 'e1' OR query_id IN ('yours', 'e1')"
    )


@given(st.text())
def test_quoting_and_back(value):
    encoded = value.encode("utf-8", "replace").decode()
    for quote in (quote_string, quote_name):
        (token,) = tokens(quote(encoded).encode())
        assert unquote(token.value) == encoded


@given(st.binary())
def test_any_bytes_are_cut_into_tokens_in_order(text):
    end = 0
    for token in tokens(text):
        assert token.start >= end
        assert token.value == text[token.start : token.end]
        end = token.end


def test_split_list():
    assert split_list("Decimal(10,2), String,Enum8('a,b'=1)") == [
        "Decimal(10,2)",
        "String",
        "Enum8('a,b'=1)",
    ]
