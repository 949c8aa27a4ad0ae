"""Searching a text piece by piece finds the same as searching the whole."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from chdb_http.engine.reach import EXPRESSIONS, detect_file_access
from chdb_http.sql.errors import EngineError
from chdb_http.sql.pieces import PIECE, is_found, remove_escapes

OPENING = re.compile(rb"[{,.]\s*\Z")
DOTS = re.compile(rb"file|[{,]\s*\.")


@given(
    st.integers(0, 3 * PIECE), st.sampled_from([b"file", b"{.", b", .", b"{" + b" " * 40 + b"."])
)
@example(PIECE - 2, b"file")
@example(PIECE + 62, b"file")
@example(2 * PIECE - 1, b"{.")
def test_a_match_is_found_at_any_position(before, match):
    assert is_found(DOTS, b"x" * before + match + b"x" * 100, OPENING)


@given(st.integers(0, 3 * PIECE), st.integers(0, 3 * PIECE))
def test_a_match_longer_than_a_piece_is_found(before, blanks):
    assert is_found(DOTS, b"x" * before + b"{" + b" " * blanks + b".", OPENING)


@given(st.integers(0, 3 * PIECE))
def test_a_text_without_a_match_has_none(size):
    # A "{" that ends a piece, 64 bytes after the next one's start, may begin a match.
    assume((size + 1) % PIECE != 64)
    text = b"y" * size + b"{x"
    assert not is_found(DOTS, text, OPENING)
    assert not is_found(DOTS, b"a.", OPENING)
    assert not is_found(DOTS, b"", OPENING)


@given(st.lists(st.sampled_from([b"\\", b"a", b"\\\\", b"'"])).map(b"".join))
def test_escapes_are_removed_as_by_the_expression(value):
    assert remove_escapes(value) == re.sub(rb"\\(.)", rb"\1", value, flags=re.DOTALL)


LONG = 1 << 17
FOLDERS = (Path("/data/user_files"),)


@pytest.mark.parametrize(
    "inner",
    [
        b"/" * LONG + b"data/status",
        b"/." * LONG + b"/data/status",
        rb"\x2f\x2E" * LONG + b"/data/status",
        b"a" * LONG + b"/../status",
        b"{" + b" " * LONG + b"." + b",x}{.,x}/status",
    ],
)
@pytest.mark.parametrize("call", [b"file('%b')", b"deltaLakeLocal('%b')", b"`file`('%b')"])
def test_no_long_path_leads_outside(inner, call):
    with pytest.raises(EngineError) as caught:
        detect_file_access(b"SELECT * FROM " + call % inner, FOLDERS)
    assert caught.value.number == 291
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("call", [b"file('in.csv')", b"`file`('/data/user_files/a')"])
def test_a_statement_that_names_a_file_inside_reads_files(call):
    assert detect_file_access(b"SELECT * FROM " + call, FOLDERS)
    assert not detect_file_access(b"SELECT '" + call.replace(b"'", b'"') + b"'", FOLDERS)


@pytest.mark.parametrize(
    ("statement", "refused"),
    [
        (b"SELECT 1 SETTINGS %s = 1", False),
        (b"SELECT * FROM file('in.csv') SETTINGS %s = 1", True),
        (b"CREATE VIEW v AS SELECT 1 SETTINGS %s = 1", True),
    ],
)
def test_expressions_in_rows_are_refused_where_a_file_may_be_named(statement, refused):
    with pytest.raises(EngineError) if refused else nullcontext():
        detect_file_access(statement % EXPRESSIONS.encode(), FOLDERS)


@pytest.mark.parametrize("inner", [b"https://x.example/a?b=c... " * 9_000, b"0.1,0.2," * LONG])
def test_long_data_is_no_path(inner):
    detect_file_access(b"SELECT 'file', '" + inner + b"'", FOLDERS)
