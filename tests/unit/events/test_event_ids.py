"""Ids and keys of events: golden values, no collisions, no ambiguity."""

import base64
import hashlib
import re
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.events.ids import ALGORITHMS, FORMS, IdScheme
from iscp_dagster.events.keys import make_event_key
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.errors import ConfigError, KeyColumnError
from support.errors import raises_naming
from support.paths import DOCS

AT = SourceTimestamp(nanos=1705316445123456789, version=7)
TEXT = "large_trade_alert:123:1705316445123456789"
NASTY = st.text(alphabet=st.sampled_from(':,."[]\\ a1é'), max_size=6) | st.text(max_size=6)
SCHEME = IdScheme()
VALUES = {
    "text": NASTY,
    "number": st.integers(-(2**63), 2**63 - 1),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False, places=2),
    "double": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "date": st.dates(),
    "time": st.datetimes(timezones=st.just(timezone.utc)),
    "ntz": st.datetimes(),
    "binary": st.binary(max_size=4),
}


@st.composite
def two_keys(draw):
    """Draw two (tenant, key) pairs of one table: equally shaped, often nearly the same."""
    columns = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    tenants = NASTY if draw(st.booleans()) else st.none()
    one = (draw(tenants), [draw(VALUES[each]) for each in columns])
    other = (
        draw(tenants | st.just(one[0])),
        [draw(VALUES[c] | st.just(v)) for c, v in zip(columns, one[1], strict=True)],
    )
    return one, other


@given(two_keys())
def test_no_two_rows_of_a_table_have_one_key(pair):
    one, other = pair
    assert (make_event_key(*one) == make_event_key(*other)) == (one == other)


TRIGGERS = NASTY.filter(lambda name: name and ":" not in name)
EVENTS = st.tuples(TRIGGERS, NASTY, st.integers(0))


@given(EVENTS, EVENTS)
def test_trigger_key_and_timestamp_do_not_run_into_each_other(one, other):
    ids = [
        SCHEME.make_event_id(trigger, key, SourceTimestamp(nanos=nanos, version=1))
        for trigger, key, nanos in (one, other)
    ]
    assert (ids[0] == ids[1]) == (one == other)


@pytest.mark.parametrize(
    ("tenant", "values", "text"),
    [
        (None, [123], "123"),
        (None, ["a:b"], "a:b"),
        ("acme", [1], '["acme","1"]'),
        (None, ["eu", 7], '[null,"eu","7"]'),
        ("é", ['say "x"', True], '["é","say \\"x\\"","true"]'),
        (None, [Decimal("1.50")], "1.5"),
        (None, [Decimal("1E+3")], "1000"),
        (None, [Decimal("-0.00")], "0"),
        (None, [-0.0], "0"),
        (None, [0.1], "0.1"),
        (None, [7.0], "7"),
        (None, [date(2024, 1, 15)], "2024-01-15"),
        (None, [datetime.fromisoformat("2024-01-15")], "2024-01-15T00:00:00.000000"),
        (
            None,
            [datetime(2024, 1, 15, 10, tzinfo=timezone(timedelta(hours=1)))],
            "2024-01-15T09:00:00.000000Z",
        ),
        (None, [b"\x00\xff"], "00ff"),
    ],
)
def test_a_key_is_written_as_documented(tenant, values, text):
    assert make_event_key(tenant, values) == text


@pytest.mark.parametrize("value", [None, [1], {"a": 1}])
def test_a_null_or_compound_key_is_refused(value):
    with raises_naming(KeyColumnError, repr(value), type(value).__name__):
        make_event_key("acme", [value])


def test_a_row_without_a_key_is_refused():
    with pytest.raises(KeyColumnError):
        make_event_key("acme", [])


def test_each_algorithm_and_form_does_as_its_name_says():
    digests = {
        "sha256": hashlib.sha256(TEXT.encode()).digest()[:16],
        "blake2b": hashlib.blake2b(TEXT.encode(), digest_size=16).digest(),
        "xxh3_128": xxhash.xxh3_128(TEXT.encode()).digest(),
    }
    event = "large_trade_alert", "123", AT
    assert set(digests) == set(ALGORITHMS)
    for algorithm, digest in digests.items():
        assert IdScheme(algorithm=algorithm).make_event_id(*event) == digest.hex()
        short = IdScheme(algorithm=algorithm, form="base64url", prefix="prod-eu")
        prefix, _, text = short.make_event_id(*event).partition("_")
        assert prefix == "prod-eu"
        assert base64.urlsafe_b64decode(f"{text}==") == digest


@given(
    st.sampled_from(sorted(ALGORITHMS)),
    st.sampled_from(sorted(FORMS)),
    st.from_regex(r"[A-Za-z0-9_-]{0,40}", fullmatch=True),
    NASTY,
)
def test_an_id_fits_a_header_and_a_signed_text(algorithm, form, prefix, key):
    scheme = IdScheme(algorithm=algorithm, form=form, prefix=prefix)
    event_id = scheme.make_event_id("alert", key, AT)
    assert re.fullmatch(r"[A-Za-z0-9_-]{22,73}", event_id)


def test_the_id_of_a_batch_follows_from_its_events_in_their_order():
    make_id = IdScheme(prefix="eu").make_batch_id
    assert make_id(["eu_a", "eu_b"]) == make_id(("eu_a", "eu_b")) != make_id(["eu_b", "eu_a"])
    assert make_id(["a"]) != make_id(["a", "a"])
    assert SCHEME.make_batch_id(["x"]) == hashlib.sha256(b":x").hexdigest()[:32]
    with pytest.raises(ConfigError):
        make_id([])


def test_a_scheme_is_read_from_the_environment():
    assert IdScheme.from_environment({}) == IdScheme.parse(" ") == SCHEME
    environ = {"ISCP_EVENT_IDS": "algorithm=xxh3_128, prefix=prod_eu,form=base64url"}
    expected = IdScheme(algorithm="xxh3_128", prefix="prod_eu", form="base64url")
    assert IdScheme.from_environment(environ) == expected


@pytest.mark.parametrize(
    ("text", "culprits"),
    [
        ("algorithm=md5", ("algorithm", "'md5'", "sha256, blake2b, xxh3_128")),
        ("form=base32", ("form", "'base32'", "hex, base64url")),
        ("prefix=eu.west", ("prefix", "'eu.west'")),
        ("sha256", ("ISCP_EVENT_IDS='sha256'", "algorithm=sha256")),
        ("form=hex,form=hex", ("ISCP_EVENT_IDS='form=hex,form=hex'", "'form=hex'")),
    ],
)
def test_a_wrong_scheme_is_refused(text, culprits):
    with raises_naming(ConfigError, *culprits):
        IdScheme.parse(text)


@pytest.mark.parametrize("name", ["", "a:b"])
def test_a_trigger_with_an_ambiguous_name_is_refused(name):
    with raises_naming(ConfigError, "trigger", repr(name)):
        SCHEME.make_event_id(name, "1", AT)


def test_the_example_of_the_page_holds():
    page = (DOCS / "event-ids.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(block, {})
