"""What an iteration does next, given what happened: a pure machine.

`step(state, event)` gives the next state and the commands to carry out before any that still wait.
docs/architecture.md has its transitions as a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from iscp_dagster.delta.plans import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Claim, Failed
from iscp_dagster.model.batch import WRITES, Action, Range
from iscp_dagster.model.consumers.protocol import Told, together
from iscp_dagster.model.errors import BatchError, FeedGoneError, FenceError, IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.sync.iteration import commands, narrowing
from iscp_dagster.sync.iteration.outcomes import Delivery, Error, Outcome, Written, failed

MISMATCH = (
    "Job {claim.key}: the range {claim.range} lies before its recorded batch "
    "{claim.previous.range}. Was only the ISCP log restored from a backup? `iscp job repair` reads "
    "the rows again; ISCP_TOLERATE_STATE_MISMATCH=true skips what is recorded as written."
)
UNCLEAR = ReadPlan(
    kind=ReadKind.SNAPSHOT, reason="the changes do not say which rows remain; a snapshot does"
)

Next = tuple["State", tuple[commands.Command, ...]]


@dataclass(frozen=True, kw_only=True)
class State:
    """Where the iteration's claims are."""

    open: Mapping[JobKey, Claim] = field(default_factory=dict)
    """The claims that have not ended, each with the step that it is at."""
    told: Mapping[JobKey, Told] = field(default_factory=dict)
    """What their consumers reported of earlier steps."""
    trials: tuple[narrowing.Trial, ...] = ()
    """The scans to make before other claims' turn, in order."""
    unclear: Mapping[JobKey, str] = field(default_factory=dict)
    """Why the changes of some cannot be read: they get a snapshot after the trials."""
    known: narrowing.Known = field(default_factory=dict)
    """What the trials of this step have shown."""
    many: bool = False
    """Whether the iteration has several tenants."""

    def without(self, outcomes: Iterable[Outcome]) -> State:
        """The same after these outcomes, which end their claims."""
        ended = {each.claim.key for each in outcomes}
        left = {key: claim for key, claim in self.open.items() if key not in ended}
        return replace(self, open=left)

    def of(self, keys: Iterable[JobKey]) -> commands.Claims:
        """The open claims of these jobs."""
        wanted = set(keys)
        return tuple(claim for key, claim in self.open.items() if key in wanted)


def step(state: State, event: commands.Event) -> Next:  # noqa: C901, PLR0911, PLR0912 - a table
    """The next state, and the commands that the event leads to."""
    match event:
        case commands.Claimed(claims):
            return _begun(state, claims)
        case commands.Recorded(lost):
            return state, _fail(_failed(state, key, error) for key, error in lost.items())
        case commands.Planned(readings):
            trials = [
                narrowing.Trial(reading=reading, claims=claims) for reading, claims in readings
            ]
            return replace(state, trials=(*trials, *state.trials)), ()
        case commands.Scanned(trial, parts):
            return _scanned(state, trial, parts)
        case commands.ScanFailed(trial, error):
            return _scan_failed(state, trial, error)
        case commands.Checked():
            return _checked(state, event)
        case commands.Refused(failures):
            return state.without(failures), (commands.Give(failures),)
        case commands.Placed(deliveries, wrong):
            return state, _placed(deliveries, wrong)
        case commands.Moved():
            return _moved(state, event)
        case commands.Served(deliveries, at):
            done = tuple(replace(each, published=at) for each in deliveries)
            return state.without(done), (commands.Give(done),)
        case commands.Discarded():
            return state, ()
        case commands.Idle():
            return _continued(state)
        case commands.Broken(error):
            return _broken(state, error)
        case commands.Interrupted():
            return State(), (commands.Release(tuple(state.open.values())),) if state.open else ()


def _begun(state: State, claims: commands.Claims) -> Next:
    """Claims whose range contradicts the record fail; the others' first steps are recorded."""
    state = replace(
        state,
        open={claim.key: claim for claim in claims},
        many=len(narrowing.tenants_of(claims)) > 1,
    )
    rejected = [claim for claim in claims if claim.step.action is Action.REJECT]
    wrong = [failed(each, BatchError(MISMATCH.format(claim=each))) for each in rejected]
    kept = tuple(claim for claim in claims if claim.step.action is not Action.REJECT)
    return state, (*_fail(wrong), *([commands.Record(kept)] if kept else []))


def _continued(state: State) -> Next:
    """The next scan: of the trials that wait, of what must be read whole, of the next step."""
    if state.trials:
        trial, *others = state.trials
        state = replace(state, trials=tuple(others))
        if not trial.failed:
            return state, (commands.Scan(trial),)
        state, failures = _narrowed(state, trial)
        return (state, failures) if failures else _continued(state)
    if state.unclear:
        claims = state.of(state.unclear)
        plan = UNCLEAR
        if len(narrowing.tenants_of(claims)) == 1:
            # A reason may name a key of one tenant, which the others must not see.
            plan = replace(UNCLEAR, reason=state.unclear[claims[0].key])
        return replace(state, unclear={}), (commands.Plan(claims, plan=plan),)
    if state.open:
        return replace(state, known={}), (commands.Plan(_next_group(list(state.open.values()))),)
    return state, ()


def _next_group(claims: Sequence[Claim]) -> commands.Claims:
    """The claims on the earliest range and its layout; those of one job name have one consumer,
    since they share a table.
    """
    first = min((claim.step for claim in claims), key=lambda step: _span(step.range))
    consumers: dict[str, ConsumerInfo] = {}
    return tuple(
        claim
        for claim in claims
        if (claim.step.range, claim.step.layout) == (first.range, first.layout)
        and consumers.setdefault(claim.key.job_name, claim.consumer) == claim.consumer
    )


def _span(range_: Range) -> tuple[int, int]:
    return range_.from_.version, range_.to.version


def _narrowed(state: State, trial: narrowing.Trial) -> tuple[State, tuple[commands.Fail, ...]]:
    """Smaller trials instead of a failed one; what is given up fails, or is read whole."""
    smaller, given_up = narrowing.narrowed(state.known, trial)
    wrong = [(claim, trial.failed[claim.key.job_name]) for claim in given_up]
    unclear = {
        claim.key: error.message
        for claim, error in wrong
        if error.code == FeedGoneError.code and not trial.reading.staged
    }
    state = replace(
        state,
        trials=(*smaller, *state.trials),
        unclear={**state.unclear, **unclear},
    )
    return state, _fail(
        _failed(state, claim.key, narrowing.untried(claim, error))
        for claim, error in wrong
        if claim.key not in unclear
    )


def _scan_failed(state: State, trial: narrowing.Trial, error: IscpError) -> Next:
    """Stop, unless the rows of one tenant, or the expression of one job, may be at fault."""
    told, reading = Error.of(error), trial.reading
    imaged = reading.transitions is not None
    if not (state.many or imaged) or not (told.unsure or isinstance(error, FenceError)):
        return state, (commands.Stop(error),)
    jobs = {claim.key.job_name for claim in _writing(trial.claims)}
    if imaged and len(jobs) > 1 and told.unsure:
        return state, (commands.Plan(trial.claims, plan=reading.plan, apart=True),)
    lost = Written(reading=reading, error=told, unsure=told.unsure)
    unread = Written(reading=reading)
    parts = tuple(
        commands.Part(claims=claims, written=lost if job in jobs else unread)
        for job, claims in by_job(trial.claims).items()
    )
    return _scanned(state, trial, parts)


def _scanned(state: State, trial: narrowing.Trial, parts: Sequence[commands.Part]) -> Next:
    """Check what was written; those that failed together are tried again, in smaller sets."""
    together_: dict[str, Error] = {}
    again: list[Claim] = []
    anew: list[Claim] = []
    checks: list[commands.Command] = []
    for part in parts:
        suspects, error = _suspects(trial, part), part.written.error
        if suspects and error is not None:
            together_[part.job] = error
            (anew if _lost_some(part.written) else again).extend(suspects)
        else:
            state = _learned(state, trial, part)
        state, left = _unclear(state, _without(part, suspects))
        checks += [commands.Check(left)] if left.claims else []
    more = (
        replace(trial, claims=tuple(anew)),
        replace(trial, claims=tuple(again), failed=together_),
    )
    trials = (*(each for each in more if each.claims), *state.trials)
    return replace(state, trials=trials), (*checks, commands.Discard())


def _suspects(trial: narrowing.Trial, part: commands.Part) -> list[Claim]:
    """The claims that may have caused the error of all; empty if no single one can have.

    Even the only tenant of one index may fail by the rows of another's, which the scan reads too.
    """
    alone = len(narrowing.tenants_of(_writing(trial.claims))) == 1
    if part.written.error is None or not part.written.unsure or alone:
        return []
    return [
        claim for claim in _writing(part.claims) if claim.key.tenant not in part.written.stopped
    ]


def _lost_some(written: Written) -> bool:
    """Whether it failed only because some of its jobs were taken: it can serve the others."""
    code = FenceError.code
    lost = any(each.code == code for each in written.stopped.values())
    return lost and written.error is not None and written.error.code == code


def _learned(state: State, trial: narrowing.Trial, part: commands.Part) -> State:
    """Remember how the scan ended for one tenant, or well for all."""
    number, well = len(_writing(part.claims)), part.written.error is None
    if number == 1 or (number and well):
        return replace(state, known=narrowing.learned(state.known, trial, part.job, served=well))
    return state


def _without(part: commands.Part, claims: Sequence[Claim]) -> commands.Part:
    left_out = {claim.key for claim in claims}
    return replace(part, claims=tuple(each for each in part.claims if each.key not in left_out))


def _unclear(state: State, part: commands.Part) -> tuple[State, commands.Part]:
    """Leave out the claims whose changes turned out to be unreadable: they get a snapshot."""
    if part.written.reading.staged:
        return state, part
    errors = {each.key: part.written.error_of(each.key.tenant) for each in _writing(part.claims)}
    gone = {key: e.message for key, e in errors.items() if e and e.code == FeedGoneError.code}
    left = tuple(each for each in part.claims if each.key not in gone)
    return replace(state, unclear={**state.unclear, **gone}), replace(part, claims=left)


def _checked(state: State, event: commands.Checked) -> Next:
    """Put the rows in place that are right, and record what failed."""
    outcomes = [_outcome(state, event, claim) for claim in event.part.claims]
    wrong = [each for each in outcomes if isinstance(each, Failed)]
    found = [each for each in outcomes if isinstance(each, Delivery)]
    # A watermark that a consumer settled has already moved.
    settled = event.part.written.settled
    if settled is not None:
        claims = tuple(each for each in settled.values() if each is not None)
        state, following = _moved(state, commands.Moved(tuple(found), claims))
    else:
        # What is moved together ends together.
        last = tuple(each for each in found if each.claim.last)
        going = tuple(each for each in found if not each.claim.last)
        following = tuple(commands.Place(some) for some in (last, going) if some)
    return state, (*following, *_fail(wrong, event.rebuild))


def _placed(
    deliveries: Sequence[Delivery], wrong: Mapping[JobKey, IscpError]
) -> tuple[commands.Command, ...]:
    left = tuple(each for each in deliveries if each.claim.key not in wrong)
    return (*([commands.Move(left)] if left else []), *_undelivered(deliveries, wrong))


def _moved(state: State, event: commands.Moved) -> Next:
    """Serve what has ended, and record the next steps of the others."""
    left = [each for each in event.deliveries if each.claim.key not in event.wrong]
    last = tuple(each for each in left if each.claim.last)
    told = {each.claim.key: each.told_in_all for each in left if not each.claim.last}
    state = replace(
        state,
        open={**state.open, **{each.key: each for each in event.claims}},
        told={**state.told, **told},
    )
    return state, (
        *([commands.Serve(last)] if last else []),
        *([commands.Record(event.claims)] if event.claims else []),
        *_undelivered(event.deliveries, event.wrong, late=True),
    )


def _undelivered(
    deliveries: Iterable[Delivery], wrong: Mapping[JobKey, IscpError], *, late: bool = False
) -> tuple[commands.Fail, ...]:
    """Fail these jobs. One that is lost once its snapshot is in place (`late`) starts over: the
    snapshot may have replaced a later one.
    """
    failed_ = [each for each in deliveries if each.claim.key in wrong]
    over = [
        each.claim.key
        for each in failed_
        if late and each.replaces and isinstance(wrong[each.claim.key], FenceError)
    ]
    return _fail(
        [failed(each.claim, wrong[each.claim.key], each.told_in_all) for each in failed_],
        frozenset(over),
    )


def _outcome(state: State, event: commands.Checked, claim: Claim) -> Outcome:
    """How the claim's step ended."""
    written, tenant = event.part.written, claim.key.tenant
    earlier = state.told.get(claim.key, {})
    passed = event.passed.get(claim.key)
    wrong, error = event.wrong.get(claim.key), written.error_of(tenant)
    if isinstance(passed, Failed):
        return replace(passed, told=together(earlier, passed.told))
    if passed is not None:
        return replace(passed, earlier=earlier)
    if wrong is not None:
        return failed(claim, wrong, earlier)
    if error is not None:
        return failed(claim, error, together(earlier, written.told.get(tenant, {})))
    return Delivery(claim=_whole(claim, written), written=written, earlier=earlier)


def _whole(claim: Claim, written: Written) -> Claim:
    """Make a snapshot that covers the whole claim its last step."""
    reading = written.reading
    if claim.last or not reading.staged or reading.range.to.version < claim.range.to.version:
        return claim
    return replace(claim, steps=claim.steps[-1:])


def _broken(state: State, error: Exception) -> Next:
    """The claims that are left fail with the error; what was done for some is still told."""
    code = error.code if isinstance(error, IscpError) else IscpError.code
    text = str(error) if isinstance(error, IscpError) else f"{type(error).__name__}: {error}"
    told = Error(code=code, message=text)
    left = tuple(_failed(state, key, told) for key in state.open)
    cut = tuple(each for each in left if each.told)
    return State(), (*_fail(left), *([commands.Give(cut)] if cut else []))


def _failed(state: State, key: JobKey, error: IscpError | Error) -> Failed:
    """The claim's failure, with what was done in earlier steps."""
    return failed(state.open[key], error, state.told.get(key, {}))


def _fail(
    wrong: Iterable[Failed], rebuild: frozenset[JobKey] = frozenset()
) -> tuple[commands.Fail, ...]:
    failures = tuple(wrong)
    return (commands.Fail(failures, rebuild=rebuild),) if failures else ()


def _writing(claims: Iterable[Claim]) -> list[Claim]:
    return [claim for claim in claims if claim.step.action in WRITES]


def by_job(claims: Iterable[Claim]) -> dict[str, commands.Claims]:
    """The claims by job name; tenants of one name share a table."""
    found: dict[str, list[Claim]] = {}
    for claim in claims:
        found.setdefault(claim.key.job_name, []).append(claim)
    return {job: tuple(members) for job, members in found.items()}
