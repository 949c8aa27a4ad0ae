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


@given(spec=specs)
def test_a_spec_survives_json(spec):
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@given(status=statuses)
def test_a_status_survives_json(status):
    assert JobStatus.from_json(json.loads(json.dumps(status.to_json()))) == status


def test_a_spec_without_a_trigger_has_the_default_one():
    spec = JobSpec.from_json({"detail": {"consumer": CONSUMER}})
    assert spec.trigger == TriggerSpec(job_type="default", schedule={}, independent=False)
    assert spec.detail.priority == 0
    assert hash(spec) == hash(JobSpec.from_json(spec.to_json()))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], r"job spec \[\] is not a JSON object"),
        ({}, "job spec lacks the field 'detail'"),
        ({"detail": {}}, "detail lacks the field 'consumer'"),
        ({"detail": {"consumer": {}}}, "consumer lacks the field 'db'"),
        (
            {"detail": {"consumer": CONSUMER, "prio": 1}},
            "unknown field 'prio'; it has: priority, consumer",
        ),
        ({"detail": {"consumer": CONSUMER, "priority": "high"}}, "'high' is not a whole number"),
        ({"detail": {"consumer": CONSUMER, "priority": True}}, "True is not a whole number"),
        ({"detail": {"consumer": CONSUMER, "priority": 2**31}}, "2147483648 is out of bounds"),
        (
            {"detail": {"consumer": CONSUMER, "priority": -(2**31)}},
            "from -2147483647 to 2147483647",
        ),
        ({"detail": {"consumer": {**CONSUMER, "db": ""}}}, "consumer's db '' is not a name"),
        ({"detail": {"consumer": {**CONSUMER, "columns": "ab"}}}, "'ab' are not a list"),
        ({"detail": {"consumer": {**CONSUMER, "columns": [1]}}}, "column 1 is not a name"),
        (
            {"detail": {"consumer": CONSUMER}, "trigger": {"job_type": ""}},
            "job_type is empty",
        ),
        (
            {"detail": {"consumer": CONSUMER}, "trigger": {"schedule": "10s"}},
            "schedule '10s' is not a mapping",
        ),
        (
            {"detail": {"consumer": CONSUMER}, "trigger": {"independent": "yes"}},
            "independent 'yes' is not a bool",
        ),
    ],
)
def test_a_wrong_spec_names_what_is_wrong(value, message):
    with pytest.raises(ConfigError, match=message):
        JobSpec.from_json(value)


@pytest.mark.parametrize("part", ["db", "table", "job"])
@pytest.mark.parametrize("value", ["", "a\nb", "a\0", None, 7])
def test_a_job_name_has_printable_parts(part, value):
    parts = {"db": "d", "table": "t", "job": "j", part: value}
    with pytest.raises(ConfigError, match=f"job name's {part} .* is not a name"):
        JobID(**parts)


def test_a_tenant_is_any_storable_text():
    for tenant in ("", "a\nb", "ñ/🌍", "x" * 1_024):
        assert JobKey(tenant=tenant, table_id="t", job_name="j").tenant == tenant
    for tenant in ("a\0b", "\ud800", None, "x" * 1_025, "ü" * 513):
        with pytest.raises(ConfigError, match=r"^The tenant .{1,120} cannot be stored"):
            JobKey(tenant=tenant, table_id="t", job_name="j")


@given(text=st.text(alphabet=st.characters(categories=["Cs", "Cc", "L"])))
def test_storable_text_is_utf8_without_nul(text):
    assert "\0" not in to_sql_text(text)
    assert to_sql_text(text).encode().decode() == to_sql_text(text)


def transition_table() -> str:
    states = [None, *JobState]
    lines = [
        " " * 17 + "".join(f"{'(no row)' if s is None else s.label:<11}" for s in states).rstrip()
    ]
    for event, transition in TRANSITIONS.items():
        cells = [
            get_next_state(event, s, "j").label if s in transition.allowed else "-" for s in states
        ]
        lines.append(f"{event.value:<17}" + "".join(f"{cell:<11}" for cell in cells).rstrip())
    return "# The state that an event leads to, by the state it happens in.\n\n" + "".join(
        f"{line}\n" for line in lines
    )


def test_the_transition_table():
    assert set(TRANSITIONS) == set(Event)
    assert transition_table() == TABLE.read_text()


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", [None, *JobState])
def test_an_event_leads_where_the_table_says_or_is_refused(event, state):
    transition = TRANSITIONS[event]
    if state in transition.allowed:
        target = state if transition.target is None else transition.target
        assert get_next_state(event, state, "j") is target
        return
    shown = "unregistered" if state is None else state.label
    with pytest.raises(TransitionError, match=rf"Job j: cannot {event.value} in state {shown};"):
        get_next_state(event, state, "j")


def test_the_stored_numbers_of_states_never_change():
    assert [(state.label, int(state)) for state in JobState] == [
        ("pending", 0),
        ("running", 1),
        ("canceled", 2),
        ("error", 3),
        ("completed", 4),
    ]


RANGE = Range(from_=Moment(4, 100), to=Moment(8, 200))


def test_tokens_never_change():
    # A token stored in ClickHouse by an earlier release must still be recognized.
    assert (
        make_chunk_token(7, ["acme"], RANGE, 0, 1, "c0ffee") == "fa9a11208da0be33055e8fd486313ccd"
    )
    assert make_chunk_token(7, {"ñ", "a"}, RANGE, 3, 0, "") == "0f070f505ebfc051719bda96d29cf28f"


def test_a_token_depends_on_all_but_the_order_of_tenants_and_the_times():
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
