"""Words on the real engine: what is folded, and where. docs/quickstart.md says what is not."""

import unicodedata

import pyarrow as pa
import pytest

from iscp_dagster import FullText
from iscp_dagster.clickhouse.connect.quoting import quote_string
from support.errors import assert_names
from support.lake.row_writer import (
    add_system_columns,
    build_store,
    make_fields,
    make_source,
    query,
    write,
)

DOTLESS = "\N{LATIN SMALL LETTER DOTLESS I}"
CAFE = "Caf\N{LATIN SMALL LETTER E WITH ACUTE}"
TEXTS = {
    1: "The FIRE printer",
    2: "ΟΔΟΣ",
    3: "οδος",
    4: "STRASSE",
    5: "straße",
    6: unicodedata.normalize("NFC", CAFE),
    7: unicodedata.normalize("NFD", CAFE),
    8: "İstanbul",
    9: "ISTANBUL",
    10: f"{DOTLESS}stanbul",
    11: "\N{LATIN SMALL LIGATURE FI}re",
    12: "ПРИВЕТ мир",
    13: None,
    14: "the printer is on fire",
    15: "\N{FULLWIDTH LATIN CAPITAL LETTER F}IRE",
}


@pytest.fixture(scope="module")
def store(endpoint):
    return fill_store(endpoint, "string", TEXTS)


def fill_store(endpoint, type_, texts, **options):
    """Return the store of a full-text index of these texts by id."""
    source, fields = make_source("words", tenant=None), make_fields(id="long", body=type_)
    store = build_store(endpoint, source, FullText("body", **options), fields)
    arrow = pa.binary() if type_ == "binary" else pa.string()
    # Two parts, so that folding does not depend on one.
    for version, ids in enumerate((list(texts)[::2], list(texts)[1::2]), 1):
        bodies = pa.array([texts[id_] for id_ in ids], arrow)
        table = add_system_columns({"id": ids, "body": bodies}, version=version)
        receipts = write(store, table, upto=version)
        assert not any(receipt.code for receipt in receipts), receipts
    return store


def find_ids(store, condition):
    sql = f"SELECT id FROM {{view}} WHERE {condition} ORDER BY id"
    return [id_ for (id_,) in query(store, sql)]


@pytest.mark.parametrize(
    ("word", "rows"),
    [
        ("fire", [1, 11, 14, 15]),
        ("FIRE", [1, 11, 14, 15]),
        ("Printer FIRE", [1, 14]),
        ("οδος", [2, 3]),
        ("ΟΔΟΣ", [2, 3]),
        ("οδοσ", [2, 3]),
        ("strasse", [4, 5]),
        ("STRAßE", [4, 5]),
        (unicodedata.normalize("NFC", "CAFÉ"), [6, 7]),
        (unicodedata.normalize("NFD", "café"), [6, 7]),
        ("cafe", []),
        ("istanbul", [9]),
        ("İSTANBUL", [8]),
        (f"{DOTLESS}stanbul", [10]),
        ("привет МИР", [12]),
    ],
)
def test_words_are_found_whatever_their_case(store, word, rows):
    assert find_ids(store, f"hasAllTokens(body, {quote_string(word)})") == rows


@pytest.mark.parametrize(
    "form",
    [
        "id > 0 AND {}",
        "{} OR id = 1000",
        "NOT (NOT {})",
        "id IN (SELECT id FROM {{view}} WHERE {})",
    ],
)
def test_words_are_found_in_any_condition(store, form):
    assert find_ids(store, form.format("hasAllTokens(body, 'Printer FIRE')")) == [1, 14]


def test_some_words_and_phrases_are_found_whatever_their_case(store):
    assert find_ids(store, "hasAnyTokens(body, 'ПРИВЕТ ΟΔΟΣ')") == [2, 3, 12]
    assert find_ids(store, "hasPhrase(body, 'the FIRE')") == [1]
    assert find_ids(store, "hasPhrase(body, 'Printer IS on')") == [14]
    assert find_ids(store, "hasPhrase(body, 'fire printer')") == [1]


def test_what_the_engine_does_not_fold_is_as_the_note_says(store):
    """If this fails, the engine has learned to fold there: say so in the note and the docs."""
    assert find_ids(store, "hasAllTokens(body, ['FIRE'])") == []
    assert find_ids(store, "hasAllTokens(body, ['fire'])") == [1, 11, 14, 15]
    assert query(store, "SELECT countIf(hasAllTokens(body, 'FIRE')) FROM {view}") == [(1,)]
    assert 14 in find_ids(store, "hasAllTokens(body, 'FIRE') = 0")


def test_rows_without_a_text_come_only_if_they_are_not_excluded(store):
    without = [row for row in TEXTS if row not in {1, 11, 14, 15}]
    assert find_ids(store, "NOT hasAllTokens(body, 'fire')") == without
    has_text = [row for row in without if row != 13]
    assert find_ids(store, "NOT hasAllTokens(body, 'fire') AND body IS NOT NULL") == has_text


def test_both_sides_can_be_folded_by_hand_where_the_engine_does_not(store):
    fold = "normalizeUTF8NFKCCasefold"
    has = f"hasAllTokens({fold}(body), {fold}('FIRE'))"
    assert query(store, f"SELECT countIf({has}) FROM {{view}}") == [(4,)]


def test_the_comment_of_the_view_says_where_it_folds(store):
    sql = "SELECT comment FROM system.tables WHERE database = 'words' AND name = {name:String}"
    ((comment,),) = query(store, sql, name=store.shape.view)
    assert_names(comment, "fold", "array")


def test_bytes_that_are_no_text_hold_up_nothing(endpoint):
    odd = {1: b"FIRE \xff\xfe ok", 2: b"\xc3", 3: b"", 4: None, 5: "ÉTÉ".encode()}
    store = fill_store(endpoint, "binary", odd)
    assert find_ids(store, "hasAllTokens(body, 'fire OK')") == [1]
    assert find_ids(store, "hasAllTokens(body, 'été')") == [5]


def test_texts_of_fixed_length_fold_ascii(endpoint):
    texts = {1: "FIRE now", 2: "ÉTÉ ok"}
    store = fill_store(endpoint, "string", texts, types={"body": "FixedString(8)"})
    assert find_ids(store, "hasAllTokens(body, 'fire')") == [1]
    assert find_ids(store, "hasAllTokens(body, 'été')") == []
