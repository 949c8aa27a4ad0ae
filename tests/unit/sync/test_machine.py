"""The machine of an iteration, with services that are a table of faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Claim, FailedStep
from iscp_dagster.model.batch import WRITES, BatchAction, BatchStep, Range
from iscp_dagster.model.errors import (
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
from iscp_dagster.sync.iteration.outcomes import ErrorDetail, PendingCommit, WriteResult
from iscp_dagster.sync.reading.requests import ReadRequest
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


def claim(tenant: str, job: str = "mirror", actions=(BatchAction.INSERT,)) -> Claim:
    """Return a claim whose steps do this, each on two versions."""
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
    """Answers commands; `faults` has what goes wrong for a tenant and job."""

    faults: Mapping[tuple[str, str], str] = field(default_factory=dict)
    given: list[PendingCommit | FailedStep] = field(default_factory=list)
    scans: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    """How each was read, and for whom."""
    rebuilt: set[str] = field(default_factory=set)
    recorded: Counter[tuple[str, str]] = field(default_factory=Counter)

    def fault(self, claim: Claim) -> str:
        return self.faults.get((claim.key.tenant, claim.key.job_name), "")

    def answer(self, command):  # noqa: PLR0911 - a table
        match command:
            case commands.RecordSteps(claims):
                self.recorded.update((e.key.tenant, e.key.job_name) for e in claims)
                lost = [e for e in claims if self.fault(e) == RECORDED]
                return commands.StepsRecorded(
                    {each.key: FenceError("recorded by another") for each in lost}
                )
            case commands.PlanReads(claims, plan, apart):
                some = group_by_job(claims).values() if apart else [claims]
                step_ = claims[0].step
                reading = ReadRequest(plan=plan or TAIL, range=step_.range)
                return commands.ReadsPlanned(tuple((reading, each) for each in some))
            case commands.ScanClaims(trial):
                return self.scanned(trial)
            case commands.VerifyScan(part):
                wrong = {e.key for e in part.claims if self.fault(e) == WRONG}
                passed = [e for e in part.claims if e.step.action not in WRITES]
                return commands.ScanVerified(
                    part,
                    outcomes={e.key: PendingCommit(claim=e, written=part.written) for e in passed},
                    errors={each: SchemaError("rows are missing") for each in wrong},
                    rebuild=frozenset(wrong),
                )
            case commands.PlaceRows(deliveries):
                return commands.RowsPlaced(deliveries, self.lost(deliveries, LOST))
            case commands.MoveWatermarks(deliveries):
                lost = self.lost(deliveries, LATE)
                left = [each.claim for each in deliveries if each.claim.key not in lost]
                going = [each for each in left if not each.last]
                claims = tuple(replace(each, steps=each.steps[1:]) for each in going)
                return commands.WatermarksMoved(deliveries, claims, lost)
            case commands.ServeIndex(deliveries):
                return commands.IndexServed(deliveries, NOW)
            case commands.RecordFailures(failures, rebuild):
                self.rebuilt |= {each.tenant for each in rebuild}
                return commands.FailuresRecorded(failures)
            case commands.DropStaging():
                return commands.CleanupDone()
        raise AssertionError(command)

    def lost(self, deliveries, fault):
        found = [each.claim for each in deliveries if self.fault(each.claim) == fault]
        return {each.key: FenceError("lost") for each in found}

    def scanned(self, trial):
        """Scan as the real one does: some faults are of all tenants, as far as it can tell."""
        kind = trial.reading.plan.kind
        self.scans.append((kind.value, get_tenants(trial.claims)))
        writing = [each for each in trial.claims if each.step.action in WRITES]
        assert {each.step.range for each in trial.claims} == {trial.reading.range}
        for each in writing:
            if self.fault(each) == RAISES:
                return commands.ScanFailed(trial, SourceError(f"a file of {each.key.tenant}"))
            if self.fault(each) == AWAY:
                return commands.ScanFailed(trial, UnavailableError("Spark is away"))
        return commands.ScanFinished(
            trial,
            tuple(
                commands.ScanResult(claims=claims, written=self.written(trial, claims))
                for claims in group_by_job(trial.claims).values()
            ),
        )

    def written(self, trial, claims):
        staged = trial.reading.is_snapshot
        error, stopped = None, {}
        for each in claims:
            if each.step.action not in WRITES:
                continue
            fault, tenant = self.fault(each), each.key.tenant
            if fault == POISON:
                error = ErrorDetail.from_error(SourceError(f"a row of {tenant}"))
            elif fault == GONE and not staged:
                error = error or ErrorDetail.from_error(FeedGoneError(f"a change of {tenant}"))
            elif fault == STOPS:
                stopped[tenant] = ErrorDetail.from_error(SchemaError(f"a value of {tenant}"))
            elif fault == TAKEN:
                stopped[tenant] = ErrorDetail.from_error(FenceError(f"the job of {tenant}"))
        return WriteResult(
            reading=trial.reading,
            reports={each.key.tenant: {"rows": 1} for each in claims},
            error=error,
            tenant_may_be_cause=bool(error and error.tenant_may_be_cause),
            tenant_errors=stopped,
        )


def run(claims, services):
    """Carry out an iteration; return its last state."""
    state, following = handle_event(IterationState(), commands.JobsClaimed(tuple(claims)))
    waiting = list(following)
    while True:
        if not waiting:
            state, following = handle_event(state, commands.CommandsDone())
            waiting = list(following)
            if not waiting:
                return state
        command = waiting.pop(0)
        if isinstance(command, commands.AbortIteration):
            raise command.error
        if isinstance(command, commands.ReturnOutcomes):
            services.given += command.outcomes
            continue
        state, following = handle_event(state, services.answer(command))
        waiting[:0] = following


def ends(services):
    """Return each claim's outcome."""
    return {
        (each.claim.key.tenant, each.claim.key.job_name): each.code
        if isinstance(each, FailedStep)
        else 0
        for each in services.given
    }


TENANTS = [f"t{number}" for number in range(12)]
JOBS = ["mirror", "text"]
ACTIONS = st.sampled_from(
    [
        (BatchAction.INSERT,),
        (BatchAction.REPLAY, BatchAction.INSERT),
        (BatchAction.SKIP,),
        (BatchAction.DEAD_LETTER, BatchAction.INSERT),
    ]
)
CODES = {
    POISON: SourceError.code,
    STOPS: SchemaError.code,
    TAKEN: FenceError.code,
    LOST: FenceError.code,
    LATE: FenceError.code,
    RAISES: SourceError.code,
    RECORDED: FenceError.code,
    WRONG: SchemaError.code,
}


@st.composite
def iterations(draw):
    jobs = draw(st.sampled_from([JOBS[:1], JOBS]))
    tenants = draw(st.lists(st.sampled_from(TENANTS), min_size=2, unique=True))
    claims = [claim(tenant, job, draw(ACTIONS)) for tenant in tenants for job in jobs]
    places = [(each.key.tenant, each.key.job_name) for each in claims]
    faults = draw(st.dictionaries(st.sampled_from(places), st.sampled_from(FAULTS), max_size=5))
    return claims, faults


@settings(max_examples=400)
@given(iterations())
def test_each_claim_ends_once_and_only_those_at_fault_fail(case):
    claims, faults = case
    services = Services(faults)
    last = run(claims, services)
    assert (last.open, last.trials, last.unclear) == ({}, (), {})
    found = ends(services)
    assert len(services.given) == len(claims) == len(found)
    for each in claims:
        place = each.key.tenant, each.key.job_name
        fault, writes = faults.get(place, ""), any(s.action in WRITES for s in each.steps)
        raises = {at[0] for at, what in faults.items() if what == RAISES}
        wanted = {0} if not fault or fault == GONE else {CODES[fault]}
        if not writes and fault not in {LOST, LATE, RECORDED}:
            wanted = {0}
        if each.key.tenant in raises and writes:
            # A scan that raises says not which job's rows are at fault.
            wanted |= {SourceError.code}
        if fault == WRONG or fault in {POISON, STOPS}:
            wanted |= {0} if each.steps[0].action not in WRITES and len(each.steps) == 1 else set()
        assert found[place] in wanted, (place, fault, found[place])


@settings(max_examples=100)
@given(iterations())
def test_what_has_no_key_at_fault_is_scanned_once_a_step(case):
    claims, _ = case
    services = Services()
    run(claims, services)
    assert set(ends(services).values()) == {0}
    steps = {(each.step.range, each.step.layout is None) for each in claims}
    assert len(services.scans) <= 2 * len(steps)


def test_what_was_told_of_earlier_steps_is_told_with_the_last():
    services = Services()
    run([claim("a", actions=(BatchAction.REPLAY, BatchAction.INSERT))], services)
    (outcome,) = services.given
    assert outcome.total_report == {"rows": 2}
    services = Services({("a", "mirror"): LOST})
    run([claim("a", actions=(BatchAction.REPLAY, BatchAction.INSERT))], services)
    (outcome,) = services.given
    assert outcome.reported == {"rows": 1}


def test_changes_that_cannot_be_read_give_their_tenants_a_snapshot_at_the_end():
    services = Services({("b", "mirror"): GONE})
    run([claim(tenant) for tenant in "abc"], services)
    assert ends(services) == dict.fromkeys([("a", "mirror"), ("b", "mirror"), ("c", "mirror")], 0)
    assert services.scans[-1] == ("snapshot", frozenset("b"))
    assert [kind for kind, _ in services.scans].count("snapshot") == 1
    reasons = [e.plan.reason for e in services.given if e.plan.kind is ReadKind.SNAPSHOT]
    assert reasons == ["a change of b"]


def test_a_service_that_is_away_ends_the_iteration_of_one_and_of_many():
    for tenants in ("a", "abc"):
        services = Services({("a", "mirror"): AWAY})
        with pytest.raises(UnavailableError):
            run([claim(tenant) for tenant in tenants], services)
        assert len(services.scans) == 1


def test_the_rest_is_given_up_once_too_many_fail_alone():
    tenants = [f"t{number}" for number in range(100)]
    services = Services({(tenant, "mirror"): POISON for tenant in tenants})
    run([claim(tenant) for tenant in tenants], services)
    codes = Counter(ends(services).values())
    assert codes[UntriedError.code] > 90
    assert codes[SourceError.code] == 100 - codes[UntriedError.code]
    assert len(services.scans) < 12


def test_rows_that_are_wrong_fail_their_job_and_have_it_rebuilt():
    services = Services({("b", "mirror"): WRONG})
    run([claim("a"), claim("b")], services)
    assert ends(services) == {("a", "mirror"): 0, ("b", "mirror"): SchemaError.code}
    assert services.rebuilt == {"b"}


def test_a_settled_step_goes_on_without_being_moved_again():
    first = claim("a", actions=(BatchAction.REPLAY, BatchAction.INSERT))
    state, _ = handle_event(IterationState(), commands.JobsClaimed((first,)))
    following = replace(first, steps=first.steps[1:], fence=3)
    reading = ReadRequest(plan=TAIL, range=FIRST)
    written = WriteResult(reading=reading, next_claims={first.key: following})
    state, answer = handle_event(
        state, commands.ScanVerified(commands.ScanResult(claims=(first,), written=written))
    )
    assert answer == (commands.RecordSteps((following,)),)
    assert state.open == {first.key: following}


def test_an_interruption_releases_what_is_open_and_an_error_fails_it():
    both = (claim("a"), claim("b"))
    state, _ = handle_event(IterationState(), commands.JobsClaimed(both))
    assert handle_event(state, commands.RunInterrupted()) == (
        IterationState(),
        (commands.ReleaseClaims(both),),
    )
    assert handle_event(IterationState(), commands.RunInterrupted()) == (IterationState(), ())
    state = replace(state, reports={both[0].key: {"rows": 1}})
    _, (fail, give) = handle_event(state, commands.IterationFailed(ValueError("a bug")))
    assert [(each.code, each.message) for each in fail.failures] == (
        [(IscpError.code, "ValueError: a bug")] * 2
    )
    assert [each.claim.key.tenant for each in give.outcomes] == ["a"]


def test_a_range_that_contradicts_its_record_is_refused_before_anything_is_read():
    rejected = replace(
        claim("a", actions=(BatchAction.REJECT,)), previous=type("Record", (), {"range": FIRST})()
    )
    services = Services()
    run([rejected, claim("b")], services)
    assert services.scans == [("tail", frozenset("b"))]
    assert services.recorded == {("b", "mirror"): 1}
    wrong = next(each for each in services.given if isinstance(each, FailedStep))
    assert "lies before its recorded batch (2, 4]" in wrong.message


def test_a_job_that_is_lost_once_its_snapshot_is_in_place_starts_over():
    for fault, over in ((LOST, set()), (LATE, {"a"})):
        services = Services({("a", "mirror"): fault})
        each = replace(claim("a"), steps=(BatchStep(action=BatchAction.INSERT, range=INITIAL),))
        store = object()
        state, _ = handle_event(IterationState(), commands.JobsClaimed((each,)))
        plan = ReadPlan(kind=ReadKind.SNAPSHOT, reason="first synchronization")
        written = WriteResult(reading=ReadRequest(plan=plan, range=INITIAL), store=store)
        state, following = handle_event(
            state, commands.ScanVerified(commands.ScanResult(claims=(each,), written=written))
        )
        waiting = list(following)
        while waiting:
            command = waiting.pop(0)
            if not isinstance(command, commands.ReturnOutcomes):
                state, more = handle_event(state, services.answer(command))
                waiting[:0] = more
        assert services.rebuilt == over
