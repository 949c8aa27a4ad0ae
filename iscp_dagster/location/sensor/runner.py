"""The runner as a Dagster sensor, whose ticks wait for the next commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

import dagster as dg

from iscp_dagster.joblog.sql.statements import portions
from iscp_dagster.location.assets.iteration_job import Startable
from iscp_dagster.location.internals import MAX_RETRIES_TAG
from iscp_dagster.location.names import (
    PRIORITY_TAG,
    RUNNER,
    SERVICES_TAG,
    TABLE_TAG,
    TENANT_TAG,
    TENANTS_TAG,
    job_key,
    partitions_name,
    sync_job_name,
    tenants_job_name,
)
from iscp_dagster.location.sensor.recovery import Ours, Recovery
from iscp_dagster.location.sensor.trial import by_hand, is_trial, missing_partitions, trial_look
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.look import Dispatch, Look
from iscp_dagster.planning.reporter import Reporter
from iscp_dagster.planning.runner import Runner
from iscp_dagster.runs.ending import is_ending
from iscp_dagster.runs.named import DISPATCH_TAG, identity
from iscp_dagster.sync.deployment import Deployment

ROUND_SECONDS = 5
"""Seconds between the rounds in which Dagster's daemon evaluates sensors."""
SCAN_SECONDS = 10
"""Seconds between looks at a table in an object store, and at what becomes due by time alone."""
TICK_SECONDS = 19.4
"""How long a tick waits at most; Dagster's daemon starts due sensors every 5 s, and gives a tick
60 s."""
COMMITS_SECONDS = 0.1
"""Seconds between checks for the next commit of each table."""
EVENTS_SECONDS = 0.5
"""Seconds between checks for what happened to jobs."""
RESTS = 5
"""A tick checks for news only after resting this many times as long as its last look took."""
FORGOT = "The sensor's cursor could not be read; every table was looked at as after a restart."


@dataclass
class Lookout:
    """Kept between ticks, so that a tick costs only what changed; a restart starts over."""

    sources: Sequence[SourceTable]
    scan_seconds: float
    pause: Callable[[float], object] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    _lock: Lock = field(default_factory=Lock)
    """A restarted daemon may evaluate a sensor while the previous one still does."""
    _begun: tuple[Recovery, Runner] | None = None
    _turn: int = 0
    """Counts the ticks; a newer tick ends the waiting of earlier ones."""

    def looks(self, context: dg.SensorEvaluationContext) -> Iterator[Look]:
        """Yield the looks of one tick until one finds something; only the last one counts.

        Only one look if the daemon gives sensors no threads: the other sensors would have to wait.
        """
        self._turn = turn = self._turn + 1
        threads = (context.instance.get_settings("sensors") or {}).get("use_threads")
        until = self.monotonic() + (TICK_SECONDS if threads else 0.0)
        cursor = context.cursor
        while True:
            began = self.monotonic()
            look = self._look(context, cursor)
            yield look
            cursor, took = look.cursor, self.monotonic() - began
            rested = self.monotonic() + RESTS * took
            if not (look.quiet and self._stirs(turn, rested, until) and is_on(context)):
                return

    @contextmanager
    def reporter(self, context: dg.SensorEvaluationContext) -> Iterator[Reporter]:
        """Yield a reporter of the looks so far; no look is taken meanwhile."""
        with self._lock:
            _, runner = self._kept(context)
            yield Reporter(runner)

    def _look(self, context: dg.SensorEvaluationContext, cursor: str | None) -> Look:
        with self._lock:
            recovery, runner = self._kept(context)
            recovery.look(context.instance)
            return runner.look(cursor)

    def _kept(self, context: dg.SensorEvaluationContext) -> tuple[Recovery, Runner]:
        if self._begun is None:
            deployment: Deployment = context.resources.iscp.deployment()
            origin = context.code_location_origin
            ours = Ours.of(self.sources, None if origin is None else origin.location_name)
            runner = Runner(
                deployment,
                self.sources,
                owner=identity(context.instance),
                scan_seconds=self.scan_seconds,
                monotonic=self.monotonic,
                ending=is_ending,
            )
            self._begun = Recovery(deployment, ours, self.monotonic), runner
        return self._begun

    def _stirs(self, turn: int, rested: float, until: float) -> bool:
        """Wait for a reason to look again; False if there is none before `until`."""
        again = self.monotonic() + self.scan_seconds
        listen = 0.0
        while (now := self.monotonic()) < until and self._turn == turn and not is_ending():
            if now >= again:
                return True
            if now >= rested:
                if self._has_news(events=now >= listen):
                    return True
                listen = now + EVENTS_SECONDS if now >= listen else listen
            self.pause(COMMITS_SECONDS)
        return False

    def _has_news(self, *, events: bool) -> bool:
        with self._lock:
            if self._begun is None:
                return False
            _, runner = self._begun
            return runner.has_new_commit() or (events and runner.has_new_event())


def runner_sensor(lookout: Lookout, jobs: Sequence[Startable]) -> dg.SensorDefinition:
    """The sensor that finds new commits and requests runs for what is due."""

    @dg.sensor(
        name=RUNNER,
        jobs=jobs,
        # Every round of the daemon may begin a tick: a tick that finds nothing waits by itself.
        minimum_interval_seconds=max(1, min(int(lookout.scan_seconds), ROUND_SECONDS - 1)),
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={"iscp"},
        description="Finds new commits in the source tables and brings their indexes in step.",
    )
    def iscp_runner(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if is_trial(context):
            return _tried(context, lookout.sources)
        for each in lookout.looks(context):
            look = each
            add_partitions(context.instance, lookout.sources, look.present)
        for line in _told(look):
            context.log.warning(line)
        add_partitions(context.instance, lookout.sources, _dispatched(look))
        return dg.SensorResult(
            run_requests=[run_request(dispatch) for dispatch in look.dispatches],
            skip_reason=None if look.dispatches else _reason(look),
            cursor=look.cursor,
        )

    return iscp_runner


def _tried(context: dg.SensorEvaluationContext, sources: Sequence[SourceTable]) -> dg.SensorResult:
    """What a tick would request now; the cursor stays, since a trial changes nothing."""
    look = trial_look(context.resources.iscp.deployment(), sources, context.cursor)
    return dg.SensorResult(
        run_requests=[by_hand(run_request(dispatch)) for dispatch in look.dispatches],
        skip_reason=None if look.dispatches else _reason(look),
        cursor=context.cursor,
        dynamic_partitions_requests=list(missing_partitions(context.instance, look.dispatches)),
    )


def run_request(dispatch: Dispatch) -> dg.RunRequest:
    """One run for the iteration; for a single tenant it selects what is declared as assets."""
    iteration, source = dispatch.iteration, dispatch.source
    tenant, *others = sorted(iteration.tenants)
    names = {key.job_name for key in iteration.jobs}
    of = {TENANTS_TAG: str(len(iteration.tenants))} if others else {TENANT_TAG: tenant}
    if iteration.waits_long:
        of[SERVICES_TAG] = dispatch.name if others else tenant
    tags = {
        DISPATCH_TAG: dispatch.name,
        TABLE_TAG: source.name,
        **of,
        PRIORITY_TAG: str(iteration.priority),
        # The runner plans temporary failures again; other failures wait for a person.
        MAX_RETRIES_TAG: "0",
    }
    selected = [job_key(source, each.name) for each in source.consumers if each.name in names]
    if others or not selected:
        return dg.RunRequest(run_key=dispatch.name, job_name=tenants_job_name(source), tags=tags)
    return dg.RunRequest(
        run_key=dispatch.name,
        job_name=sync_job_name(source),
        partition_key=tenant,
        asset_selection=selected,
        # None would also run these assets' checks, which compare every row.
        asset_check_keys=[],
        tags=tags,
    )


def add_partitions(
    instance: dg.DagsterInstance,
    sources: Sequence[SourceTable],
    present: Mapping[str, Sequence[str]],
) -> None:
    """Make every tenant a partition. Idempotent."""
    for source in sources:
        tenants = present.get(source.name)
        if source.tenant is not None and tenants:
            # In portions: Dagster names all of them in one statement.
            for some in portions(tenants):
                instance.add_dynamic_partitions(partitions_name(source), some)


def _dispatched(look: Look) -> Mapping[str, Sequence[str]]:
    """Dispatched tenants by table, also those that have jobs but no rows yet."""
    found: dict[str, list[str]] = {}
    for dispatch in look.dispatches:
        found.setdefault(dispatch.source.name, []).extend(dispatch.iteration.tenants)
    return found


def _told(look: Look) -> list[str]:
    """What no earlier tick has reported."""
    forgot = [FORGOT] if look.forgot else []
    return [*forgot, *(str(each) for each in look.problems if each.table in look.risen)]


def _reason(look: Look) -> str:
    known = sorted({each.table for each in look.problems} - look.risen)
    still = f"Still wrong, as reported before (see the table's check): {', '.join(known)}."
    lines = [*_told(look), *([still] if known else [])]
    if look.elsewhere:
        names = ", ".join(sorted(look.elsewhere))
        lines += [f"Another Dagster on the same ISCP log looks after {names}; this one stands by."]
    return "\n".join(lines) or "Every index is in step, or its iteration is under way."


def is_on(context: dg.SensorEvaluationContext) -> bool:
    """Whether nobody switched the sensor off since its tick began."""
    origin = context.code_location_origin
    return all(
        state.is_running
        for state in context.instance.all_instigator_state()
        if state.instigator_name == context.sensor_name
        and (origin is None or state.selector.location_name == origin.location_name)
    )
