"""An iteration from claim to watermark."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

from iscp_dagster.delta.feed import ReadKind
from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.joblog.iterations import Claim, Failed, Iteration
from iscp_dagster.model.batch import Action, Range
from iscp_dagster.model.consumers import Told, together
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import BatchError, IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.groups import Outcome, delivered
from iscp_dagster.sync.ledger import Ledger, recalled
from iscp_dagster.sync.publish import Delivery, failed, publish, recorded, refuse, step
from iscp_dagster.sync.reader import Reader

MISMATCH = (
    "Job {claim.key}: the range {claim.range} lies before its recorded batch "
    "{claim.previous.range}. Was only the ISCP log restored from a backup? `iscp job repair` reads "
    "the rows again; ISCP_TOLERATE_STATE_MISMATCH=true skips what is recorded as written."
)


def iterate(
    deployment: Deployment,
    source: SourceTable,
    iteration: Iteration,
    *,
    run_id: str,
    queued_as: str | None = None,
    delta_log: DeltaLog | None = None,
) -> Generator[Delivery | Failed, None, None]:
    """Claim the iteration's jobs, scan once for all of them, and give each one's outcome.

    Each Delivery is already published; a job that cannot be is Failed, and stops no other. The
    caller renews the lease of `run_id` (`joblog.renewal`). Steps left over from a run that died
    are replayed first. With the caller's `delta_log` the table is not opened again. Raises
    FenceError when another run holds one of the jobs.
    """
    # Joined while the jobs are claimed and the tables made ready.
    joining = deployment.joining_spark()
    found = deliveries(
        joining, source, iteration, run_id=run_id, queued_as=queued_as, delta_log=delta_log
    )
    with closing(found):
        for some in found:
            written = [each for each in some if isinstance(each, Delivery)]
            published = publish(deployment, written)
            yield from (each for each in some if isinstance(each, Failed))
            yield from published


def deliveries(
    deployment: Deployment,
    source: SourceTable,
    iteration: Iteration,
    *,
    run_id: str,
    queued_as: str | None = None,
    delta_log: DeltaLog | None = None,
) -> Generator[list[Outcome], None, None]:
    """The outcomes that `iterate` publishes; publish each Delivery before asking for more.

    The outcomes of one list are of one index and one reading.
    """
    delta_log = delta_log or deployment.delta_log(source)
    reader = Reader(deployment, source, iteration.tenants, delta_log)
    layout = reader.layout(iteration.range)
    ledger, recall, unread = recalled(reader, iteration)
    claims = deployment.log.begin(
        iteration,
        run_id,
        layout,
        layouts=reader.snapshot_layouts(iteration.range, layout),
        queued_as=queued_as,
        recall=recall,
    )
    open_ = {claim.key: claim for claim in claims}
    told: dict[JobKey, Told] = {}
    cut: list[Outcome] = []
    try:
        with _settled(deployment, open_, told, cut):
            _check(unread)
            yield from _steps(reader, ledger, claims, open_, told)
    except Exception:
        if cut:
            yield cut
        raise


def _check(unread: IscpError | None) -> None:
    if unread is not None:
        raise unread


def _steps(
    reader: Reader,
    ledger: Ledger,
    claims: Sequence[Claim],
    open_: dict[JobKey, Claim],
    told: dict[JobKey, Told],
) -> Iterator[list[Outcome]]:
    """Take the claims' steps, until none of the claims is open."""
    deployment = reader.deployment
    yield from _ended(refuse(deployment, _mismatched(claims)), open_)
    yield from _ended(recorded(deployment, ledger, list(open_.values())), open_)
    consumers = tuple(dict.fromkeys(claim.spec.detail.consumer for claim in open_.values()))
    reader = replace(reader, consumers=consumers)
    while open_:
        settled: dict[JobKey, Claim | None] = {}
        group = _next_group(list(open_.values()))
        for outcomes in delivered(reader, group, ledger, settled):
            yield from _taken(deployment, outcomes, open_, settled, told)


def _taken(
    deployment: Deployment,
    outcomes: Sequence[Outcome],
    open_: dict[JobKey, Claim],
    settled: Mapping[JobKey, Claim | None],
    told: dict[JobKey, Told],
) -> Iterator[list[Outcome]]:
    """The outcomes of last steps; the other claims go on with their next step.

    `told` keeps what their consumers reported of the steps so far.
    """
    whole = [_with_earlier(_whole(each), told) for each in outcomes]
    last = [each for each in whole if isinstance(each, Failed) or each.claim.last]
    going = [each for each in whole if isinstance(each, Delivery) and not each.claim.last]
    yield from _ended(last, open_)
    # A watermark that a consumer settled has already moved.
    moved = {key: claim for key, claim in settled.items() if claim is not None}
    unmoved = [each for each in going if each.claim.key not in moved]
    found = step(deployment, unmoved) if unmoved else []
    found += [moved[each.claim.key] for each in going if each.claim.key in moved]
    open_ |= {each.key: each for each in found if isinstance(each, Claim)}
    told |= {each.claim.key: each.told_in_all for each in going if each.told_in_all}
    yield from _ended([each for each in found if isinstance(each, Failed)], open_)


def _ended(outcomes: Sequence[Outcome], open_: dict[JobKey, Claim]) -> Iterator[list[Outcome]]:
    for each in outcomes:
        del open_[each.claim.key]
    if outcomes:
        yield list(outcomes)


def _mismatched(claims: Sequence[Claim]) -> list[Failed]:
    rejected = [claim for claim in claims if claim.step.action is Action.REJECT]
    return [failed(claim, BatchError(MISMATCH.format(claim=claim))) for claim in rejected]


def _with_earlier(outcome: Outcome, told: Mapping[JobKey, Told]) -> Outcome:
    earlier = told.get(outcome.claim.key)
    if not earlier:
        return outcome
    if isinstance(outcome, Failed):
        return replace(outcome, told=together(earlier, outcome.told))
    return replace(outcome, earlier=earlier)


def _whole(outcome: Outcome) -> Outcome:
    """Make a snapshot that covers the whole claim its last step."""
    if isinstance(outcome, Failed) or outcome.plan.kind is not ReadKind.SNAPSHOT:
        return outcome
    claim = outcome.claim
    if claim.last or outcome.to.version < claim.range.to.version:
        return outcome
    return replace(outcome, claim=replace(claim, steps=claim.steps[-1:]))


def _next_group(claims: Sequence[Claim]) -> list[Claim]:
    """The claims on the earliest range and its layout; those of one job name have one consumer,
    since they share a table.
    """
    first = min((claim.step for claim in claims), key=lambda step: _span(step.range))
    consumers: dict[str, ConsumerInfo] = {}
    return [
        claim
        for claim in claims
        if (claim.step.range, claim.step.layout) == (first.range, first.layout)
        and consumers.setdefault(claim.key.job_name, claim.consumer) == claim.consumer
    ]


def _span(range_: Range) -> tuple[int, int]:
    return range_.from_.version, range_.to.version


@contextmanager
def _settled(
    deployment: Deployment,
    open_: Mapping[JobKey, Claim],
    told: Mapping[JobKey, Told],
    cut: list[Outcome],
) -> Iterator[None]:
    """Fail the jobs still open when an error ends the iteration early; cancel them when it is
    interrupted.

    `cut` gets the failures of those whose consumers have told something of their earlier steps.
    """
    try:
        yield
    except Exception as error:
        code = error.code if isinstance(error, IscpError) else IscpError.code
        text = str(error) if isinstance(error, IscpError) else f"{type(error).__name__}: {error}"
        left = [Failed(claim=claim, code=code, message=text) for claim in open_.values()]
        with suppress(IscpError):
            deployment.log.fail(left)
        cut += [replace(each, told=told[each.claim.key]) for each in left if each.claim.key in told]
        raise
    except BaseException:
        held = {claim.key: claim.fence for claim in open_.values()}
        deployment.log.cancel(held, seen=held)
        raise
