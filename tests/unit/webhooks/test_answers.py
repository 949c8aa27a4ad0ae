"""What follows from an answer: the golden table, and what it cannot show."""

import time
from datetime import timedelta

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

RULES = DeliveryRules(delays=(5, 300, 1_800, 7_200, 18_000, 36_000, 36_000), refusals=3)
SINGLE = (
    *(200, 202, 204, 299, 300, 301, 307, 308, 400, 401, 402, 403, 404, 405, 408, 409, 410, 413),
    *(415, 418, 422, 425, 429, 451, 500, 501, 502, 503, 504, 599, 101, 700),
)
HOURS_28 = timedelta(hours=28)


def told(answer, *, attempt=1, first=None, health=None, random=0.5, events=1):
    counted = (health or EndpointHealth()).count_answer(answer, NOON)
    found = decide_outcome(
        answer,
        attempt=attempt,
        first_failure=first,
        health=counted,
        now=NOON,
        rules=RULES,
        random=random,
        events=events,
    )
    after = f"in {(found.next_at - NOON).total_seconds():g} s" if found.next_at else "-"
    change = f"{found.change.value}: {found.reason}" if found.change else "-"
    return f"{found.verdict.value:<11}{after:<14}{change}".rstrip()


def table():
    lines = ["# What follows for the event, when it is tried again, and for the endpoint.", ""]
    lines += ["## The first attempt"]
    lines += [f"{status:<34}{told(EndpointAnswer(status=status))}" for status in SINGLE]
    lines += [f"{'no connection':<34}{told(EndpointAnswer(text='ConnectError'))}"]
    lines += [f"{'address not allowed':<34}{told(EndpointAnswer(text='10.0.0.1', refused=True))}"]
    lines += ["", "## Attempts that fail with 500, without and with the least and most jitter"]
    for attempt in range(1, 10):
        for random in (0.5, 0.0, 0.999_999):
            said = told(EndpointAnswer(status=500), attempt=attempt, random=random)
            lines += [f"{f'attempt {attempt}, random {random:g}':<34}{said}"]
    lines += ["", "## The eighth attempt fails with 500; the first did 28 hours before"]
    first = NOON - HOURS_28
    others = {
        "nothing was accepted since": EndpointHealth(failing_since=first),
        "others were accepted since": EndpointHealth(failing_since=NOON - timedelta(minutes=1)),
    }
    for name, health in others.items():
        said = told(EndpointAnswer(status=500), attempt=8, first=first, health=health)
        lines += [f"{name:<34}{said}"]
    soon = NOON - timedelta(minutes=2)
    said = told(EndpointAnswer(status=429), attempt=8, first=soon, health=EndpointHealth())
    lines += [f"{'the first 2 minutes before':<34}{said}"]
    lines += ["", "## Batches of two events, at their eighth attempt while others were accepted"]
    for status in (200, 400, 410, 413, 415, 422, 429, 500):
        health = EndpointHealth(failing_since=NOON - timedelta(minutes=1))
        said = told(EndpointAnswer(status=status), attempt=8, first=first, health=health, events=2)
        lines += [f"{status:<34}{said}"]
    lines += ["", "## Retry-After of an answer 503"]
    dates = ("Wed, 18 Jun 2025 12:02:00 GMT", "Wed, 18 Jun 2025 11:00:00 GMT")
    for header in ("120", "0", "999999999", *dates, "soon", "-5", ""):
        lines += [f"{header!r:<34}{told(EndpointAnswer(status=503, retry_after=header))}"]
    lines += ["", "## The endpoint's state before: refusals in a row, or failing for days"]
    for status in (404, 301, 401, 429, 500, 400, 200):
        said = told(
            EndpointAnswer(status=status), health=EndpointHealth(in_a_row=2, failing_since=NOON)
        )
        lines += [f"{f'{status}, after 2 refusals':<34}{said}"]
    for days in (4.9, 5):
        since = NOON - timedelta(days=days)
        for status in (500, 404, 400, 410, 200):
            said = told(EndpointAnswer(status=status), health=EndpointHealth(failing_since=since))
            lines += [f"{f'{status}, failing for {days} days':<34}{said}"]
    return "\n".join(lines) + "\n"


def test_answers_lead_to_what_the_golden_file_says():
    assert table() == (GOLDEN / "answers.txt").read_text(encoding="utf-8")


@pytest.fixture
def far_west(monkeypatch):
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
    asked=st.none() | st.text(max_size=12) | st.integers(0, 10**30).map(str),
    random=st.floats(0, 1, exclude_max=True),
)
def test_nothing_is_tried_at_once_or_after_the_longest_wait_and_nothing_else_is_forgotten(
    status, attempt, hours, asked, random
):
    answer = EndpointAnswer(status=status, retry_after=asked)
    found = decide_outcome(
        answer,
        attempt=attempt,
        first_failure=NOON - timedelta(hours=hours),
        health=EndpointHealth(failing_since=NOON - timedelta(hours=1)).count_answer(answer, NOON),
        now=NOON,
        rules=RULES,
        random=random,
    )
    assert (found.next_at is not None) == (found.verdict is MessageVerdict.AGAIN)
    assert answer.accepted == (found.verdict is MessageVerdict.DELIVERED)
    if found.next_at is not None:
        wait = (found.next_at - NOON).total_seconds()
        assert 1 <= wait <= RULES.longest * 1.2


def test_an_event_that_is_not_accepted_begins_no_failing_of_its_endpoint():
    """No attempt need follow for days; the next one's failure would disable it at once."""
    after = EndpointHealth().count_answer(EndpointAnswer(status=422), NOON)
    assert after == EndpointHealth()
    later = NOON + timedelta(days=6)
    assert after.count_answer(EndpointAnswer(status=503), later) == EndpointHealth(
        failing_since=later
    )
    failing = EndpointHealth(in_a_row=2, failing_since=NOON)
    assert failing.count_answer(EndpointAnswer(status=422), later) == EndpointHealth(
        failing_since=NOON
    )


def test_an_accepted_answer_clears_what_the_endpoint_was_blamed_for():
    health = EndpointHealth(in_a_row=2, failing_since=NOON)
    assert health.count_answer(EndpointAnswer(status=200), NOON) == EndpointHealth()
    assert health.count_answer(EndpointAnswer(status=500), NOON) == EndpointHealth(
        failing_since=NOON
    )


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
def test_a_wait_is_read_as_seconds_or_as_a_date(header, seconds, far_west):
    assert parse_retry_after(header, NOON) == seconds
