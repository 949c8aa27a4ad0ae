"""The runner that the location's sensors share, and how a tick waits for the next commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from dagster import SensorEvaluationContext

from iscp_dagster.location.sensor.recovery import Ours, Recovery
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.planning.look import Look
from iscp_dagster.planning.reporter import Reporter
from iscp_dagster.planning.runner import Runner
from iscp_dagster.runs.ending import is_ending
from iscp_dagster.runs.named import identity
from iscp_dagster.sync.deployment import Deployment

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

    def looks(self, context: SensorEvaluationContext) -> Iterator[Look]:
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
    def reporter(self, context: SensorEvaluationContext) -> Iterator[Reporter]:
        """Yield a reporter of the looks so far; no look is taken meanwhile."""
        with self._lock:
            _, runner = self._kept(context)
            yield Reporter(runner)

    def _look(self, context: SensorEvaluationContext, cursor: str | None) -> Look:
        with self._lock:
            recovery, runner = self._kept(context)
            recovery.look(context.instance)
            return runner.look(cursor)

    def _kept(self, context: SensorEvaluationContext) -> tuple[Recovery, Runner]:
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


def is_on(context: SensorEvaluationContext) -> bool:
    """Whether nobody switched the sensor off since its tick began."""
    origin = context.code_location_origin
    return all(
        state.is_running
        for state in context.instance.all_instigator_state()
        if state.instigator_name == context.sensor_name
        and (origin is None or state.selector.location_name == origin.location_name)
    )
