"""A process that dies at one of its calls, from the view of the objects that it calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.sync.interpreter import iterate
from support.lake.delta_tables import Table


class Crash(BaseException):
    """The process has died; none of its code may run on."""


@dataclass
class CrashPoint:
    """The life of a process that dies before or after the n-th call of a method, from 1."""

    when: str
    method: str
    number: int = 1
    calls: Counter[str] = field(default_factory=Counter)
    meanwhile: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """By a method's name: what others do once it has returned for the first time."""
    dead: bool = False

    def check(self, when: str, method: str) -> None:
        """Raise Crash at the fatal call, and at every later one."""
        fatal = (self.when, self.method, self.number)
        self.dead = self.dead or (when, method, self.calls[method]) == fatal
        if self.dead:
            raise Crash


class CrashingProxy:
    """A log or a store whose calling process dies as `life` says."""

    def __init__(self, inner: Any, life: CrashPoint) -> None:
        self._inner, self._life = inner, life

    def __getattr__(self, name: str) -> Any:
        def call(*values: Any, **named: Any) -> Any:
            self._life.calls[name] += 1
            self._life.check("before", name)
            result = getattr(self._inner, name)(*values, **named)
            self._life.meanwhile.pop(name, lambda: None)()
            self._life.check("after", name)
            return result

        return call


def make_crashing_table(table: Table, life: CrashPoint) -> Table:
    """The table in a process that dies at a call of its log or of its state store."""
    deployment = table.deployment
    states = deployment.open_state_store
    stores = {} if states is None else {"open_state_store": lambda: CrashingProxy(states(), life)}
    log: Any = CrashingProxy(deployment.log, life)
    return replace(table, deployment=replace(deployment, log=log, **stores))


def run_until_crash(table: Table, iteration: Iteration, life: CrashPoint) -> None:
    """Run the iteration as a Dagster run does, in a process that dies before it is done."""
    deployment = make_crashing_table(table, life).deployment
    with pytest.raises(Crash):
        list(iterate(deployment, table.source, iteration, run_id="dead"))
