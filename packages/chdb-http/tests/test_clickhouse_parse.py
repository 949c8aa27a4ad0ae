"""The embedded server recognizes statements without the engine."""

import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chdb_http.engine.reach import detect_file_access
from chdb_http.sql.errors import Code, EngineError
from chdb_http.sql.parse import parse
from chdb_http.sql.rewrite import build_insert_from_pipe, build_select_into_pipe, replace_query_ids
from chdb_http.sql.statement import Verb
from chdb_http.sql.tokens import (
    iter_steps,
    iter_tokens,
    quote_name,
    quote_string,
    split_list,
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
    (b"INSERT INTO settings SETTINGS async_insert=0 VALUES (1)", "Values", b" (1)"),
    (b"INSERT INTO t /* /* VALUES */ ; */ FORMAT CSV\n1", "CSV", b"1"),
    (b"INSERT INTO t // ' VALUES\n FORMAT CSV\n1", "CSV", b"1"),
    (b"INSERT\xc2\xa0INTO t FORMAT CSV\n1", "CSV", b"1"),
    (b"INSERT INTO t", "Values", b""),
]


@pytest.mark.parametrize(("text", "name", "rows"), INSERTS)
def test_insert_with_rows(text, name, rows):
    statement = parse(text, complete=True)
    assert (statement.verb, statement.format) == (Verb.INSERT_ROWS, name)
    assert text[statement.data_start :] == rows


def test_rows_are_not_parsed_as_part_of_the_statement():
    """As part of the statement, these rows would be refused for their many unpaired '$'."""
    rows = b"".join(b"$price%d$\n" % number for number in range(100))
    statement = parse(b"INSERT INTO t FORMAT TSV\n" + rows, complete=True)
    assert statement.text == b"INSERT INTO t FORMAT TSV"


@pytest.mark.parametrize(("text", "name", "rows"), INSERTS[:-1])
def test_the_head_of_an_insert_is_found_in_any_piece(text, name, rows):
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
        (b"SELECT a, table FORMAT TSV", "TSV", b"SELECT a, table "),
        (b"SELECT * FROM table FORMAT TSV", "TSV", b"SELECT * FROM table "),
        (b"SELECT 1 FROM t GROUP BY table FORMAT TSV", "TSV", b"SELECT 1 FROM t GROUP BY table "),
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
        (b"SET a = 1 parallel /**/ WITH DROP TABLE t", Verb.OTHER, False),
        (b"SHOW TABLES PARALLEL WITH (DROP TABLE t)", Verb.OTHER, False),
        (b"SELECT a FROM t GROUP BY parallel WITH TOTALS", Verb.SELECT, True),
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
    with pytest.raises(EngineError) as caught:
        parse(text, complete=True)
    assert caught.value.number == number


def test_a_result_is_written_to_the_pipe():
    statement = parse(b"SELECT 1 -- end", complete=True)
    assert build_select_into_pipe(statement, 7, "TSV") == (
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
            b"INSERT INTO settings FORMAT CSV\n1",
            b"INSERT INTO settings \nFROM INFILE '/dev/fd/7' COMPRESSION 'none' \nFORMAT `CSV`",
        ),
        (
            b"INSERT INTO t SELECT a FROM input('a Int8') FORMAT CSV\n1",
            b"INSERT INTO t SELECT a FROM file('/dev/fd/7', 'CSV', 'a Int8') ",
        ),
    ],
)
def test_rows_are_read_from_the_pipe(text, sql):
    assert build_insert_from_pipe(parse(text, complete=True), 7) == sql


def test_kill_names_the_engine_s_query():
    text = b"KILL QUERY WHERE query_id = 'mine' OR query_id IN ('yours', 'mine')"
    assert replace_query_ids(text, {"mine": "e1"}) == (
        b"KILL QUERY WHERE query_id = 'e1' OR query_id IN ('yours', 'e1')"
    )


@given(st.text())
def test_quoting_and_back(value):
    encoded = value.encode("utf-8", "replace").decode()
    for quote in (quote_string, quote_name):
        (token,) = iter_tokens(quote(encoded).encode())
        assert unquote(token.value) == encoded


@given(st.binary())
def test_any_bytes_are_split_into_tokens_in_order(text):
    end = 0
    for token in iter_tokens(text):
        assert token.start >= end
        assert token.value == text[token.start : token.end]
        end = token.end


def test_split_list():
    types = ["Decimal(10,2)", "String", "Enum8('a,b'=1)"]
    assert split_list("Decimal(10,2), String,Enum8('a,b'=1)") == types


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b"1 // it's\n2", [b"1", b"2"]),
        (b"1 /* /* ' */ ; */ 2 /*/ 3 */", [b"1", b"2"]),
        (b"1 #! a\n2 # b\n3 #c", [b"1", b"2", b"3", b"#", b"c"]),
        (b"$a$;'$a$ $b$; $$", [b"$a$;'$a$", b"$b$", b";", b"$", b"$"]),
        (b"x'41';B'01'; x'4z'", [b"x'41'", b";", b"B'01'", b";"]),
        (
            "\u2018a;b\u2019 \u201cc;d\u201d".encode(),
            ["\u2018a;b\u2019".encode(), "\u201cc;d\u201d".encode()],
        ),
        ("a\u00a0\u2003\ufeffb".encode(), [b"a", b"b"]),
        (b"'a\\'b''c' `d``e` \"f\"\"g\"", [b"'a\\'b''c'", b"`d``e`", b'"f""g"']),
    ],
)
def test_tokens_are_the_engine_s(text, values):
    assert [token.value for token in iter_tokens(text)] == values


LONG = {
    "a string": lambda size: b"SELECT '%b'" % (b"x" * size),
    "escapes": lambda size: b"SELECT '%b'" % (b"\\'" * (size // 2)),
    "a name": lambda size: b"SELECT `%b`" % (b"``" * (size // 2)),
    "a here string": lambda size: b"SELECT $a$%b$a$" % (b"$b" * (size // 2)),
    "a comment": lambda size: b"SELECT 1 /*%b*/" % (b"/**/" * (size // 4)),
    "a line": lambda size: b"SELECT 1 -- %b" % (b"x" * size),
    "blanks": lambda size: b"SELECT 1%b" % (b" " * size),
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("size", [0, 4090, 4094, 4096, 4098, 8192, 100_000])
def test_a_long_token_is_read_completely(kind, size):
    text = LONG[kind](size)
    *_, last = iter_tokens(text + b"\n;")
    assert (last.value, last.start) == (b";", len(text) + 1)
    assert max(len(list(step)) for step in iter_steps(text)) < 2000


@pytest.mark.parametrize(
    "text",
    [b"SELECT " + b"a" * 5000, b"SELECT " + b" ".join(b"$a%d$" % at for at in range(1000))],
    ids=["a long name", "dollars that end no string"],
)
def test_a_statement_that_takes_too_long_to_split_is_refused(text):
    with pytest.raises(EngineError) as caught:
        parse(text, complete=True)
    assert caught.value.number == Code.SYNTAX_ERROR
    assert ("$" in caught.value.detail) is (b"$" in text)


HOSTILE = {
    "brackets": lambda size: b"SELECT " + b"(" * size,
    "insert": lambda size: b"INSERT INTO t (" + b"a," * size,
    "with": lambda size: b"WITH x AS (SELECT 1) " + b"INSERT ( " * size,
    "ids": lambda size: b"SELECT 1 IN (%b)" % b",".join(b"%d" % at for at in range(size)),
    "floats": lambda size: b"SELECT [%b]" % b", ".join(b"0.%d" % at for at in range(size)),
    "formats": lambda size: b"SELECT 1 " + b"FORMAT a " * size,
    "dollars": lambda size: b"SELECT " + b"$$ " * size + b"$",
    "blanks": lambda size: b"INSERT INTO t FORMAT CSV" + b" " * 50 * size,
}


def assert_linear(call, make_text, size):
    """Sixteen times the text does not take much more than sixteen times as long."""

    def measure(size):
        text = make_text(size)
        started = time.thread_time()
        call(text)
        return time.thread_time() - started

    short = min(measure(size) for _ in range(5))
    long = min(measure(16 * size) for _ in range(2))
    assert long < 80 * short, "quadratic time would be 256 times as long"


@pytest.mark.parametrize("kind", HOSTILE)
def test_parsing_takes_linear_time(kind):
    assert_linear(lambda text: parse(text, complete=True), HOSTILE[kind], 1000)


CALLS = {
    "tables": lambda size: b"SELECT " + b"loop(" * size,
    "columns": lambda size: b"SELECT " + b"x.file(" * size,
    "lists": lambda size: b"SELECT " + b"loop([a, b], " * size,
    "folders": lambda size: b"SELECT url " + b"FROM 'a' " * size,
}


@pytest.mark.parametrize("kind", CALLS)
def test_checking_calls_takes_linear_time(kind):
    def check(text):
        with suppress(EngineError):
            detect_file_access(text, [Path("/data/user_files")])

    assert_linear(check, CALLS[kind], 200)
