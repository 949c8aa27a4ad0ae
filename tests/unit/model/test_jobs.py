"""Job ids, specs, statuses, states, tokens and ids."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.clickhouse.write.tokens import make_chunk_token
from iscp_dagster.model.batch import Range
from iscp_dagster.model.clock import get_utc_now, make_id
from iscp_dagster.model.errors import ConfigError, TransitionError
from iscp_dagster.model.jobs import JobID, JobKey, JobStatus, to_sql_text
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import (
    MOST_PRIORITY,
    ConsumerInfo,
    IterationDetail,
    JobSpec,
    TriggerSpec,
)
from iscp_dagster.model.states import TRANSITIONS, Event, JobState, get_next_state
from support.errors import assert_names, raises_naming
from support.paths import GOLDEN

TABLE = GOLDEN / "states.txt"

names = st.text(alphabet="aZ_0. '\"\\%ñ🌍", min_size=1, max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
specs = st.builds(
    JobSpec,
    trigger=st.builds(
        TriggerSpec,
        job_type=st.text(min_size=1),
        schedule=st.dictionaries(st.text(), values, max_size=3),
        independent=st.booleans(),
    ),
    detail=st.builds(
        IterationDetail,
        priority=st.integers(-MOST_PRIORITY, MOST_PRIORITY),
        consumer=st.builds(
            ConsumerInfo,
            type=names,
            table=names,
            db=names,
            job=names,
            columns=st.lists(names, max_size=3).map(tuple),
        ),
    ),
)
moments = st.builds(Moment, st.integers(-1, 2**40), st.integers(0, 2**52))
times = st.datetimes(timezones=st.just(timezone.utc))
statuses = st.builds(
    JobStatus,
    from_=st.none() | moments,
    to=st.none() | moments,
    start_at=st.none() | times,
    end_at=st.none() | times,
    code=st.integers(0, 20_000),
    message=st.text(),
    counts=st.dictionaries(st.text(), st.integers(), max_size=3),
)
CONSUMER = {"type": "mirror", "table": "t", "db": "d", "job": "j"}


@given(value=specs | statuses)
def test_a_spec_or_a_status_survives_json(value):
    assert type(value).from_json(json.loads(json.dumps(value.to_json()))) == value


def test_a_spec_without_a_trigger_has_the_default_one():
    spec = JobSpec.from_json({"detail": {"consumer": CONSUMER}})
    assert spec.trigger == TriggerSpec(job_type="default", schedule={}, independent=False)
    assert spec.detail.priority == 0
    assert hash(spec) == hash(JobSpec.from_json(spec.to_json()))


@pytest.mark.parametrize(
    ("value", "culprits"),
    [
        ([], ("job spec", "[]")),
        ({}, ("job spec", "'detail'")),
        ({"detail": {}}, ("detail", "'consumer'")),
        ({"detail": {"consumer": {}}}, ("consumer", "'db'")),
        ({"detail": {"consumer": CONSUMER, "prio": 1}}, ("'prio'", "priority, consumer")),
        ({"detail": {"consumer": CONSUMER, "priority": "high"}}, ("priority", "'high'")),
        ({"detail": {"consumer": CONSUMER, "priority": True}}, ("priority", True)),
        ({"detail": {"consumer": CONSUMER, "priority": 2**31}}, (2**31, 2**31 - 1)),
        ({"detail": {"consumer": CONSUMER, "priority": -(2**31)}}, (-(2**31), 1 - 2**31)),
        ({"detail": {"consumer": {**CONSUMER, "db": ""}}}, ("db", "''")),
        ({"detail": {"consumer": {**CONSUMER, "columns": "ab"}}}, ("columns", "'ab'")),
        ({"detail": {"consumer": {**CONSUMER, "columns": [1]}}}, ("column", 1)),
        ({"detail": {"consumer": CONSUMER}, "trigger": {"job_type": ""}}, ("job_type",)),
        ({"detail": {"consumer": CONSUMER}, "trigger": {"schedule": "1s"}}, ("schedule", "'1s'")),
        ({"detail": {"consumer": CONSUMER}, "trigger": {"independent": 1}}, ("independent", 1)),
    ],
)
def test_a_wrong_spec_names_the_field_and_its_value(value, culprits):
    with raises_naming(ConfigError, *culprits):
        JobSpec.from_json(value)


@pytest.mark.parametrize("part", ["db", "table", "job"])
@pytest.mark.parametrize("value", ["", "a\nb", "a\0", None, 7])
def test_a_job_name_has_printable_parts(part, value):
    parts = {"db": "d", "table": "t", "job": "j", part: value}
    with raises_naming(ConfigError, part, repr(value)):
        JobID(**parts)


def test_a_tenant_is_any_text_that_can_be_stored():
    for tenant in ("", "a\nb", "ñ/🌍", "x" * 1_024):
        assert JobKey(tenant=tenant, table_id="t", job_name="j").tenant == tenant
    for tenant in ("a\0b", "\ud800", None, "x" * 1_025, "ü" * 513):
        with raises_naming(ConfigError, "tenant") as caught:
            JobKey(tenant=tenant, table_id="t", job_name="j")
        assert repr(tenant)[:20] in str(caught.value)
        assert len(str(caught.value)) < 300


@given(text=st.text(alphabet=st.characters(categories=["Cs", "Cc", "L"])))
def test_storable_text_is_utf8_without_nul(text):
    assert "\0" not in to_sql_text(text)
    assert to_sql_text(text).encode().decode() == to_sql_text(text)


def describe_next_state(event: Event, state: JobState | None) -> str:
    try:
        return get_next_state(event, state, "j").label
    except TransitionError as error:
        label = "unregistered" if state is None else state.label
        assert_names(str(error), "j", event.value, label)
        return "-"


def list_transitions() -> str:
    states = [None, *JobState]
    rows = [("", ["(no row)" if state is None else state.label for state in states])]
    rows += [(event.value, [describe_next_state(event, s) for s in states]) for event in Event]
    lines = [
        f"{label:<17}" + "".join(f"{cell:<11}" for cell in cells).rstrip() for label, cells in rows
    ]
    title = "# The state that an event leads to, by the state it happens in."
    return "\n".join([title, "", *lines, ""])


def test_an_event_leads_where_the_table_says_or_is_refused():
    assert list_transitions() == TABLE.read_text()
    assert [*TRANSITIONS] == [*Event]


def test_the_stored_numbers_of_states_never_change():
    names = ["pending", "running", "canceled", "error", "completed"]
    assert [(int(state), state.label) for state in JobState] == [*enumerate(names)]


RANGE = Range(from_=Moment(4, 100), to=Moment(8, 200))


def test_tokens_never_change():
    """A token stored in ClickHouse by an earlier release must still be recognized."""
    token = make_chunk_token(7, ["acme"], RANGE, 0, 1, "c0ffee")
    assert token == "fa9a11208da0be33055e8fd486313ccd"
    assert make_chunk_token(7, {"ñ", "a"}, RANGE, 3, 0, "") == "0f070f505ebfc051719bda96d29cf28f"


def test_a_token_depends_on_all_but_times_and_the_order_of_tenants():
    token = make_chunk_token(7, ["a", "b"], RANGE, 0, 1, "x")
    assert make_chunk_token(7, {"b", "a"}, RANGE, 0, 1, "x") == token
    timeless = Range(from_=Moment(4), to=Moment(8))
    assert make_chunk_token(7, ["a", "b"], timeless, 0, 1, "x") == token
    others = {
        make_chunk_token(8, ["a", "b"], RANGE, 0, 1, "x"),
        make_chunk_token(7, ["ab"], RANGE, 0, 1, "x"),
        make_chunk_token(7, ["a,b"], RANGE, 0, 1, "x"),
        make_chunk_token(7, ["a", "b"], Range(from_=Moment(4), to=Moment(9)), 0, 1, "x"),
        make_chunk_token(7, ["a", "b"], Range(from_=Moment(3), to=Moment(8)), 0, 1, "x"),
        make_chunk_token(7, ["a", "b"], RANGE, 1, 0, "x"),
        make_chunk_token(7, ["a", "b"], RANGE, 0, 1, "y"),
        make_chunk_token(7, ["a", "b"], RANGE, 0, 1, "x", "again"),
    }
    assert len(others | {token}) == 9


def test_ids_fit_a_bigint_and_grow_with_time():
    early = make_id()
    assert 0 < early < 2**63
    assert abs((early >> 20) / 1000 - get_utc_now().timestamp()) < 60
    assert isinstance(get_utc_now(), datetime)
    assert get_utc_now().tzinfo is timezone.utc
