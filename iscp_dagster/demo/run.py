"""The demo: load, synchronize, change, search, verify; everything through the stack."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from iscp_dagster.api.discovery import declared
from iscp_dagster.api.environment import deployment_of
from iscp_dagster.demo import alerts, searches
from iscp_dagster.demo.dagster_api import DagsterApi
from iscp_dagster.demo.load import installed
from iscp_dagster.demo.receiver import Receiver
from iscp_dagster.local.services.settings import home_of
from iscp_dagster.local.services.state import running_stack
from iscp_dagster.local.stack import control
from iscp_dagster.local.stack.environment import with_stack
from iscp_dagster.location.names import partitions_name, source_key
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import IscpError, SetupError
from iscp_dagster.model.variables import DAGSTER_URL, WEBHOOK_SECRET
from iscp_dagster.spark.session import disconnect
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.outbox import outbox_of
from iscp_dagster.upkeep.position import Position, positions
from iscp_dagster.upkeep.verify import Verdict, verify

LOAD_SECONDS = 900
SYNC_SECONDS = 900
DELIVERY_SECONDS = 60
POLL_SECONDS = 0.5
DATABASE, TABLE = "docs", "symbols"


class OutOfStepError(IscpError):
    """The indexes did not come in step in time, or differ from their source."""

    code = 10_960


@dataclass(frozen=True, kw_only=True)
class Demo:
    """One run of the demo against a stack that is up."""

    deployment: Deployment
    source: SourceTable
    dagster: DagsterApi
    console: Console
    tenants: Sequence[str]
    receiver: Receiver

    def play(self) -> list[Verdict]:
        """Run the whole demo, step by step, as a person would."""
        for tenant in self.tenants:
            self.dagster.add_partition(partitions_name(self.source), tenant)
        self._load("Loading the source table", self.tenants, {"summary": False})
        self._synchronize("Initial synchronization", self.tenants)
        before = self._delivered("Delivering the first events")
        # The last tenant does not change: its indexes must not move.
        change = {"summary": True, "deprecate": alerts.DEPRECATED}
        self._load("Committing a change", self.tenants[:-1], change)
        self._synchronize("Following the change", self.tenants)
        self._delivered("Delivering the change's events")
        alerts.show(self.receiver.events[before:], self.console)
        for search in searches.SEARCHES:
            search(self.deployment, self.source.database, self.console)
        with self._step("Verifying every index against its source"):
            verdicts = verify(self.deployment, self.source)
        self._table(positions(self.deployment, self.source), verdicts)
        return verdicts

    def _load(self, what: str, tenants: Sequence[str], config: dict[str, Any]) -> None:
        with self._step(f"{what}: {len(tenants)} distributions"):
            step = f"load_{self.source.database}_{self.source.table}"
            run_id = self.dagster.materialize(
                source_key(self.source).path,
                (tenants[0], tenants[-1]),
                {"ops": {step: {"config": config}}},
            )
            self.dagster.wait(run_id, LOAD_SECONDS)

    def _synchronize(self, what: str, tenants: Sequence[str]) -> None:
        """Wait until the runner and the run queue have brought every index in step."""
        total = len(tenants) * len(self.source.consumers)
        deadline = time.monotonic() + SYNC_SECONDS
        with _bar(self.console, what, total) as advance_to:
            while (done := self._in_step()) < total:
                advance_to(done)
                if time.monotonic() > deadline:
                    raise OutOfStepError(
                        f"{total - done} of {total} jobs are not in step after "
                        f"{SYNC_SECONDS} s: {self._errors()}; see {self.dagster.url}/runs"
                    )
                time.sleep(POLL_SECONDS)
            advance_to(done)

    def _delivered(self, what: str) -> int:
        """Wait until no event of the demo's trigger is pending; returns how many came in all."""
        outbox = outbox_of(self.deployment)
        with self._step(what):
            deadline = time.monotonic() + DELIVERY_SECONDS
            while outbox.numbers(alerts.TRIGGER, [alerts.RECEIVER]).events["pending"]:
                if time.monotonic() > deadline:
                    raise OutOfStepError(
                        f"events are not delivered after {DELIVERY_SECONDS} s; see "
                        f"`iscp events list --trigger {alerts.TRIGGER}`"
                    )
                time.sleep(POLL_SECONDS / 5)
        return len(self.receiver.events)

    def _in_step(self) -> int:
        return sum(each.in_step for each in positions(self.deployment, self.source))

    def _errors(self) -> str:
        found = positions(self.deployment, self.source)
        said = {each.job.status.message for each in found if each.job.status.code}
        return "; ".join(sorted(said)) or "no errors are reported"

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        with _bar(self.console, what, 1) as advance_to:
            yield
            advance_to(1)

    def _table(self, found: Sequence[Position], verdicts: Sequence[Verdict]) -> None:
        agree = {(each.tenant, each.index): each for each in verdicts}
        table = Table("tenant", "index", box=None, pad_edge=False)
        for name in ("rows", "watermark", "lag"):
            table.add_column(name, justify="right")
        table.add_column("in step")
        table.add_column("verified")
        for each in (one for one in found if (one.tenant, one.index) in agree):
            verdict = agree[each.tenant, each.index]
            table.add_row(
                each.tenant,
                each.index,
                f"{verdict.rows - verdict.missing + verdict.extra:,}",
                str(each.watermark.version),
                f"{each.lag:.1f} s" if each.lag is not None else "unbuilt",
                _yes(each.in_step),
                _yes(verdict.agrees),
            )
        self.console.print(table)


_NEXT = """
The stack stays up. To go on:
  ./iscp job list          shows where each index stands
  eval "$( ./iscp env )"   sets the addresses in a shell, for queries such as
  curl -s "$CLICKHOUSE_URL" -d "SELECT count() FROM docs.symbols_mirror"
  ./iscp down              ends it; docs/quickstart.md has a table of your own"""


def run(*, keep: bool) -> int:
    """Run the demo; 0 when every index is in step and agrees with its source."""
    console = Console(highlight=False)
    started_here = running_stack(home_of(os.environ)) is None
    try:
        control.up({}, (), detach=True)
        environ = with_stack(os.environ)
        deployment = deployment_of(environ)
        with Receiver(alerts.port_of(environ), environ.get(WEBHOOK_SECRET, "")) as receiver:
            # What an earlier demo left for its receiver comes to this one.
            outbox_of(deployment).resume(alerts.RECEIVER)
            demo = Demo(
                deployment=deployment,
                source=_symbols(declared(environ)),
                dagster=DagsterApi(environ[DAGSTER_URL]),
                console=console,
                tenants=installed(),
                receiver=receiver,
            )
            began = time.monotonic()
            verdicts = demo.play()
        _conclude(console, verdicts, time.monotonic() - began)
        if keep:
            control.status(as_json=False)
            console.print(_NEXT, markup=False, soft_wrap=True)
    finally:
        disconnect()
        if started_here and not keep:
            control.down()
    return 0


def _symbols(tables: Iterable[SourceTable]) -> SourceTable:
    """The demo's table. Raises SetupError if the location no longer declares it."""
    for table in tables:
        if (table.database, table.table) == (DATABASE, TABLE):
            return table
    raise SetupError(f"no module of assets/ declares {DATABASE}.{TABLE}; put assets/docs.py back")


def _conclude(console: Console, verdicts: Sequence[Verdict], seconds: float) -> None:
    wrong = [each for each in verdicts if not each.agrees]
    if wrong or not verdicts:
        raise OutOfStepError(f"{len(wrong)} of {len(verdicts)} indexes differ from their source.")
    rows = sum(each.rows for each in verdicts)
    console.print(
        f"[green]Every index agrees with its source[/]: {len(verdicts)} partitions, "
        f"{rows:,} rows compared, {seconds:.0f} s."
    )


def _yes(value: bool) -> str:  # noqa: FBT001 - a cell's value
    return "[green]yes[/]" if value else "[red]no[/]"


@contextmanager
def _bar(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)
