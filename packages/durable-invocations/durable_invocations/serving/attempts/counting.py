"""How many executions of each run have failed, in this attempt and in those before it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from durable_invocations.protocol.failures import MOST_RUN_NAME, Failure, RunAttempts
from durable_invocations.serving.attempts.running import Tried


class RunCounter:
    """Counts the executions that failed, by the run's place and name.

    A runtime that keeps them tells those of earlier attempts (`told`). Another tells of the first
    entry after the replay alone how often and how long the invocation was tried since the last
    entry was stored, whatever came of it.
    """

    def __init__(self, start: Any, told: Iterable[RunAttempts] | None) -> None:
        self._start = start
        self._kept = None if told is None else {each.index: each for each in told}

    def tried(self, index: int, name: str) -> Tried:
        """How often the run was executed in vain before this attempt, and for how long."""
        if self._kept is None:
            return self._told_of_first(index)
        held = self._held(index, name)
        return Tried(count=held.count, seconds=held.milliseconds / 1000, failure=held.failure)

    def give_up(self, index: int, name: str, failure: Failure) -> None:
        """Keep that the run has failed for good, until that is stored."""
        if self._kept is not None:
            self._kept[index] = replace(self._held(index, name), failure=failure)

    def add(self, index: int, name: str, seconds: float, wait: int) -> None:
        """Count an execution that failed after `seconds`, and a wait of so many milliseconds."""
        if self._kept is None:
            return
        held = self._held(index, name)
        spent = held.milliseconds + round(seconds * 1000) + wait
        self._kept[index] = replace(held, count=held.count + 1, milliseconds=spent)

    @property
    def run_attempts(self) -> tuple[RunAttempts, ...] | None:
        """What the runtime is to keep; None: it keeps nothing."""
        return None if self._kept is None else tuple(self._kept.values())

    def _held(self, index: int, name: str) -> RunAttempts:
        held = (self._kept or {}).get(index)
        name = name[:MOST_RUN_NAME]
        if held is None or held.name != name:
            return RunAttempts(index=index, name=name, count=0, milliseconds=0)
        return held

    def _told_of_first(self, index: int) -> Tried:
        count = self._start.retry_count_since_last_stored_entry
        if index != self._start.known_entries or not count:
            return Tried()
        return Tried(count=count, seconds=self._start.duration_since_last_stored_entry / 1000)
