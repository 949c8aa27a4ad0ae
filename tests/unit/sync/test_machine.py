"""The state machine of an iteration, with services that are a table of faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Claim, FailedStep
from iscp_dagster.model.batch import WRITES, BatchAction, BatchStep, Range
from iscp_dagster.model.errors import (
    BatchError,
    FeedGoneError,
    FenceError,
    IscpError,
    SchemaError,
    SourceError,
    UnavailableError,
)
from iscp_dagster.model.moment import START, Moment
from iscp_dagster.sync.iteration import commands
from iscp_dagster.sync.iteration.machine import IterationState, group_by_job, handle_event
from iscp_dagster.sync.iteration.narrowing import UntriedError, get_tenants
from iscp_dagster.sync.iteration.outcomes import ErrorDetail, RowDelivery, WriteResult
from iscp_dagster.sync.reading.requests import ReadRequest
from support.errors import assert_names
from support.jobs.log_rows import key, name, spec

TAIL = ReadPlan(kind=ReadKind.TAIL, reason="changes")
FIRST = Range(from_=Moment(2), to=Moment(4))
SECOND = Range(from_=Moment(4), to=Moment(6))
INITIAL = Range(from_=START, to=Moment(6))
WHOLE = Range(from_=Moment(2), to=Moment(6))
POISON, GONE, STOPS, TAKEN = "poison", "gone", "stops", "taken"
LOST, LATE, RAISES, AWAY, RECORDED, WRONG = "lost", "late", "raises", "away", "recorded", "wrong"
FAULTS = (POISON, GONE, STOPS, TAKEN, LOST, LATE, RAISES, RECORDED, WRONG)
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def make_claim(tenant: str, job: str = "mirror", actions=(BatchAction.INSERT,)) -> Claim:
    """Return a claim with these steps: one on all four versions, or each on two of them."""
    ranges = (FIRST, SECOND)[: len(actions)] if len(actions) > 1 else (WHOLE,)
    return Claim(
        key=key(job, tenant),
        registration=1,
        name=name(job),
        spec=spec(job),
        fence=2,
        run_id="run",
        range=WHOLE,
        steps=tuple(BatchStep(action=a, range=r) for a, r in zip(actions, ranges, strict=True)),
    )


@dataclass
class Services:
    """Carries out commands; `faults` has what goes wrong for a tenant and job."""

    faults: Mapping[tuple[str, str], str] = field(default_factory=dict)
    outcomes: list[RowDelivery | FailedStep] = field(default_factory=list)
    scans: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    """How each was read, and for whom."""
    rebuilt: set[str] = field(default_factory=set)
    recorded: Counter[tuple[str, str]] = field(default_factory=Counter)

    def get_fault(self, claim: Claim) -> str:
        return self.faults.get(get_place(claim), "")

    def carry_out(self, command):  # noqa: PLR0911 - a table
        match command:
            case commands.RecordSteps(claims):
                self.recorded.update(map(get_place, claims))
                return commands.StepsRecorded(self.find_lost(claims, RECORDED))
            case commands.PlanReads(claims, plan, apart):
                groups = group_by_job(claims).values() if apart else [claims]
                request = ReadRequest(plan=plan or TAIL, range=claims[0].step.range)
                return commands.ReadsPlanned(tuple((request, group) for group in groups))
            case commands.ScanClaims(group):
                return self.scan(group)
            case commands.SettleScan(result):
                wrong = {c.key for c in result.claims if self.get_fault(c) == WRONG}
                passed = [c for c in result.claims if c.step.action not in WRITES]
                return commands.ScanSettled(
                    result,
                    outcomes={c.key: RowDelivery(claim=c, written=result.written) for c in passed},
                    errors={job: SchemaError("rows are missing") for job in wrong},
                    rebuild=frozenset(wrong),
                )
            case commands.PlaceRows(deliveries):
                claims = [delivery.claim for delivery in deliveries]
                return commands.RowsPlaced(deliveries, self.find_lost(claims, LOST))
            case commands.MoveWatermarks(deliveries):
                claims = [delivery.claim for delivery in deliveries]
                lost = self.find_lost(claims, LATE)
                unfinished = [c for c in claims if c.key not in lost and not c.last]
                following = tuple(replace(c, steps=c.steps[1:]) for c in unfinished)
                return commands.WatermarksMoved(deliveries, following, lost)
            case commands.ServeIndex(deliveries):
                return commands.IndexServed(deliveries, NOW)
            case commands.RecordFailures(failures, rebuild):
                self.rebuilt |= {job.tenant for job in rebuild}
                return commands.FailuresRecorded(failures)
            case commands.DropStaging():
                return commands.CleanupDone()
        raise AssertionError(command)

    def find_lost(self, claims, fault):
        lost = [claim for claim in claims if self.get_fault(claim) == fault]
        return {claim.key: FenceError(fault) for claim in lost}

    def scan(self, group):
        """Scan as the real one does: some faults are of all tenants, as far as it can tell."""
        kind = group.request.plan.kind
        self.scans.append((kind.value, get_tenants(group.claims)))
        assert {claim.step.range for claim in group.claims} == {group.request.range}
        for claim in group.claims:
            fault = self.get_fault(claim) if claim.step.action in WRITES else ""
            if fault == RAISES:
                return commands.ScanFailed(group, SourceError(f"a file of {claim.key.tenant}"))
            if fault == AWAY:
                return commands.ScanFailed(group, UnavailableError("Spark is away"))
        by_job = group_by_job(group.claims).values()
        results = (
            commands.ScanResult(claims=each, written=self.write(group, each)) for each in by_job
        )
        return commands.ScanFinished(group, tuple(results))

    def write(self, group, claims):
        error, tenant_errors = None, {}
        for claim in claims:
            if claim.step.action not in WRITES:
                continue
            fault, tenant = self.get_fault(claim), claim.key.tenant
            if fault == POISON:
                error = ErrorDetail.from_error(SourceError(f"a row of {tenant}"))
            elif fault == GONE and not group.request.is_snapshot:
                error = error or ErrorDetail.from_error(FeedGoneError(f"a change of {tenant}"))
            elif fault == STOPS:
                tenant_errors[tenant] = ErrorDetail.from_error(SchemaError(f"a value of {tenant}"))
            elif fault == TAKEN:
                tenant_errors[tenant] = ErrorDetail.from_error(FenceError(f"the job of {tenant}"))
        return WriteResult(
            request=group.request,
            reports={claim.key.tenant: {"rows": 1} for claim in claims},
            error=error,
            tenant_may_be_cause=bool(error and error.tenant_may_be_cause),
            tenant_errors=tenant_errors,
        )

    def work_off(self, state, following):
        """Carry out the commands and those that follow from them; return the last state."""
        waiting = list(following)
        while waiting:
            command = waiting.pop(0)
            if isinstance(command, commands.AbortIteration):
                raise command.error
            if isinstance(command, commands.ReturnOutcomes):
                self.outcomes += command.outcomes
                continue
            state, following = handle_event(state, self.carry_out(command))
            waiting[:0] = following
        return state

    def run(self, claims):
        """Carry out an iteration; return its last state."""
        state, following = begin_iteration(*claims)
        while following:
            state = self.work_off(state, following)
            state, following = handle_event(state, commands.CommandsDone())
        return state

    def get_codes(self):
        """Return the code of each claim's outcome, by tenant and job."""
        return {
            get_place(outcome.claim): outcome.code if isinstance(outcome, FailedStep) else 0
            for outcome in self.outcomes
        }


def get_place(claim):
    return claim.key.tenant, claim.key.job_name


def begin_iteration(*claims):
    return handle_event(IterationState(), commands.JobsClaimed(claims))


def end_scan(state, *claims, **written):
    """Have the machine handle a verified scan of these claims."""
    result = commands.ScanResult(claims=claims, written=WriteResult(**written))
    return handle_event(state, commands.ScanSettled(result))


TENANTS = [f"t{number}" for number in range(12)]
JOBS = ["mirror", "text"]
ALONE = [(BatchAction.INSERT,), (BatchAction.SKIP,)]
INSERTING = [(first, BatchAction.INSERT) for first in (BatchAction.REPLAY, BatchAction.DEAD_LETTER)]
ACTIONS = st.sampled_from(ALONE + INSERTING)
CODES = dict.fromkeys((TAKEN, LOST, LATE, RECORDED), FenceError.code)
CODES |= dict.fromkeys((POISON, RAISES), SourceError.code)
CODES |= dict.fromkeys((STOPS, WRONG), SchemaError.code)


@st.composite
def iterations(draw):
    jobs = draw(st.sampled_from([JOBS[:1], JOBS]))
    tenants = draw(st.lists(st.sampled_from(TENANTS), min_size=2, unique=True))
    claims = [make_claim(tenant, job, draw(ACTIONS)) for tenant in tenants for job in jobs]
    places = st.sampled_from([get_place(claim) for claim in claims])
    faults = draw(st.dictionaries(places, st.sampled_from(FAULTS), max_size=5))
    return claims, faults


@settings(max_examples=400)
@given(iterations())
def test_each_claim_ends_once_and_only_those_at_fault_fail(case):
    claims, faults = case
    services = Services(faults)
    last = services.run(claims)
    assert (last.open_claims, last.groups, last.unclear) == ({}, (), {})
    codes = services.get_codes()
    assert len(services.outcomes) == len(claims) == len(codes)
    raising = {tenant for (tenant, _), fault in faults.items() if fault == RAISES}
    for claim in claims:
        place, actions = get_place(claim), [step.action for step in claim.steps]
        fault, writes = faults.get(place, ""), bool(WRITES.intersection(actions))
        expected = {0} if not fault or fault == GONE else {CODES[fault]}
        if not writes and fault not in {LOST, LATE, RECORDED}:
            expected = {0}
        if claim.key.tenant in raising and writes:
            # A scan that raises does not say which job's rows are at fault.
            expected |= {SourceError.code}
        assert codes[place] in expected, (place, fault, codes[place])


@settings(max_examples=100)
@given(iterations())
def test_claims_without_a_fault_are_scanned_once_a_step(case):
    claims, _ = case
    services = Services()
    services.run(claims)
    assert set(services.get_codes().values()) == {0}
    steps = {(claim.step.range, claim.step.layout is None) for claim in claims}
    assert len(services.scans) <= 2 * len(steps)


def test_the_outcome_of_the_last_step_reports_the_earlier_ones_too():
    claim = make_claim("a", actions=(BatchAction.REPLAY, BatchAction.INSERT))
    services = Services()
    services.run([claim])
    (outcome,) = services.outcomes
    assert outcome.total_report == {"rows": 2}
    services = Services({("a", "mirror"): LOST})
    services.run([claim])
    (outcome,) = services.outcomes
    assert outcome.reported == {"rows": 1}


def test_changes_that_cannot_be_read_give_their_tenants_a_snapshot_at_the_end():
    services = Services({("b", "mirror"): GONE})
    services.run([make_claim(tenant) for tenant in "abc"])
    assert services.get_codes() == {(tenant, "mirror"): 0 for tenant in "abc"}
    assert services.scans[-1] == ("snapshot", frozenset("b"))
    assert [kind for kind, _ in services.scans].count("snapshot") == 1
    plans = [outcome.plan for outcome in services.outcomes]
    reasons = [plan.reason for plan in plans if plan.kind is ReadKind.SNAPSHOT]
    assert reasons == ["a change of b"]


@pytest.mark.parametrize("tenants", ["a", "abc"])
def test_a_service_that_is_away_ends_the_iteration_of_one_and_of_many(tenants):
    services = Services({("a", "mirror"): AWAY})
    with pytest.raises(UnavailableError):
        services.run([make_claim(tenant) for tenant in tenants])
    assert len(services.scans) == 1


def test_the_rest_is_given_up_once_too_many_fail_alone():
    tenants = [f"t{number}" for number in range(100)]
    services = Services({(tenant, "mirror"): POISON for tenant in tenants})
    services.run([make_claim(tenant) for tenant in tenants])
    codes = Counter(services.get_codes().values())
    assert codes[UntriedError.code] > 90
    assert codes[SourceError.code] == 100 - codes[UntriedError.code]
    assert len(services.scans) < 12


def test_wrong_rows_fail_their_job_and_have_it_rebuilt():
    services = Services({("b", "mirror"): WRONG})
    services.run([make_claim("a"), make_claim("b")])
    assert services.get_codes() == {("a", "mirror"): 0, ("b", "mirror"): SchemaError.code}
    assert services.rebuilt == {"b"}


def test_a_claim_whose_watermark_has_moved_continues_without_another_move():
    first = make_claim("a", actions=(BatchAction.REPLAY, BatchAction.INSERT))
    state, _ = begin_iteration(first)
    following = replace(first, steps=first.steps[1:], fence=3)
    request = ReadRequest(plan=TAIL, range=FIRST)
    state, answer = end_scan(state, first, request=request, next_claims={first.key: following})
    assert answer == (commands.RecordSteps((following,)),)
    assert state.open_claims == {first.key: following}


def test_an_interruption_releases_open_claims_and_an_error_fails_them():
    claims = (make_claim("a"), make_claim("b"))
    state, _ = begin_iteration(*claims)
    released = (IterationState(), (commands.ReleaseClaims(claims),))
    assert handle_event(state, commands.RunInterrupted()) == released
    assert handle_event(IterationState(), commands.RunInterrupted()) == (IterationState(), ())
    state = replace(state, reports={claims[0].key: {"rows": 1}})
    _, (fail, report) = handle_event(state, commands.IterationFailed(ValueError("a bug")))
    assert [each.code for each in fail.failures] == [IscpError.code] * 2
    assert_names(fail.failures[0].message, "ValueError", "a bug")
    assert [outcome.claim.key.tenant for outcome in report.outcomes] == ["a"]


def test_a_range_that_contradicts_its_record_is_refused_before_anything_is_read():
    record = SimpleNamespace(range=FIRST)
    rejected = replace(make_claim("a", actions=(BatchAction.REJECT,)), previous=record)
    services = Services()
    services.run([rejected, make_claim("b")])
    assert services.scans == [("tail", frozenset("b"))]
    assert services.recorded == {("b", "mirror"): 1}
    (failure,) = (each for each in services.outcomes if isinstance(each, FailedStep))
    assert failure.code == BatchError.code
    assert_names(failure.message, "'a'", WHOLE, FIRST)


@pytest.mark.parametrize(("fault", "rebuilt"), [(LOST, set()), (LATE, {"a"})])
def test_a_job_that_is_lost_once_its_snapshot_is_in_place_starts_over(fault, rebuilt):
    services = Services({("a", "mirror"): fault})
    step = BatchStep(action=BatchAction.INSERT, range=INITIAL)
    claim = replace(make_claim("a"), steps=(step,))
    state, _ = begin_iteration(claim)
    plan = ReadPlan(kind=ReadKind.SNAPSHOT, reason="first synchronization")
    request = ReadRequest(plan=plan, range=INITIAL)
    services.work_off(*end_scan(state, claim, request=request, store=object()))
    assert services.rebuilt == rebuilt
