"""Every row is booked once while service endpoint, runtime and runs are killed and stopped."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from durable_invocations.client.client import Client
from iscp_dagster.api.environment import open_deployment
from iscp_dagster.local.services.settings import CLICKHOUSE, DAGSTER, INVOCATIONS, SPARK
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.model.states import Event, JobState
from iscp_dagster.upkeep.position import read_positions
from support.invocations.asgi_process import Served, hypercorn
from support.lake.delta_tables import FEED, Table
from support.services.stack import Stack, copied_project, running_stack, wait_for
from support.services.stack_processes import HANG, KILL, STOP, Killer, of_kind
from support.spark.fake_spark import NearSpark
from support.spark.fake_spark import served as without_spark
from support.workers import booking_service
from support.workers.booking_service import Books, Row, books_of
from support.workers.soak_length import soak_seconds

SECONDS = soak_seconds(240)
HEALS_SECONDS = 300.0
"""The limit on a machine busy with other tests."""
BOOKED_SECONDS = 1_200.0
"""The limit for a job whose runs were killed so often in a row that it waits ten minutes."""
AWAY_SECONDS = 6.0
"""The longest that the endpoint does nothing."""
PAUSE_SECONDS = 2.0
"""The longest between two commits."""
TOGETHER = 4
"""Strikes after which all that is committed by then must be booked."""
TENANTS = ("acme", "globex", "initech")
MOST_ROWS = 12
ENDPOINT, RUNTIME, RUN = "endpoint", "invocations", "run"
SERVICES = (CLICKHOUSE, SPARK, DAGSTER, INVOCATIONS)
DECLARED = """
from iscp_dagster import Mirror, ServiceConsumer, SourceTable

booked = SourceTable(
    "soak.rows",
    key="id",
    tenant="tenant",
    indexes=[Mirror()],
    services=[ServiceConsumer("http://127.0.0.1:%s", handler="Trades/booked", rows=4, patience=10)],
)
"""


@dataclass
class Campaign:
    """A stack, its table, the endpoint in a process of its own, and what was done to them."""

    stack: Stack
    table: Table
    endpoint: Served
    file: Path
    killer: Killer
    committed: set[Row] = field(default_factory=set)
    commits: int = 0
    deck: list[tuple[str, str]] = field(default_factory=list)
    """What is still to be done to whom."""

    @property
    def chance(self) -> Random:
        return self.killer.random

    @property
    def books(self) -> Books:
        return books_of(self.file.read_text().splitlines())

    def commit(self, tenant: str, rows: int) -> None:
        first = len(self.committed)
        ids = range(first, first + rows)
        written = pa.table({"tenant": [tenant] * rows, "id": pa.array(ids, pa.int64())})
        write_deltalake(self.table.path, written, mode="append")
        self.committed |= {(tenant, id_) for id_ in ids}
        self.commits += 1

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Have the three tenants commit until the end of the block."""
        ended, chance = threading.Event(), Random(39)

        def commit() -> None:
            while not ended.wait(PAUSE_SECONDS * chance.random()):
                self.commit(chance.choice(TENANTS), chance.randint(1, MOST_ROWS))

        thread = threading.Thread(target=commit)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def strike(self) -> None:
        """Strike one or two of them at once; after nine each has been struck in each way."""
        if not self.deck:
            self.deck = list(product([KILL, STOP, HANG], [ENDPOINT, RUNTIME, RUN]))
            self.chance.shuffle(self.deck)
        strikes = {
            ENDPOINT: self._strike_endpoint,
            RUNTIME: self._strike_runtime,
            RUN: self._strike_run,
        }
        for _ in range(min(self.chance.randint(1, 2), len(self.deck))):
            how, victim = self.deck.pop()
            strikes[victim](how)

    def _strike_endpoint(self, how: str) -> None:
        """Kill it, or have it do nothing for a while; what hangs is killed in the end."""
        self.killer.done[f"{how} {ENDPOINT}"] += 1
        if how != KILL:
            assert self.endpoint.process is not None
            self.endpoint.process.send_signal(signal.SIGSTOP)
            time.sleep(AWAY_SECONDS * self.chance.random())
            if how == STOP:
                self.endpoint.process.send_signal(signal.SIGCONT)
                return
        self.endpoint.kill()
        self.endpoint.start()

    def _strike_runtime(self, how: str) -> None:
        before = self.stack.service(INVOCATIONS).restarts
        assert self.killer.strike(how, [RUNTIME])
        if how != STOP:
            self.stack.await_restart(INVOCATIONS, before + 1)

    def _strike_run(self, how: str) -> None:
        """Kill a run at work, or have it do nothing: for a while, or for good."""
        found: list[int] = []
        wait_for(lambda: self._halted(found), HEALS_SECONDS, self.told, every=0.02)
        if how == KILL:
            os.kill(found[0], signal.SIGKILL)
        elif how == STOP:
            time.sleep(AWAY_SECONDS * self.chance.random())
            with suppress(ProcessLookupError):
                os.kill(found[0], signal.SIGCONT)
        self.killer.done[f"{how} {RUN}"] += 1

    def _halted(self, found: list[int]) -> bool:
        for pid in of_kind((self.stack,), RUN)[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                found.append(pid)
        return bool(found)

    def await_progress(self) -> None:
        """Wait until another row is booked, so that the next strike comes upon work."""
        done = len(self.books.past)
        wait_for(lambda: len(self.books.past) > done, HEALS_SECONDS, self.told)

    def await_booked(self) -> None:
        """Wait until what is committed by now is booked, in spite of all."""
        rows = set(self.committed)
        wait_for(lambda: rows <= self.books.past, BOOKED_SECONDS, partial(self.told, rows))

    def in_step(self) -> bool:
        found = read_positions(self.table.deployment, self.table.source)
        return len(found) == 2 * len(TENANTS) and all(each.in_step for each in found)

    def told(self, rows: set[Row] | None = None) -> str:
        jobs = [f"{job.key} {job.state} {job.status}" for job in self.table.jobs()]
        missing = sorted((rows or self.committed) - self.books.past)[:20]
        logs = [self.stack.home / "logs" / f"{name}.log" for name in (INVOCATIONS, "supervisor")]
        ends = [each.read_text()[-4_000:] for each in (*logs, self.endpoint.log)]
        said = [f"{dict(self.killer.done)} missing {missing}", *jobs, str(self.stack.state())]
        return "\n".join([*said, *ends])


@pytest.fixture(params=["sqlite", "postgresql"])
def campaign(request, tmp_path) -> Iterator[Campaign]:
    port, file = find_free_port(), tmp_path / "books"
    file.touch()
    project = copied_project(tmp_path / "project")
    (project / "assets" / "docs.py").unlink()
    (project / "assets" / "rows.py").write_text(DECLARED % port)
    extra = {"PYTHONPATH": str(project)}
    if request.param == "postgresql":
        extra["ISCP_LOG_URL"] = request.getfixturevalue("new_postgres")()
    with ExitStack() as held:
        endpoint = Served(
            hypercorn(sys.executable, "booking_service:app", port),
            port,
            tmp_path / "endpoint.log",
            folder=Path(booking_service.__file__).parent,
            environment=os.environ | {"BOOKS": str(file), "PYTHONPATH": ""},
        )
        endpoint.start()
        held.callback(endpoint.kill)
        stack = held.enter_context(running_stack(project / ".iscp", SERVICES, extra=extra))
        lake = {"ISCP_LAKE": str(stack.home / "lake")}
        deployment = without_spark(open_deployment(stack.environment | extra | lake), NearSpark())
        source = runpy.run_path(str(project / "assets" / "rows.py"))["booked"]
        table = Table(deployment, source)
        table.create("tenant STRING, id BIGINT", FEED)
        made = Campaign(stack, table, endpoint, file, Killer((stack,), Random(request.param)))
        # First snapshots, which a run that was overtaken may ask for at another version.
        for tenant in TENANTS:
            made.commit(tenant, 1)
        wait_for(made.in_step, HEALS_SECONDS, made.told)
        yield made


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 3_000)
def test_every_row_is_booked_once_and_no_job_needs_a_person(campaign, record_property):
    until = time.monotonic() + SECONDS
    with campaign.committing():
        while time.monotonic() < until:
            for _ in range(TOGETHER):
                campaign.strike()
                campaign.await_progress()
            campaign.await_booked()
            print(dict(campaign.killer.done), len(campaign.committed), flush=True)  # noqa: T201
    wait_for(campaign.in_step, BOOKED_SECONDS, campaign.told)
    books = campaign.books
    assert books.past == set(books.booked) == campaign.committed
    assert books.repeated == []
    assert {row: ids for row, ids in books.invocations.items() if len(ids) > 1} == {}
    assert needing_a_person(campaign) == []
    record_property("rows", len(campaign.committed))
    record_property("commits", campaign.commits)
    record_property("invocations", len(set().union(*books.invocations.values())))
    record_property("booked again before the ack", books.booked.total() - len(books.booked))
    done: Counter[str] = campaign.killer.done
    record_property(f"{done.total()} strikes", dict(done))


def needing_a_person(campaign: Campaign) -> list[str]:
    """Return the jobs that ended in an error at any time, and the invocations that wait."""
    entries = campaign.table.deployment.log.read_history(most=1_000_000)
    failed = [str(each) for each in entries if each.event is Event.FAIL_PERMANENT]
    states = [str(job) for job in campaign.table.jobs() if job.state is JobState.ERROR]
    with Client(campaign.stack.service(INVOCATIONS).address) as client:
        waiting = [
            str(each)
            for each in client.invocations(10_000, service="Trades")
            if each["status"] != "completed"
        ]
    return failed + states + waiting
