"""Which tenants are tried again, alone or together, when many of them fail in one scan."""

from dataclasses import replace
from math import ceil, log2
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.clickhouse.connect.failures import OvertakenError
from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.model.batch import Range
from iscp_dagster.model.errors import (
    FeedGoneError,
    FenceError,
    SourceError,
    UnavailableError,
    UnreadableError,
)
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.sync.iteration.narrowing import (
    TENANTS_TRIED,
    ScanGroup,
    get_tenants,
    make_untried_error,
    record_scan,
    split_group,
)
from iscp_dagster.sync.iteration.outcomes import ErrorDetail
from iscp_dagster.sync.reading.requests import ReadRequest
from support.errors import assert_names

TAIL = ReadPlan(kind=ReadKind.TAIL, reason="")
READING = ReadRequest(plan=TAIL, range=Range(from_=START, to=Moment(1)))
ERROR = ErrorDetail(code=10_200, message="key 7 of tenant t3 is odd")


def name_tenants(numbers):
    return {f"t{number}" for number in numbers}


def make_claims(number, run_id="run"):
    return [
        SimpleNamespace(key=SimpleNamespace(tenant=f"t{n}", job_name="mirror"), run_id=run_id)
        for n in range(number)
    ]


def narrow_down(number, bad, run_id="run"):
    """Narrow down as the iteration does; return who was blamed, who was given up, and the scans."""
    known, blamed, given_up, scans = {}, set(), set(), 0
    waiting = [ScanGroup(request=READING, claims=tuple(make_claims(number, run_id)))]
    while waiting:
        trial = waiting.pop(0)
        if trial.errors:
            smaller, left = split_group(known, trial)
            waiting[:0] = smaller
            given_up |= get_tenants(left)
            continue
        scans += 1
        tenants = get_tenants(trial.claims)
        if not tenants & bad:
            known = record_scan(known, trial, "mirror", succeeded=True)
        elif len(tenants) == 1:
            known = record_scan(known, trial, "mirror", succeeded=False)
            blamed |= tenants
        else:
            waiting.insert(0, replace(trial, errors={"mirror": ERROR}))
    return blamed, given_up, scans


@given(st.integers(1, 60), st.sets(st.integers(0, 59)))
def test_only_tenants_at_fault_are_blamed_and_only_a_long_row_of_them_gives_others_up(number, bad):
    bad = name_tenants(n for n in bad if n < number)
    blamed, given_up, scans = narrow_down(number, bad)
    assert blamed <= bad <= blamed | given_up
    assert not given_up or len(blamed) >= TENANTS_TRIED
    assert scans <= 2 * number


@pytest.mark.parametrize("number", [2, 9, 40, 1000])
def test_one_at_fault_costs_two_scans_a_halving(number):
    blamed, given_up, scans = narrow_down(number, {"t1"})
    assert (blamed, given_up) == ({"t1"}, set())
    assert scans <= 3 + 2 * ceil(log2(number))


def test_the_first_few_at_fault_give_nobody_up():
    bad = name_tenants(range(2 * TENANTS_TRIED))
    assert narrow_down(80, bad)[:2] == (bad, set())


def test_another_run_tries_others_first():
    everyone = name_tenants(range(100))
    assert narrow_down(100, everyone, "one")[0] != narrow_down(100, everyone, "two")[0]


@pytest.mark.parametrize(
    ("error", "unsure"),
    [
        (UnavailableError, False),
        (FenceError, False),
        (OvertakenError, True),
        (UnreadableError, True),
        (FeedGoneError, True),
        (SourceError, True),
    ],
)
def test_a_service_that_does_not_answer_is_no_tenant_s_fault(error, unsure):
    assert ErrorDetail.from_error(error("odd")).tenant_may_be_cause is unsure


def test_an_error_of_other_tenants_is_reported_without_their_keys():
    (claim,) = make_claims(1)
    message = str(make_untried_error(claim, ERROR))
    assert_names(message, "'t0'", f"code {ERROR.code}")
    assert "key 7" not in message
