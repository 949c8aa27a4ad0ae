"""What an iteration does next, given what happened: a pure machine.

`handle_event(state, event)` gives the next state and the commands to execute before any others.
docs/architecture.md has its transitions as a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Claim, FailedStep
from iscp_dagster.model.batch import WRITES, BatchAction, Range
from iscp_dagster.model.consumers.protocol import ConsumerReport, merge_facts
from iscp_dagster.model.errors import BatchError, FeedGoneError, FenceError, IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.sync.iteration import commands, narrowing
from iscp_dagster.sync.iteration.outcomes import (
    ErrorDetail,
    Outcome,
    RowDelivery,
    WriteResult,
    make_failure,
)

MISMATCH = (
    "Job {claim.key}: the range {claim.range} lies before its recorded batch "
    "{claim.previous.range}. Was only the ISCP log restored from a backup? `iscp job repair` reads "
    "the rows again; ISCP_TOLERATE_STATE_MISMATCH=true skips what is recorded as written."
)
UNCLEAR = ReadPlan(
    kind=ReadKind.SNAPSHOT, reason="the changes do not say which rows remain; a snapshot does"
)

Next = tuple["IterationState", tuple[commands.Command, ...]]


@dataclass(frozen=True, kw_only=True)
class IterationState:
    """Where the iteration's claims are."""

    open_claims: Mapping[JobKey, Claim] = field(default_factory=dict)
    """The claims that have not ended, each with the step that it is at."""
    reports: Mapping[JobKey, ConsumerReport] = field(default_factory=dict)
    """What their consumers reported of earlier steps."""
    groups: tuple[narrowing.ScanGroup, ...] = ()
    """The groups to scan, or to split, before other claims' turn, in order."""
    unclear: Mapping[JobKey, str] = field(default_factory=dict)
    """Why the changes of some jobs cannot be read: they get a snapshot after the groups."""
    scan_history: narrowing.ScanHistory = field(default_factory=dict)
    """How scans of this step have ended."""
    has_many_tenants: bool = False
    """Whether the iteration has several tenants."""

    def end_claims(self, outcomes: Iterable[Outcome]) -> IterationState:
        """The state after these outcomes, which end their claims."""
        ended = {outcome.claim.key for outcome in outcomes}
        remaining = {key: claim for key, claim in self.open_claims.items() if key not in ended}
        return replace(self, open_claims=remaining)

    def get_claims(self, keys: Iterable[JobKey]) -> commands.Claims:
        """The open claims of these jobs."""
        requested = set(keys)
        return tuple(claim for key, claim in self.open_claims.items() if key in requested)


def handle_event(state: IterationState, event: commands.IterationEvent) -> Next:  # noqa: C901, PLR0911, PLR0912 - a table
    """The next state, and the commands that the event leads to."""
    match event:
        case commands.JobsClaimed(claims):
            return _begin_claims(state, claims)
        case commands.StepsRecorded(claim_errors):
            return state, _make_fail_command(
                _make_failure(state, key, error) for key, error in claim_errors.items()
            )
        case commands.ReadsPlanned(requests):
            groups = [
                narrowing.ScanGroup(request=request, claims=claims) for request, claims in requests
            ]
            return replace(state, groups=(*groups, *state.groups)), ()
        case commands.ScanFinished(group, results):
            return _handle_scan(state, group, results)
        case commands.ScanFailed(group, error):
            return _handle_scan_failure(state, group, error)
        case commands.ScanSettled():
            return _handle_settled(state, event)
        case commands.FailuresRecorded(failures):
            return state.end_claims(failures), (commands.ReturnOutcomes(failures),)
        case commands.RowsPlaced(deliveries, row_errors):
            return state, _handle_placed(deliveries, row_errors)
        case commands.WatermarksMoved():
            return _handle_moved(state, event)
        case commands.IndexServed(deliveries, at):
            served = tuple(replace(delivery, published=at) for delivery in deliveries)
            return state.end_claims(served), (commands.ReturnOutcomes(served),)
        case commands.CleanupDone():
            return state, ()
        case commands.CommandsDone():
            return _choose_next(state)
        case commands.IterationFailed(error):
            return _fail_open_claims(state, error)
        case commands.RunInterrupted():
            return IterationState(), (
                commands.ReleaseClaims(tuple(state.open_claims.values())),
            ) if state.open_claims else ()


def _begin_claims(state: IterationState, claims: commands.Claims) -> Next:
    """Claims whose range contradicts the record fail; the others' first steps are recorded."""
    state = replace(
        state,
        open_claims={claim.key: claim for claim in claims},
        has_many_tenants=len(narrowing.get_tenants(claims)) > 1,
    )
    rejected = [claim for claim in claims if claim.step.action is BatchAction.REJECT]
    failures = [make_failure(claim, BatchError(MISMATCH.format(claim=claim))) for claim in rejected]
    accepted = tuple(claim for claim in claims if claim.step.action is not BatchAction.REJECT)
    return state, (
        *_make_fail_command(failures),
        *([commands.RecordSteps(accepted)] if accepted else []),
    )


def _choose_next(state: IterationState) -> Next:
    """The next scan: a waiting group, else unclear changes as a snapshot, else the next step."""
    if state.groups:
        group, *later_groups = state.groups
        state = replace(state, groups=tuple(later_groups))
        if not group.errors:
            return state, (commands.ScanClaims(group),)
        state, failures = _split_group(state, group)
        return (state, failures) if failures else _choose_next(state)
    if state.unclear:
        claims = state.get_claims(state.unclear)
        plan = UNCLEAR
        if len(narrowing.get_tenants(claims)) == 1:
            # A reason may name a key of one tenant, which the others must not see.
            plan = replace(UNCLEAR, reason=state.unclear[claims[0].key])
        return replace(state, unclear={}), (commands.PlanReads(claims, plan=plan),)
    if state.open_claims:
        return replace(state, scan_history={}), (
            commands.PlanReads(_select_earliest(list(state.open_claims.values()))),
        )
    return state, ()


def _select_earliest(claims: Sequence[Claim]) -> commands.Claims:
    """The claims on the earliest range and its layout; claims of one job name have one consumer,
    since they share a table.
    """
    first = min((claim.step for claim in claims), key=lambda step: _get_versions(step.range))
    consumers: dict[str, ConsumerInfo] = {}
    return tuple(
        claim
        for claim in claims
        if (claim.step.range, claim.step.layout) == (first.range, first.layout)
        and consumers.setdefault(claim.key.job_name, claim.consumer) == claim.consumer
    )


def _get_versions(range_: Range) -> tuple[int, int]:
    return range_.from_.version, range_.to.version


def _split_group(
    state: IterationState, group: narrowing.ScanGroup
) -> tuple[IterationState, tuple[commands.RecordFailures, ...]]:
    """Smaller groups instead of a failed one; claims given up fail, or are read whole."""
    smaller, given_up = narrowing.split_group(state.scan_history, group)
    claim_errors = [(claim, group.errors[claim.key.job_name]) for claim in given_up]
    unclear = {
        claim.key: error.message
        for claim, error in claim_errors
        if error.code == FeedGoneError.code and not group.request.is_snapshot
    }
    state = replace(
        state,
        groups=(*smaller, *state.groups),
        unclear={**state.unclear, **unclear},
    )
    return state, _make_fail_command(
        _make_failure(state, claim.key, narrowing.make_untried_error(claim, error))
        for claim, error in claim_errors
        if claim.key not in unclear
    )


def _handle_scan_failure(
    state: IterationState, group: narrowing.ScanGroup, error: IscpError
) -> Next:
    """Stop, unless the rows of one tenant, or the expression of one job, may be at fault."""
    reason, request = ErrorDetail.from_error(error), group.request
    imaged = request.image_source is not None
    if not (state.has_many_tenants or imaged) or not (
        reason.tenant_may_be_cause or isinstance(error, FenceError)
    ):
        return state, (commands.AbortIteration(error),)
    jobs = {claim.key.job_name for claim in _filter_writing(group.claims)}
    if imaged and len(jobs) > 1 and reason.tenant_may_be_cause:
        return state, (commands.PlanReads(group.claims, plan=request.plan, split_by_job=True),)
    failed = WriteResult(
        request=request, error=reason, tenant_may_be_cause=reason.tenant_may_be_cause
    )
    unread = WriteResult(request=request)
    results = tuple(
        commands.ScanResult(claims=claims, written=failed if job in jobs else unread)
        for job, claims in group_by_job(group.claims).items()
    )
    return _handle_scan(state, group, results)


def _handle_scan(
    state: IterationState, group: narrowing.ScanGroup, results: Sequence[commands.ScanResult]
) -> Next:
    """Check what was written; claims that failed together are tried again, in smaller sets."""
    joint_errors: dict[str, ErrorDetail] = {}
    to_split: list[Claim] = []
    to_rescan: list[Claim] = []
    checks: list[commands.Command] = []
    for result in results:
        suspects, error = _find_suspects(group, result), result.written.error
        if suspects and error is not None:
            joint_errors[result.job] = error
            (to_rescan if _has_lost_jobs(result.written) else to_split).extend(suspects)
        else:
            state = _remember_scan(state, group, result)
        state, readable = _exclude_unclear(state, _exclude_claims(result, suspects))
        checks += [commands.SettleScan(readable)] if readable.claims else []
    new_groups = (
        replace(group, claims=tuple(to_rescan)),
        replace(group, claims=tuple(to_split), errors=joint_errors),
    )
    groups = (*(group for group in new_groups if group.claims), *state.groups)
    return replace(state, groups=groups), (*checks, commands.DropStaging())


def _find_suspects(group: narrowing.ScanGroup, result: commands.ScanResult) -> list[Claim]:
    """The claims that may have caused the error of all; empty if no single one can have caused it.

    The only tenant of one index may fail by the rows of another's tenant, which the scan reads too.
    """
    single_tenant = len(narrowing.get_tenants(_filter_writing(group.claims))) == 1
    if result.written.error is None or not result.written.tenant_may_be_cause or single_tenant:
        return []
    return [
        claim
        for claim in _filter_writing(result.claims)
        if claim.key.tenant not in result.written.tenant_errors
    ]


def _has_lost_jobs(written: WriteResult) -> bool:
    """Whether it failed only because some of its jobs were taken: it can serve the others."""
    code = FenceError.code
    lost = any(error.code == code for error in written.tenant_errors.values())
    return lost and written.error is not None and written.error.code == code


def _remember_scan(
    state: IterationState, group: narrowing.ScanGroup, result: commands.ScanResult
) -> IterationState:
    """Remember how the scan ended for one tenant, or well for all."""
    number, succeeded = len(_filter_writing(result.claims)), result.written.error is None
    if number == 1 or (number and succeeded):
        return replace(
            state,
            scan_history=narrowing.record_scan(
                state.scan_history, group, result.job, succeeded=succeeded
            ),
        )
    return state


def _exclude_claims(result: commands.ScanResult, claims: Sequence[Claim]) -> commands.ScanResult:
    left_out = {claim.key for claim in claims}
    return replace(
        result, claims=tuple(claim for claim in result.claims if claim.key not in left_out)
    )


def _exclude_unclear(
    state: IterationState, result: commands.ScanResult
) -> tuple[IterationState, commands.ScanResult]:
    """Leave out the claims whose changes turned out to be unreadable: they get a snapshot."""
    if result.written.request.is_snapshot:
        return state, result
    errors = {
        claim.key: result.written.get_error(claim.key.tenant)
        for claim in _filter_writing(result.claims)
    }
    unreadable = {
        key: error.message
        for key, error in errors.items()
        if error and error.code == FeedGoneError.code
    }
    readable = tuple(claim for claim in result.claims if claim.key not in unreadable)
    return replace(state, unclear={**state.unclear, **unreadable}), replace(result, claims=readable)


def _handle_settled(state: IterationState, event: commands.ScanSettled) -> Next:
    """Put the correct rows in place, and record what failed."""
    outcomes = [_make_outcome(state, event, claim) for claim in event.result.claims]
    failures = [outcome for outcome in outcomes if isinstance(outcome, FailedStep)]
    deliveries = [outcome for outcome in outcomes if isinstance(outcome, RowDelivery)]
    # A watermark that a consumer settled has already moved.
    next_claims = event.result.written.next_claims
    if next_claims is not None:
        claims = tuple(claim for claim in next_claims.values() if claim is not None)
        state, following = _handle_moved(state, commands.WatermarksMoved(tuple(deliveries), claims))
    else:
        # Watermarks that move together end together.
        final = tuple(delivery for delivery in deliveries if delivery.claim.last)
        continuing = tuple(delivery for delivery in deliveries if not delivery.claim.last)
        following = tuple(commands.PlaceRows(group) for group in (final, continuing) if group)
    return state, (*following, *_make_fail_command(failures, event.rebuild))


def _handle_placed(
    deliveries: Sequence[RowDelivery], errors: Mapping[JobKey, IscpError]
) -> tuple[commands.Command, ...]:
    remaining = tuple(delivery for delivery in deliveries if delivery.claim.key not in errors)
    return (
        *([commands.MoveWatermarks(remaining)] if remaining else []),
        *_fail_deliveries(deliveries, errors),
    )


def _handle_moved(state: IterationState, event: commands.WatermarksMoved) -> Next:
    """Serve what has ended, and record the next steps of the others."""
    remaining = [
        delivery for delivery in event.deliveries if delivery.claim.key not in event.errors
    ]
    final = tuple(delivery for delivery in remaining if delivery.claim.last)
    reported = {
        delivery.claim.key: delivery.total_report
        for delivery in remaining
        if not delivery.claim.last
    }
    state = replace(
        state,
        open_claims={**state.open_claims, **{claim.key: claim for claim in event.claims}},
        reports={**state.reports, **reported},
    )
    return state, (
        *([commands.ServeIndex(final)] if final else []),
        *([commands.RecordSteps(event.claims)] if event.claims else []),
        *_fail_deliveries(event.deliveries, event.errors, late=True),
    )


def _fail_deliveries(
    deliveries: Iterable[RowDelivery], errors: Mapping[JobKey, IscpError], *, late: bool = False
) -> tuple[commands.RecordFailures, ...]:
    """Fail these jobs. One that is lost once its snapshot is in place (`late`) starts over: the
    snapshot may have replaced a later one.
    """
    failed = [delivery for delivery in deliveries if delivery.claim.key in errors]
    rebuild = [
        delivery.claim.key
        for delivery in failed
        if late and delivery.replaces and isinstance(errors[delivery.claim.key], FenceError)
    ]
    return _make_fail_command(
        [
            make_failure(delivery.claim, errors[delivery.claim.key], delivery.total_report)
            for delivery in failed
        ],
        frozenset(rebuild),
    )


def _make_outcome(state: IterationState, event: commands.ScanSettled, claim: Claim) -> Outcome:
    """How the claim's step ended."""
    written, tenant = event.result.written, claim.key.tenant
    earlier = state.reports.get(claim.key, {})
    passed = event.outcomes.get(claim.key)
    row_error, error = event.errors.get(claim.key), written.get_error(tenant)
    if isinstance(passed, FailedStep):
        return replace(passed, reported=merge_facts(earlier, passed.reported))
    if passed is not None:
        return replace(passed, earlier=earlier)
    if row_error is not None:
        return make_failure(claim, row_error, earlier)
    if error is not None:
        return make_failure(claim, error, merge_facts(earlier, written.reports.get(tenant, {})))
    return RowDelivery(claim=_keep_last_step(claim, written), written=written, earlier=earlier)


def _keep_last_step(claim: Claim, written: WriteResult) -> Claim:
    """Make a snapshot that covers the whole claim its last step."""
    request = written.request
    if claim.last or not request.is_snapshot or request.range.to.version < claim.range.to.version:
        return claim
    return replace(claim, steps=claim.steps[-1:])


def _fail_open_claims(state: IterationState, error: Exception) -> Next:
    """The open claims fail with the error; what was done for some is still reported."""
    code = error.code if isinstance(error, IscpError) else IscpError.code
    text = str(error) if isinstance(error, IscpError) else f"{type(error).__name__}: {error}"
    reason = ErrorDetail(code=code, message=text)
    failures = tuple(_make_failure(state, key, reason) for key in state.open_claims)
    reported = tuple(failure for failure in failures if failure.reported)
    return IterationState(), (
        *_make_fail_command(failures),
        *([commands.ReturnOutcomes(reported)] if reported else []),
    )


def _make_failure(state: IterationState, key: JobKey, error: IscpError | ErrorDetail) -> FailedStep:
    """The claim's failure, with what was done in earlier steps."""
    return make_failure(state.open_claims[key], error, state.reports.get(key, {}))


def _make_fail_command(
    failed: Iterable[FailedStep], rebuild: frozenset[JobKey] = frozenset()
) -> tuple[commands.RecordFailures, ...]:
    failures = tuple(failed)
    return (commands.RecordFailures(failures, rebuild=rebuild),) if failures else ()


def _filter_writing(claims: Iterable[Claim]) -> list[Claim]:
    return [claim for claim in claims if claim.step.action in WRITES]


def group_by_job(claims: Iterable[Claim]) -> dict[str, commands.Claims]:
    """The claims by job name; tenants of one name share a table."""
    by_job: dict[str, list[Claim]] = {}
    for claim in claims:
        by_job.setdefault(claim.key.job_name, []).append(claim)
    return {job: tuple(members) for job, members in by_job.items()}
