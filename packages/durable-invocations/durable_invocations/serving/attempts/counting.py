"""How many executions of each run have failed, in this attempt and earlier ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from durable_invocations.protocol.failures import MOST_RUN_NAME, FailedExecutions, Failure
from durable_invocations.serving.attempts.running import PriorTries


class RunCounter:
    """Counts failed executions by the run's index and name.

    A runtime that keeps them sends those of earlier attempts (`run_attempts`). For others, only
    the first entry after the replay has counts: how often and how long the invocation was tried
    since the last entry was stored.
    """

    def __init__(self, start: Any, run_attempts: Iterable[FailedExecutions] | None) -> None:
        self._start = start
        self._kept = None if run_attempts is None else {run.index: run for run in run_attempts}

    def get_failed_executions(self, index: int, name: str) -> PriorTries:
        """How often the run failed before this attempt, and for how long."""
        if self._kept is None:
            return self._get_first_tries(index)
        attempts = self._get_attempts(index, name)
        return PriorTries(
            count=attempts.count, seconds=attempts.milliseconds / 1000, failure=attempts.failure
        )

    def give_up(self, index: int, name: str, failure: Failure) -> None:
        """Record that the run has failed for good, until that is stored."""
        if self._kept is not None:
            self._kept[index] = replace(self._get_attempts(index, name), failure=failure)

    def add(self, index: int, name: str, seconds: float, wait: int) -> None:
        """Count an execution that failed after `seconds`, and its `wait` in milliseconds."""
        if self._kept is None:
            return
        attempts = self._get_attempts(index, name)
        spent = attempts.milliseconds + round(seconds * 1000) + wait
        self._kept[index] = replace(attempts, count=attempts.count + 1, milliseconds=spent)

    @property
    def run_attempts(self) -> tuple[FailedExecutions, ...] | None:
        """What the runtime should keep; None if it does not support that."""
        return None if self._kept is None else tuple(self._kept.values())

    def _get_attempts(self, index: int, name: str) -> FailedExecutions:
        attempts = (self._kept or {}).get(index)
        name = name[:MOST_RUN_NAME]
        if attempts is None or attempts.name != name:
            return FailedExecutions(index=index, name=name, count=0, milliseconds=0)
        return attempts

    def _get_first_tries(self, index: int) -> PriorTries:
        count = self._start.retry_count_since_last_stored_entry
        if index != self._start.known_entries or not count:
            return PriorTries()
        return PriorTries(count=count, seconds=self._start.duration_since_last_stored_entry / 1000)
