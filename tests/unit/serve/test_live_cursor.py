"""Cursors: opaque texts that come back as they went, and are refused elsewhere."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.serve.live.cursor import (
    _FORMAT,
    MOST_NAMED,
    CursorOrigin,
    SubscriptionCursor,
    _compute_digest,
    build_cursor,
    decode_cursor,
    encode_cursor,
)
from iscp_dagster.serve.live.errors import PositionExpiredError, PositionInvalidError
from iscp_dagster.serve.live.positions import START, ChangePosition, is_kept

ORIGIN = CursorOrigin(index="shop.trades/big", table_id="1234", generation=2)
places = st.builds(ChangePosition, st.integers(-1, 2**63 - 1), st.integers(-1, 2**31))
positions = st.dictionaries(st.text(max_size=8), places, max_size=5)
rows = st.none() | st.lists(st.text(max_size=5), max_size=3).map(tuple)


@settings(max_examples=50)
@given(positions, rows, st.none() | places)
def test_a_cursor_comes_back_as_it_went(named, row, others):
    newest = 0 if others is None else 7
    cursor = SubscriptionCursor(
        positions=named, row=row, common_position=others, newest_registration=newest
    )
    assert decode_cursor(encode_cursor(cursor, ORIGIN), ORIGIN) == cursor


@settings(max_examples=50)
@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda b: base64.b64encode(b).decode()))
def test_what_is_no_cursor_is_invalid(text):
    with pytest.raises(PositionInvalidError) as error:
        decode_cursor(text, ORIGIN)
    assert error.value.extensions["code"] == "POSITION_INVALID"


@settings(max_examples=50)
@given(st.data())
def test_a_damaged_cursor_is_invalid(data):
    text = encode_cursor(build_cursor({"acme": ChangePosition(3, 1)}), ORIGIN)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("AZaz09-_").filter(lambda each: each != text[at]))
    damaged = f"{text[:at]}{other}{text[at + 1 :]}"
    try:
        # The last character has spare bits.
        assert decode_cursor(damaged, ORIGIN) == decode_cursor(text, ORIGIN)
        assert at == len(text) - 1
    except PositionInvalidError:
        pass


@pytest.mark.parametrize(
    "said",
    [
        b"[" * 100_000,
        b'[[[1, -1, ["acme"]]], null, 5]',
        b'[[[Infinity, -1, ["acme"]]]]',
        b'[[[1e40, -1, ["acme"]]]]',
        b'[[[-2, -1, ["acme"]]]]',
        b'[[[1, -9223372036854775809, ["acme"]]]]',
    ],
)
def test_a_cursor_that_says_what_no_server_says_is_invalid(said):
    whole = bytes([_FORMAT]) + b"".join(ORIGIN.signs) + said
    text = base64.urlsafe_b64encode(whole + _compute_digest(whole)).decode().rstrip("=")
    with pytest.raises(PositionInvalidError):
        decode_cursor(text, ORIGIN)


def test_a_cursor_of_another_table_is_invalid_and_of_an_earlier_life_expired():
    text = encode_cursor(build_cursor({"acme": ChangePosition(3, 1)}), ORIGIN)
    expected = r"another table or view, not to shop\.trades/all"
    with pytest.raises(PositionInvalidError, match=expected):
        decode_cursor(text, CursorOrigin(index="shop.trades/all", table_id="1234", generation=2))
    for life in ({"table_id": "other"}, {"generation": 3}):
        held = {"index": ORIGIN.index, "table_id": "1234", "generation": 2} | life
        with pytest.raises(PositionExpiredError, match="was rebuilt"):
            decode_cursor(text, CursorOrigin(**held))


def test_a_cursor_of_one_tenant_fits_a_close_frame():
    text = encode_cursor(build_cursor({"default": ChangePosition(123_456_789, 1_000)}), ORIGIN)
    assert len(text) < 90


def test_a_cursor_of_many_tenants_names_the_few_that_are_elsewhere():
    many = {f"tenant {n}": ChangePosition(40) for n in range(10_000)} | {"late": ChangePosition(3)}
    cursor = build_cursor(many, newest_registration=77)
    assert (cursor.positions, cursor.common_position) == (
        {"late": ChangePosition(3)},
        ChangePosition(40),
    )
    assert len(encode_cursor(cursor, ORIGIN)) < 120
    assert [
        cursor.get_position(*each) for each in [("late", 5), ("tenant 1", 77), ("new", 78)]
    ] == [
        ChangePosition(3),
        ChangePosition(40),
        START,
    ]


def test_a_cursor_of_few_tenants_names_them_all():
    few = {f"{n}": ChangePosition(n % 3) for n in range(MOST_NAMED)}
    cursor = build_cursor(few, newest_registration=77)
    assert (cursor.positions, cursor.common_position) == (few, None)
    assert cursor.get_position("unknown", 1) == START


def test_a_position_has_expired_if_the_history_begins_after_it():
    assert is_kept(ChangePosition(5), 4)
    assert not is_kept(ChangePosition(4, 7), 4)
    assert is_kept(START, 4)
    assert is_kept(ChangePosition(2), None)
    assert is_kept(ChangePosition.from_base(4, 2), 4)
    assert not is_kept(ChangePosition.from_base(4, 2), 5)
    assert [
        each.base_sent for each in (START, ChangePosition.from_base(4, 2), ChangePosition(4))
    ] == [
        0,
        2,
        None,
    ]
    assert ChangePosition(4, 7) < ChangePosition.from_commit(4) < ChangePosition(5, 0)
