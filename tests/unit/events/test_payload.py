"""The bodies of webhooks."""

import json
import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.events.hysteresis import EventType
from iscp_dagster.events.payload import TriggerEvent, to_json_value
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.errors import SchemaError
from support.errors import raises_naming


def make_event(**data):
    return TriggerEvent(
        event_id="a3f2",
        event_type=EventType.MATCH,
        trigger_name="alert",
        timestamp=datetime(2024, 1, 15, 10, 44, 54, 112999, tzinfo=timezone.utc),
        source_timestamp=SourceTimestamp(nanos=1705316445123456789, version=3, ordinal=1),
        data=data,
    )


def test_a_body_has_six_fields_in_order():
    assert make_event(id=1, name="é").encode_body().decode() == (
        '{"event_id":"a3f2","event_type":"MATCH","trigger_name":"alert",'
        '"timestamp":"2024-01-15T10:44:54.112Z","source_timestamp":"1705316445123456789",'
        '"data":{"id":1,"name":"é"}}'
    )


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (None, None),
        (True, True),
        (2**53 - 1, 2**53 - 1),
        (2**53, "9007199254740992"),
        (-(2**63), "-9223372036854775808"),
        (Decimal("1.50"), "1.50"),
        (Decimal("1E+2"), "100"),
        (1.5, 1.5),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (math.nan, "NaN"),
        (date(2024, 1, 15), "2024-01-15"),
        (datetime.fromisoformat("2024-01-15T10:00:00"), "2024-01-15T10:00:00.000000"),
        (
            datetime(2024, 1, 15, 10, tzinfo=timezone(timedelta(hours=1))),
            "2024-01-15T09:00:00.000000Z",
        ),
        (b"\x00\xff", "AP8="),
        ([1, None, 2**60], [1, None, "1152921504606846976"]),
        ({"a": Decimal("0.10")}, {"a": "0.10"}),
        ([("k", 1)], [["k", 1]]),
    ],
)
def test_each_type_has_its_form(value, form):
    assert to_json_value(value, column="c") == form
    assert json.loads(make_event(c=value).encode_body())["data"] == {"c": form}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(VALUES)
def test_a_body_is_json_that_every_reader_keeps(value):
    def refuse(text):
        raise AssertionError(text)

    def parse_int(number):
        assert abs(int(number)) <= 2**53 - 1
        return int(number)

    body = make_event(c=value).encode_body()
    json.loads(body, parse_constant=refuse, parse_int=parse_int)
    assert make_event(c=value).encode_body() == body


def test_a_value_without_a_form_is_named_with_its_column():
    with raises_naming(SchemaError, "'c[].x'", "timedelta"):
        make_event(c=[{"x": timedelta(1)}]).encode_body()
