"""Cursors: opaque texts that come back as they went, and are refused elsewhere."""

import base64
from dataclasses import replace

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
from support.errors import raises_naming

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
def test_any_other_text_is_invalid(text):
    with pytest.raises(PositionInvalidError):
        decode_cursor(text, ORIGIN)


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
    "content",
    [
        b"[" * 100_000,
        b'[[[1, -1, ["acme"]]], null, 5]',
        b'[[[Infinity, -1, ["acme"]]]]',
        b'[[[1e40, -1, ["acme"]]]]',
        b'[[[-2, -1, ["acme"]]]]',
        b'[[[1, -9223372036854775809, ["acme"]]]]',
    ],
)
def test_a_signed_cursor_that_no_server_makes_is_invalid(content):
    whole = bytes([_FORMAT]) + b"".join(ORIGIN.signs) + content
    text = base64.urlsafe_b64encode(whole + _compute_digest(whole)).decode().rstrip("=")
    with pytest.raises(PositionInvalidError):
        decode_cursor(text, ORIGIN)


@pytest.mark.parametrize(
    ("change", "error", "code"),
    [
        ({"index": "shop.trades/all"}, PositionInvalidError, "POSITION_INVALID"),
        ({"table_id": "other"}, PositionExpiredError, "POSITION_EXPIRED"),
        ({"generation": 3}, PositionExpiredError, "POSITION_EXPIRED"),
    ],
)
def test_a_cursor_of_another_table_is_invalid_and_of_an_earlier_life_expired(change, error, code):
    text = encode_cursor(build_cursor({"acme": ChangePosition(3, 1)}), ORIGIN)
    origin = replace(ORIGIN, **change)
    with raises_naming(error, origin.index) as caught:
        decode_cursor(text, origin)
    assert caught.value.extensions["code"] == code


def test_a_cursor_of_one_tenant_fits_a_close_frame():
    text = encode_cursor(build_cursor({"default": ChangePosition(123_456_789, 1_000)}), ORIGIN)
    assert len(text) < 90


def test_a_cursor_of_many_tenants_names_only_those_elsewhere():
    many = {f"tenant {n}": ChangePosition(40) for n in range(10_000)} | {"late": ChangePosition(3)}
    cursor = build_cursor(many, newest_registration=77)
    assert cursor.positions == {"late": ChangePosition(3)}
    assert cursor.common_position == ChangePosition(40)
    assert len(encode_cursor(cursor, ORIGIN)) < 120
    assert cursor.get_position("late", 5) == ChangePosition(3)
    assert cursor.get_position("tenant 1", 77) == ChangePosition(40)
    assert cursor.get_position("new", 78) == START


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
    base = ChangePosition.from_base(4, 2)
    assert is_kept(base, 4)
    assert not is_kept(base, 5)
    assert [each.base_sent for each in (START, base, ChangePosition(4))] == [0, 2, None]
    assert ChangePosition(4, 7) < ChangePosition.from_commit(4) < ChangePosition(5, 0)
