"""Changes reach receivers and subscribers once each, whatever is killed on the way."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import Any

import pytest

from idempotent_receiver import NewestPositions
from iscp_dagster.local.services import credentials
from iscp_dagster.local.services.settings import CLICKHOUSE, GRAPHQL
from iscp_dagster.model.states import Event
from iscp_dagster.upkeep.position import read_positions
from support.lake import trades_table
from support.lake.delta_tables import Table
from support.lake.trades_table import QUIET, Key, Sent, Told, Trades
from support.live.websocket_subscriber import Follower, following
from support.outbox.receiver_process import Hooks, receiving_at
from support.services.stack import Stack, wait_for
from support.services.stack_processes import KILL, Killer, of_kind
from support.workers.soak_length import soak_seconds

pytestmark = pytest.mark.timeout(900)

SECONDS = 240.0
"""The limit on a machine busy with other tests."""
QUICK_SECONDS = 0.02
FIELD = "flow_big_trades"
BASE = 1
"""The version at which the history begins."""
KEYS, AT_ONCE, COMMITS = 20, 30, 3
"""Keys of a tenant, rows that a commit changes, and commits that one iteration may find."""
MANY_KEYS, MANY_AT_ONCE, MANY_COMMITS = 100, 90, 9
MANY = 10_000
"""Changes of the long test."""


@dataclass(repr=False)
class Flow:
    """The trades' way through the stack to a receiver and a subscriber."""

    ground: Any
    table: Table
    hooks: Hooks
    follower: Follower
    killer: Killer
    stopped: list[int] = field(default_factory=list)
    """The run that is about to be killed."""

    @property
    def trades(self) -> Trades:
        return self.ground.trades

    @property
    def stacks(self) -> tuple[Stack, ...]:
        return self.killer.stacks

    def put(self, commits: int = COMMITS, rows: int = AT_ONCE, keys: int = KEYS) -> None:
        for _ in range(commits):
            self.trades.put(rows, keys)

    def strike(self, *kinds: str) -> None:
        """Kill a process of each kind: a run in the middle of its work, another once there is one.

        The receiver is killed in the middle of its deliveries, if it is named.
        """
        if "run" in kinds:
            self._strike_run()
        if "receiver" in kinds:
            self._strike_receiver()
        for kind in (each for each in kinds if each not in {"run", "receiver"}):
            wait_for(lambda kind=kind: bool(of_kind(self.stacks, kind)), SECONDS, self.told)
            self.killer.strike(KILL, [kind])
        if "receiver" in kinds:
            self.hooks.start()

    def _strike_receiver(self) -> None:
        before = self.hooks.count("handled")
        wait_for(
            lambda: self.hooks.count("handled") > before, SECONDS, self.told, every=QUICK_SECONDS
        )
        self.hooks.kill()
        self.killer.done["kill receiver"] += 1

    def _strike_run(self) -> None:
        """Kill a run that is stopped in the middle of its work."""
        wait_for(self._stop_a_run, SECONDS, self.told, every=QUICK_SECONDS)
        os.kill(self.stopped.pop(), signal.SIGKILL)
        self.killer.done["kill run"] += 1

    def _stop_a_run(self) -> bool:
        for run in of_kind(self.stacks, "run")[:1]:
            with suppress(ProcessLookupError):
                os.kill(run, signal.SIGSTOP)
                self.stopped.append(run)
        return bool(self.stopped)

    def caught_up(self) -> None:
        """Wait until receiver and subscriber have had all that there is."""
        events = sum(map(len, self.trades.sent().values()))
        changes = sum(map(len, self.trades.told(BASE).values()))

        def have_all() -> bool:
            taken = sum(map(len, self.taken()[1].values()))
            return self.hooks.count("handled") >= events and taken >= changes

        wait_for(have_all, SECONDS, self.told)

    def in_step(self) -> bool:
        positions = read_positions(self.table.deployment, self.table.source)
        tenants = len(trades_table.TENANTS)
        return len(positions) >= tenants and all(each.in_step for each in positions)

    def taken(self) -> tuple[dict[Key, Any], dict[Key, list[Told]]]:
        """Return the rows of the snapshot, and the changes after it, that the deduplicator took."""
        newest, base = NewestPositions(), int(self.trades.timestamp(BASE))
        rows: dict[Key, Any] = {}
        changes: dict[Key, list[Told]] = defaultdict(list)
        for each in list(self.follower.messages):
            data, at = each["data"], each["ts_timestamp"]
            key = data["tenant"], int(data["id"])
            if not newest.accept(key, at):
                continue
            if int(at) <= base:
                rows[key] = data
            else:
                changes[key].append(Told(each["operation"], data, tuple(each["fields"]), at))
        return rows, dict(changes)

    def handled(self) -> dict[Key, list[Sent]]:
        sent: dict[Key, list[Sent]] = defaultdict(list)
        for body in self.hooks.handled():
            data, at = body["data"], body["source_timestamp"]
            event = Sent(body["event_id"], body["event_type"], at, data)
            sent[data["tenant"], data["id"]].append(event)
        return dict(sent)

    def check(self) -> None:
        """Check that both got what the model has, in its order, and nothing else."""
        assert self.handled() == self.trades.sent()
        rows, changes = self.taken()
        assert rows == self.trades.standing(BASE)
        assert changes == self.trades.told(BASE)
        assert self.hooks.count("refused") == 0
        bodies = "SELECT event_id FROM arrivals GROUP BY event_id HAVING count(DISTINCT body) > 1"
        assert self.hooks.rows(bodies) == []

    def numbers(self) -> dict[str, int]:
        """Return what came, and how much of it came again."""
        arrivals, events = self.hooks.count("arrivals"), self.hooks.count("handled")
        rows, changed = self.taken()
        changes = sum(map(len, changed.values()))
        return {
            "changes": self.trades.changes,
            "events": events,
            "requests": arrivals,
            "duplicates": self.hooks.count("answers WHERE duplicate"),
            "messages": len(self.follower.messages),
            "again": len(self.follower.messages) - changes - len(rows),
            "connections": self.follower.connections,
            "commits together": self.commits_together(),
        }

    def commits_together(self) -> int:
        """Return how many commits an iteration has read, at the most."""
        entries = self.table.deployment.log.read_history(tenant=trades_table.TENANTS[0])
        ends = [each for each in entries if each.event is Event.COMPLETE]
        spans = [
            each.to.version - each.from_.version
            for each in ends
            if each.name.table == self.table.source.table
        ]
        return max(spans, default=0)

    def told(self) -> str:
        jobs = [f"{job.key} {job.state} {job.status}" for job in self.table.jobs()]
        logs = self.ground.stack.home / "logs"
        ends = [(logs / f"{name}.log").read_text()[-4_000:] for name in ("graphql", "supervisor")]
        counts = f"{self.numbers()} {dict(self.killer.done)} {dict(self.follower.ends)}"
        return "\n".join([counts, *jobs, str(self.ground.stack.state()), *ends])


@pytest.fixture(scope="module")
def flow(ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    stack, folder = ground.stack, tmp_path_factory.mktemp("flow")
    table = Table(ground.deployment, ground.declared["trades"])
    secret = credentials.read(stack.home).webhook
    follower = Follower(lambda: address(stack), FIELD, "tenant id amount note gross")
    with receiving_at(ground.hooks, folder / "hooks.sqlite", secret) as hooks:
        killer = Killer((stack, ground.clickhouse), Random(16))
        flow = Flow(ground, table, hooks, follower, killer)
        # No event comes of these rows, whether the trigger's job begins before or after them.
        ground.trades.put(AT_ONCE, KEYS, QUIET)
        wait_for(flow.in_step, SECONDS, flow.told)
        with following(follower):
            rows = flow.trades.standing(BASE)
            wait_for(lambda: len(follower.messages) >= len(rows), SECONDS, flow.told)
            yield flow


def address(stack: Stack) -> str:
    return stack.service(GRAPHQL).address.replace("http", "ws", 1)


@pytest.fixture
def checked(flow: Flow, record_property) -> Iterator[Flow]:
    """Check what came, and print how much."""
    flow.killer.done.clear()
    yield flow
    flow.check()
    done = flow.killer.done
    for name, number in flow.numbers().items():
        record_property(name, number)
    record_property(f"{done.total()} kills", dict(done))


def test_what_changes_arrives_once_while_processes_are_killed(checked: Flow) -> None:
    """For daemon and code server see test_own_dagster, for the run server test_run_server."""
    checked.put()
    checked.strike("run")
    checked.strike("receiver", "graphql")
    checked.caught_up()
    clickhouse = checked.ground.clickhouse
    restarts = clickhouse.service(CLICKHOUSE).restarts
    checked.strike("clickhouse")
    clickhouse.await_restart(CLICKHOUSE, restarts + 1)
    checked.put()
    checked.caught_up()
    checked.trades.keep()
    assert_came_again(checked)
    assert checked.killer.done.total() == 4


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_thousand_changes_arrive_once_while_processes_are_killed(checked: Flow) -> None:
    trades = checked.trades
    trades.go_live()
    kinds = cycle(["run", "receiver", "graphql", "clickhouse", "daemon", "code server", "code"])
    until = time.monotonic() + soak_seconds(math.inf)
    while trades.changes < MANY and time.monotonic() < until:
        checked.put(MANY_COMMITS, MANY_AT_ONCE, MANY_KEYS)
        checked.strike(next(kinds))
        print(checked.numbers(), dict(checked.killer.done), flush=True)  # noqa: T201
    checked.caught_up()
    assert_came_again(checked)


def assert_came_again(flow: Flow) -> None:
    """Check that the deduplicators had something to do."""
    numbers = flow.numbers()
    assert numbers["duplicates"] > 0
    assert numbers["again"] > 0
    assert numbers["commits together"] > 1
