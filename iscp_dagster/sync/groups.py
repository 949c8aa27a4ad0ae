"""The step that several claims share: read once, written, and checked."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace

from iscp_dagster.clickhouse.tables.indexes import DoubledRowsError, IndexStore, LostRowsError
from iscp_dagster.delta.feed import ReadKind, ReadPlan
from iscp_dagster.joblog.iterations import Claim, Failed
from iscp_dagster.model.batch import WRITES, Action, Range
from iscp_dagster.model.errors import (
    ConfigError,
    FeedGoneError,
    FenceError,
    IscpError,
    UnrepeatableError,
)
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.sync.consumers import is_index
from iscp_dagster.sync.ledger import Ledger
from iscp_dagster.sync.narrowing import Narrowing, Trial, tenants_of, untried
from iscp_dagster.sync.publish import Delivery, failed, refuse
from iscp_dagster.sync.reader import Reader, Reading
from iscp_dagster.sync.reading.transitions import OF_IMAGES, by_view
from iscp_dagster.sync.scan import Error, Written, clear, scan
from iscp_dagster.sync.sink import Sink

LOGGER = logging.getLogger(__name__)

Outcome = Delivery | Failed

SKIPPED = ReadPlan(kind=ReadKind.TAIL, reason="written before, nothing read")
ASIDE = ReadPlan(kind=ReadKind.TAIL, reason="cannot be read again, set aside as a dead letter")
UNKNOWN = ReadPlan(kind=ReadKind.SNAPSHOT, reason="it is unknown what was written before")
REPLACED = ReadPlan(kind=ReadKind.SNAPSHOT, reason="a later snapshot is already in place")
UNCLEAR = ReadPlan(
    kind=ReadKind.SNAPSHOT, reason="the changes do not say which rows remain; a snapshot does"
)


def delivered(
    reader: Reader,
    group: Sequence[Claim],
    ledger: Ledger,
    settled: dict[JobKey, Claim | None],
) -> Iterator[list[Outcome]]:
    """Scan the step that the claims of `group` share, for their tenants alone.

    Gives the outcomes index by index. A failure of several tenants that one of them may cause is
    narrowed down (`sync/narrowing.py`). Tenants whose changes turn out to be unreadable are read as
    a snapshot, at the end.
    """
    return _GroupStep(reader, ledger, settled).outcomes(group)


@dataclass
class _GroupStep:
    """One step's scans; `waiting` are not made yet."""

    reader: Reader
    ledger: Ledger
    settled: dict[JobKey, Claim | None]
    narrowing: Narrowing = field(default_factory=Narrowing)
    waiting: list[Trial] = field(default_factory=list)
    unclear: dict[JobKey, str] = field(default_factory=dict)
    """The jobs whose changes are unreadable, and why."""

    def outcomes(self, group: Sequence[Claim]) -> Iterator[list[Outcome]]:
        range_, layout = group[0].step.range, group[0].step.layout or {}
        for plan, claims in _planned(self.reader, group).items():
            self.waiting += self._trials(Reading(plan=plan, range=range_, layout=layout), claims)
        while self.waiting or self.unclear:
            if not self.waiting:
                self.waiting += self._whole(group, range_)
            trial = self.waiting.pop(0)
            if trial.failed:
                yield from self._narrowed(trial)
            else:
                yield from self._scanned(trial)

    def _trials(self, reading: Reading, claims: Sequence[Claim]) -> list[Trial]:
        """One scan for all claims that get the same rows: the source's, or a view's changes."""
        return [
            Trial(reading=replace(reading, transitions=transitions), claims=some)
            for transitions, some in by_view(self.reader.source, claims)
        ]

    def _whole(self, group: Sequence[Claim], range_: Range) -> list[Trial]:
        """A snapshot for all whose changes are unreadable."""
        claims = [claim for claim in group if claim.key in self.unclear]
        plan = UNCLEAR
        if len(tenants_of(claims)) == 1:
            # A reason may name a key of one tenant, which the others must not see.
            plan = replace(UNCLEAR, reason=self.unclear[claims[0].key])
        self.unclear = {}
        layout = group[0].step.layout or {}
        return self._trials(Reading(plan=plan, range=range_, layout=layout), claims)

    def _scanned(self, trial: Trial) -> Iterator[list[Outcome]]:
        together: dict[str, Error] = {}
        again: list[Claim] = []
        anew: list[Claim] = []
        with closing(_scanned(self.reader, trial, self.settled)) as scanned:
            for members, written in scanned:
                job, suspects = members[0].key.job_name, _suspects(trial, members, written)
                if suspects and written.error is not None:
                    together[job] = written.error
                    (anew if _lost_some(written) else again).extend(suspects)
                else:
                    self._tell(trial, members, written)
                left_out = {claim.key for claim in suspects}
                known = [claim for claim in members if claim.key not in left_out]
                yield from self._certain(known, written)
        more = [replace(trial, claims=anew), replace(trial, claims=again, failed=together)]
        self.waiting[:0] = [each for each in more if each.claims]
        for claim in (*anew, *again):
            # The consumer's transaction did not commit.
            self.settled.pop(claim.key, None)

    def _tell(self, trial: Trial, members: Sequence[Claim], written: Written) -> None:
        number = len(_writing(members))
        if number == 1 or (number and not written.error):
            self.narrowing.tell(trial, members[0].key.job_name, served=not written.error)

    def _certain(self, claims: Sequence[Claim], written: Written) -> Iterator[list[Outcome]]:
        found = _unclear(claims, written)
        self.unclear |= found
        left = [claim for claim in claims if claim.key not in found]
        if left:
            yield _outcomes(self.reader, left, written, self.ledger)

    def _narrowed(self, trial: Trial) -> Iterator[list[Outcome]]:
        """Smaller trials instead of a failed one; the outcomes of claims that are given up."""
        smaller, given_up = self.narrowing.narrowed(trial)
        self.waiting[:0] = smaller
        for job, members in _by_job(given_up).items():
            error = trial.failed[job]
            if error.code == FeedGoneError.code and not trial.reading.staged:
                self.unclear |= dict.fromkeys((each.key for each in members), error.message)
            else:
                wrong = [failed(claim, untried(claim, error)) for claim in members]
                yield list(refuse(self.reader.deployment, wrong))


def _suspects(trial: Trial, claims: Sequence[Claim], written: Written) -> list[Claim]:
    """The claims that may have caused the error of all; empty if no single one can have.

    Even the only tenant of one index may fail by the rows of another's, which the scan reads too.
    """
    writing, alone = _writing(claims), len(tenants_of(_writing(trial.claims))) == 1
    if written.error is None or not written.unsure or alone:
        return []
    return [claim for claim in writing if claim.key.tenant not in written.stopped]


def _lost_some(written: Written) -> bool:
    """Whether it failed only because some of its jobs were taken: it can serve the others."""
    code = FenceError.code
    lost = any(each.code == code for each in written.stopped.values())
    return lost and written.error is not None and written.error.code == code


def _writing(claims: Iterable[Claim]) -> list[Claim]:
    return [claim for claim in claims if claim.step.action in WRITES]


def _planned(reader: Reader, group: Sequence[Claim]) -> dict[ReadPlan, list[Claim]]:
    """How to read the claims' step, which may differ by tenant."""
    by_tenant = _by_tenant(replace(reader, tenants=tenants_of(group)), group)
    plans = {each.key: by_tenant[each.key.tenant] for each in group}
    plans |= _watched(reader, group, plans)
    tails = [each for each in group if plans[each.key].kind is ReadKind.TAIL]
    if not reader.source.keys:
        # A repair may have deleted the record of a batch that was begun.
        forgotten = tenants_of([claim for claim in group if claim.previous is None])
        unknown = forgotten & tenants_of(tails)
        plans |= {each.key: UNKNOWN for each in group if each.key.tenant in unknown}
    histories = {each.key for each in tails if each.consumer.type in OF_IMAGES}
    others = [each for each in tails if each.key not in histories]
    gone = _replaced(reader, others)
    # What another index lost is no gap in a history.
    own = {
        job: _replaced(reader, members)
        for job, members in _by_job([each for each in tails if each.key in histories]).items()
    }
    found: dict[ReadPlan, list[Claim]] = {}
    for claim in group:
        lost = own[claim.key.job_name] if claim.key in histories else gone
        plan = REPLACED if claim.key.tenant in lost else plans[claim.key]
        found.setdefault(plan, []).append(claim)
    return found


def _by_tenant(reader: Reader, claims: Sequence[Claim]) -> dict[str, ReadPlan]:
    plans = reader.plans(claims[0].step.range)
    return {tenant: plan for plan, some in plans.items() for tenant in some}


def _watched(
    reader: Reader, group: Sequence[Claim], plans: Mapping[JobKey, ReadPlan]
) -> dict[JobKey, ReadPlan]:
    """How to read for views and triggers where others need a snapshot: what only an index lacks is
    no gap for them.
    """
    found: dict[JobKey, ReadPlan] = {}
    for type_ in OF_IMAGES:
        claims = [
            each
            for each in group
            if each.consumer.type == type_ and plans[each.key].kind is ReadKind.SNAPSHOT
        ]
        if claims and not claims[0].step.range.initial:
            infos = tuple(dict.fromkeys(each.consumer for each in claims))
            alone = replace(reader, tenants=tenants_of(claims), consumers=infos)
            by_tenant = _by_tenant(alone, claims)
            found |= {each.key: by_tenant[each.key.tenant] for each in claims}
    return found


def _replaced(reader: Reader, claims: Sequence[Claim]) -> frozenset[str]:
    """The tenants for which an earlier attempt already put a snapshot in place in some index.

    A tail cannot tell there which of its keys existed before its range.
    """
    if not reader.source.keys:
        return frozenset()
    found: frozenset[str] = frozenset()
    replayed = [claim for claim in claims if claim.step.action is Action.REPLAY]
    for members in _by_job(replayed).values():
        range_, tenants = members[0].step.range, [claim.key.tenant for claim in members]
        # An index that fails here fails in its own part of the scan.
        with suppress(IscpError):
            store = _store(reader, members[0], range_.to.version)
            if store is not None:
                found |= store.replaced_after(tenants, range_.from_.version)
    return found


def _scanned(
    reader: Reader, trial: Trial, settled: dict[JobKey, Claim | None]
) -> Generator[tuple[list[Claim], Written], None, None]:
    """Yield the claims of each index, and what the scan wrote for them; drop staged rows last.

    Raises what the scan raises, except an error that a tenant's rows may cause where others wait.
    """
    wanted, claims = trial.reading, trial.claims
    # Nor must a view's expression that fails for a row stop what does not read the view.
    apart = len(reader.tenants) > 1 or wanted.transitions is not None
    reader = replace(reader, tenants=tenants_of(claims))
    writing = _by_job(_writing(claims))
    log = reader.deployment.log
    sinks = [Sink(log=log, claims=writing[job], settled=settled) for job in sorted(writing)]
    try:
        scanned = scan(reader, wanted, sinks) if sinks else {}
    except IscpError as error:
        told = Error.of(error)
        # These claims may be lost while others of the iteration are not.
        if not apart or not (told.unsure or isinstance(error, FenceError)):
            raise
        if wanted.transitions is not None and len(writing) > 1 and told.unsure:
            yield from _scanned_apart(reader, trial, settled)
            return
        scanned = dict.fromkeys(writing, Written(reading=wanted, error=told, unsure=told.unsure))
    try:
        for job, members in _by_job(claims).items():
            yield members, scanned.get(job, Written(reading=wanted))
    finally:
        clear(scanned)


def _scanned_apart(
    reader: Reader, trial: Trial, settled: dict[JobKey, Claim | None]
) -> Generator[tuple[list[Claim], Written], None, None]:
    """A scan for each job of a view: a trigger's condition that fails stops no other job."""
    for members in _by_job(trial.claims).values():
        for transitions, claims in by_view(reader.source, members):
            alone = replace(trial.reading, transitions=transitions)
            yield from _scanned(reader, replace(trial, reading=alone, claims=claims), settled)


def _by_job(claims: Sequence[Claim]) -> dict[str, list[Claim]]:
    """The claims by job name; tenants of one name share a table."""
    found: dict[str, list[Claim]] = {}
    for claim in claims:
        found.setdefault(claim.key.job_name, []).append(claim)
    return found


def _unclear(claims: Sequence[Claim], written: Written) -> dict[JobKey, str]:
    """The jobs whose changes turned out to be unreadable, and why."""
    if written.reading.staged:
        return {}
    errors = {claim.key: written.error_of(claim.key.tenant) for claim in _writing(claims)}
    gone = FeedGoneError.code
    return {key: each.message for key, each in errors.items() if each and each.code == gone}


def _outcomes(
    reader: Reader, claims: Sequence[Claim], written: Written, ledger: Ledger
) -> list[Outcome]:
    """The outcomes of one index's claims; failures are recorded in the log."""
    aside, others = list[Claim](), list[Claim]()
    for claim in claims:
        (aside if claim.step.action is Action.DEAD_LETTER else others).append(claim)
    ended = _set_aside(reader, aside, written, ledger)
    ended += [_ended(reader, claim, written, ledger) for claim in others]
    wrong = [each for each in ended if isinstance(each, Failed)]
    found = [each for each in ended if isinstance(each, Delivery)]
    errors = _checked([each for each in found if each.written is written])
    by_key = {each.claim.key: each for each in found}
    wrong += [failed(by_key[key].claim, error) for key, error in errors.items()]
    wrong = refuse(reader.deployment, wrong)
    _read_whole_again(reader, written, errors)
    return [*wrong, *(each for key, each in by_key.items() if key not in errors)]


def _read_whole_again(reader: Reader, written: Written, errors: Mapping[JobKey, IscpError]) -> None:
    """Rebuild jobs with doubled or lost rows, as ClickHouse would drop a replay by its tokens.

    A snapshot that lost rows needs no rebuild: its tokens are new each time.
    """
    kinds: tuple[type[IscpError], ...] = (DoubledRowsError,)
    if not written.reading.staged:
        kinds += (LostRowsError,)
    lost = [key for key, each in errors.items() if isinstance(each, kinds)]
    if lost:
        reader.deployment.log.rebuild(lost)


def _checked(deliveries: Sequence[Delivery]) -> dict[JobKey, IscpError]:
    """The jobs, of one index and reading, whose rows in ClickHouse are not exactly those sent."""
    store = deliveries[0].store if deliveries else None
    if store is None:
        return {}
    first, rows = deliveries[0], {each.tenant: each.inserted for each in deliveries}
    wrong: Mapping[str, IscpError]
    try:
        if first.replaces:
            wrong = store.check_staged(rows, version=first.to.version)
        else:
            wrong = store.check_appended(rows, range_=first.range)
    except IscpError as error:
        wrong = dict.fromkeys(rows, error)
    return {each.claim.key: wrong[each.tenant] for each in deliveries if each.tenant in wrong}


def _ended(reader: Reader, claim: Claim, written: Written, ledger: Ledger) -> Outcome:
    if claim.step.action is Action.SKIP:
        try:
            return _skipped(reader, claim, ledger)
        except IscpError as error:
            return failed(claim, error)
    wrong = written.error_of(claim.key.tenant)
    if wrong is not None:
        told = written.told.get(claim.key.tenant, {})
        return Failed(claim=claim, code=wrong.code, message=wrong.message, told=told)
    return Delivery(claim=claim, written=written, ledger=ledger)


def _skipped(reader: Reader, claim: Claim, ledger: Ledger, plan: ReadPlan = SKIPPED) -> Delivery:
    """The outcome of a step for which nothing is read."""
    range_ = claim.step.range
    store = _store(reader, claim, range_.to.version)
    written = Written(reading=Reading(plan=plan, range=range_), store=store)
    return Delivery(claim=claim, written=written, ledger=ledger)


def _set_aside(
    reader: Reader, claims: Sequence[Claim], written: Written, ledger: Ledger
) -> list[Outcome]:
    """Write only a dead letter for each claim of an index, which says what may be missing."""
    try:
        return _aside(reader, claims, written, ledger) if claims else []
    except IscpError as error:
        return [failed(claim, error) for claim in claims]


def _aside(
    reader: Reader, claims: Sequence[Claim], written: Written, ledger: Ledger
) -> list[Outcome]:
    range_, name = claims[0].step.range, f"{reader.source.name}/{claims[0].consumer.job}"
    store = _store(reader, claims[0], range_.to.version)
    if store is None:
        raise ConfigError(f"Job {name} keeps no index, and has no dead letters.")
    # Reject inserts still in flight, or the index could get rows after the letter is written.
    sink = Sink(log=reader.deployment.log, claims=claims)
    store = store.take_over(tenants_of(claims), sink.alive)
    lost = sink.lost()
    errors = {
        tenant: UnrepeatableError(
            f"Index {name}, tenant {tenant}: a run died writing versions {range_}, which cannot "
            f"be read again ({written.reading.plan.reason}). The index may have only some of their "
            "rows. Replay this letter to rebuild the tenant, or drop it to leave the index as it "
            "is."
        )
        for tenant in sorted(tenants_of(claims) - lost.keys())
    }
    if errors:
        store.set_aside(errors, registrations=sink.registrations, range_=range_)
    for each in errors.values():
        LOGGER.warning("%s", each)
    return [
        failed(claim, lost[claim.key.tenant])
        if claim.key.tenant in lost
        else _skipped(reader, claim, ledger, ASIDE)
        for claim in claims
    ]


def _store(reader: Reader, claim: Claim, version: int) -> IndexStore | None:
    return reader.store(claim.consumer, version) if is_index(claim.consumer) else None
