"""What follows from an answer: the golden table, and what it cannot show."""

import time
from datetime import timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.webhooks.answers import (
    DeliveryRules,
    EndpointAnswer,
    EndpointHealth,
    MessageVerdict,
    decide_outcome,
    parse_retry_after,
)
from runtime_support.manual_clock import NOON
from support.paths import GOLDEN

RULES = DeliveryRules(delays=(5, 300, 1_800, 7_200, 18_000, 36_000, 36_000), pausing_refusals=3)
SINGLE = (
    *(200, 202, 204, 299, 300, 301, 307, 308, 400, 401, 402, 403, 404, 405, 408, 409, 410, 413),
    *(415, 418, 422, 425, 429, 451, 500, 501, 502, 503, 504, 599, 101, 700),
)
FIRST = NOON - timedelta(hours=28)
LATER = NOON + timedelta(days=6)
FAILING = EndpointHealth(consecutive_refusals=2, failing_since=NOON)
OTHERS_ACCEPTED = EndpointHealth(failing_since=NOON - timedelta(minutes=1))


def decide(answer, *, attempt=1, first=None, health=None, random=0.5, events=1):
    """Return the outcome of an answer that came at noon."""
    health = (health or EndpointHealth()).count_answer(answer, NOON)
    asked = {"attempt": attempt, "first_failure": first, "health": health, "events": events}
    return decide_outcome(answer, **asked, now=NOON, rules=RULES, random=random)


def describe(outcome):
    after = f"in {(outcome.next_at - NOON).total_seconds():g} s" if outcome.next_at else "-"
    change = f"{outcome.change.value}: {outcome.reason}" if outcome.change else "-"
    return f"{outcome.verdict.value:<11}{after:<14}{change}".rstrip()


def render_table():
    lines = ["# What follows for the event, when it is tried again, and for the endpoint."]

    def begin(title):
        lines.extend(["", f"## {title}"])

    def add(label, answer, **options):
        answer = EndpointAnswer(status=answer) if isinstance(answer, int) else answer
        lines.append(f"{label:<34}{describe(decide(answer, **options))}")

    begin("The first attempt")
    for status in SINGLE:
        add(status, status)
    add("no connection", EndpointAnswer(text="ConnectError"))
    add("address not allowed", EndpointAnswer(text="10.0.0.1", address_denied=True))
    begin("Attempts that fail with 500, without and with the least and most jitter")
    for attempt, random in product(range(1, 10), (0.5, 0.0, 0.999_999)):
        add(f"attempt {attempt}, random {random:g}", 500, attempt=attempt, random=random)
    begin("The eighth attempt fails with 500; the first did 28 hours before")
    nothing_accepted = EndpointHealth(failing_since=FIRST)
    add("nothing was accepted since", 500, attempt=8, first=FIRST, health=nothing_accepted)
    add("others were accepted since", 500, attempt=8, first=FIRST, health=OTHERS_ACCEPTED)
    add("the first 2 minutes before", 429, attempt=8, first=NOON - timedelta(minutes=2))
    begin("Batches of two events, at their eighth attempt while others were accepted")
    for status in (200, 400, 410, 413, 415, 422, 429, 500):
        add(status, status, attempt=8, first=FIRST, health=OTHERS_ACCEPTED, events=2)
    begin("Retry-After of an answer 503")
    dates = ("Wed, 18 Jun 2025 12:02:00 GMT", "Wed, 18 Jun 2025 11:00:00 GMT")
    for header in ("120", "0", "999999999", *dates, "soon", "-5", ""):
        add(repr(header), EndpointAnswer(status=503, retry_after=header))
    begin("The endpoint's state before: refusals in a row, or failing for days")
    for status in (404, 301, 401, 429, 500, 400, 200):
        health = EndpointHealth(consecutive_refusals=2, failing_since=NOON)
        add(f"{status}, after 2 refusals", status, health=health)
    for days, status in product((4.9, 5), (500, 404, 400, 410, 200)):
        health = EndpointHealth(failing_since=NOON - timedelta(days=days))
        add(f"{status}, failing for {days} days", status, health=health)
    return "\n".join(lines) + "\n"


def test_answers_lead_to_the_outcomes_of_the_golden_file():
    assert render_table() == (GOLDEN / "answers.txt").read_text(encoding="utf-8")


@pytest.fixture
def local_time(monkeypatch):
    """Let this machine's time zone be another than that of HTTP."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/Los_Angeles")
        time.tzset()
        yield
    time.tzset()


@given(
    status=st.integers(100, 799) | st.none(),
    attempt=st.integers(1, 1_000),
    hours=st.integers(0, 1_000),
    retry_after=st.none() | st.text(max_size=12) | st.integers(0, 10**30).map(str),
    random=st.floats(0, 1, exclude_max=True),
)
def test_only_a_retry_has_a_next_time_neither_at_once_nor_after_the_longest_wait(
    status, attempt, hours, retry_after, random
):
    answer = EndpointAnswer(status=status, retry_after=retry_after)
    first = NOON - timedelta(hours=hours)
    health = EndpointHealth(failing_since=NOON - timedelta(hours=1))
    outcome = decide(answer, attempt=attempt, first=first, health=health, random=random)
    assert (outcome.next_at is not None) == (outcome.verdict is MessageVerdict.AGAIN)
    assert answer.accepted == (outcome.verdict is MessageVerdict.DELIVERED)
    if outcome.next_at is not None:
        assert 1 <= (outcome.next_at - NOON).total_seconds() <= RULES.longest_wait * 1.2


@pytest.mark.parametrize(
    ("before", "status", "after"),
    [
        # No attempt need follow for days; the next one's failure would disable it at once.
        (EndpointHealth(), 422, EndpointHealth()),
        (EndpointHealth(), 503, EndpointHealth(failing_since=LATER)),
        (FAILING, 422, EndpointHealth(failing_since=NOON)),
        (FAILING, 500, EndpointHealth(failing_since=NOON)),
        (FAILING, 200, EndpointHealth()),
    ],
)
def test_an_answer_counts_for_the_health_of_its_endpoint(before, status, after):
    """An event that is not accepted begins no failing of its endpoint."""
    assert before.count_answer(EndpointAnswer(status=status), LATER) == after


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("Wed, 18 Jun 2025 14:00:30 +0200", 30.0),
        ("Wed, 18 Jun 2025 12:00:30 -0000", 30.0),
        ("Wednesday, 18-Jun-25 12:00:30 GMT", 30.0),
        ("Wed Jun 18 12:00:30 2025", 30.0),
        ("1e3", None),
    ],
)
def test_a_wait_is_read_as_seconds_or_as_a_date(header, seconds, local_time):
    assert parse_retry_after(header, NOON) == seconds
