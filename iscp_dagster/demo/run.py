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

from iscp_dagster.api.discovery import load_tables
from iscp_dagster.api.environment import open_deployment
from iscp_dagster.demo import alerts, searches
from iscp_dagster.demo.dagster_api import DagsterApi
from iscp_dagster.demo.load import list_installed
from iscp_dagster.demo.receiver import Receiver
from iscp_dagster.local.services.settings import get_home
from iscp_dagster.local.services.state import find_running_stack
from iscp_dagster.local.stack import control
from iscp_dagster.local.stack.environment import add_stack_variables
from iscp_dagster.location.names import get_partitions_name, get_source_asset_key
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import IscpError, SetupError
from iscp_dagster.model.variables import DAGSTER_URL, WEBHOOK_SECRET
from iscp_dagster.spark.session import disconnect
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.upkeep.outbox import open_outbox
from iscp_dagster.upkeep.position import JobPosition, read_positions
from iscp_dagster.upkeep.verify_indexes import IndexVerdict, compare_or_raise

LOAD_SECONDS = 900
SYNC_SECONDS = 900
DELIVERY_SECONDS = 60
POLL_SECONDS = 0.5
DATABASE, TABLE = "docs", "symbols"


class OutOfStepError(IscpError):
    """The indexes were not in step, or events not delivered, in time; or an index differs."""

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

    def run_steps(self) -> list[IndexVerdict]:
        """Run the whole demo, step by step, as a person would."""
        for tenant in self.tenants:
            self.dagster.add_partition(get_partitions_name(self.source), tenant)
        self._load_tenants("Loading the source table", self.tenants, {"summary": False})
        self._synchronize("Initial synchronization", self.tenants)
        before = self._wait_for_delivery("Delivering the first events")
        # The last tenant does not change: its indexes must not move.
        change = {"summary": True, "deprecate": alerts.DEPRECATED}
        self._load_tenants("Committing a change", self.tenants[:-1], change)
        self._synchronize("Following the change", self.tenants)
        self._wait_for_delivery("Delivering the change's events")
        alerts.show(self.receiver.events[before:], self.console)
        for search in searches.SEARCHES:
            search(self.deployment, self.source.database, self.console)
        with self._show_step("Verifying every index against its source"):
            verdicts = compare_or_raise(self.deployment, self.source)
        self._print_table(read_positions(self.deployment, self.source), verdicts)
        return verdicts

    def _load_tenants(self, title: str, tenants: Sequence[str], config: dict[str, Any]) -> None:
        with self._show_step(f"{title}: {len(tenants)} distributions"):
            step = f"load_{self.source.database}_{self.source.table}"
            run_id = self.dagster.materialize(
                get_source_asset_key(self.source).path,
                (tenants[0], tenants[-1]),
                {"ops": {step: {"config": config}}},
            )
            self.dagster.wait(run_id, LOAD_SECONDS)

    def _synchronize(self, title: str, tenants: Sequence[str]) -> None:
        """Wait until the runner and the run queue have brought every index in step."""
        total = len(tenants) * len(self.source.consumers)
        deadline = time.monotonic() + SYNC_SECONDS
        with _show_bar(self.console, title, total) as advance_to:
            while (in_step := self._count_in_step()) < total:
                advance_to(in_step)
                if time.monotonic() > deadline:
                    raise OutOfStepError(
                        f"{total - in_step} of {total} jobs are not in step after "
                        f"{SYNC_SECONDS} s: {self._describe_errors()}; see {self.dagster.url}/runs"
                    )
                time.sleep(POLL_SECONDS)
            advance_to(in_step)

    def _wait_for_delivery(self, title: str) -> int:
        """Wait until no event of the demo's trigger is pending; returns how many came in total."""
        outbox = open_outbox(self.deployment)
        with self._show_step(title):
            deadline = time.monotonic() + DELIVERY_SECONDS
            while outbox.summarize_trigger(alerts.TRIGGER, [alerts.RECEIVER]).events["pending"]:
                if time.monotonic() > deadline:
                    raise OutOfStepError(
                        f"events are not delivered after {DELIVERY_SECONDS} s; see "
                        f"`iscp events list --trigger {alerts.TRIGGER}`"
                    )
                time.sleep(POLL_SECONDS / 5)
        return len(self.receiver.events)

    def _count_in_step(self) -> int:
        return sum(position.in_step for position in read_positions(self.deployment, self.source))

    def _describe_errors(self) -> str:
        positions = read_positions(self.deployment, self.source)
        messages = {
            position.job.status.message for position in positions if position.job.status.code
        }
        return "; ".join(sorted(messages)) or "no errors are reported"

    @contextmanager
    def _show_step(self, title: str) -> Iterator[None]:
        with _show_bar(self.console, title, 1) as advance_to:
            yield
            advance_to(1)

    def _print_table(
        self, positions: Sequence[JobPosition], verdicts: Sequence[IndexVerdict]
    ) -> None:
        by_index = {(verdict.tenant, verdict.index): verdict for verdict in verdicts}
        table = Table("tenant", "index", box=None, pad_edge=False)
        for name in ("rows", "watermark", "lag"):
            table.add_column(name, justify="right")
        table.add_column("in step")
        table.add_column("verified")
        for position in (
            position for position in positions if (position.tenant, position.job_name) in by_index
        ):
            verdict = by_index[position.tenant, position.job_name]
            table.add_row(
                position.tenant,
                position.job_name,
                f"{verdict.rows - verdict.missing + verdict.extra:,}",
                str(position.watermark.version),
                f"{position.lag:.1f} s" if position.lag is not None else "unbuilt",
                _format_flag(position.in_step),
                _format_flag(verdict.agrees),
            )
        self.console.print(table)


_NEXT = """
The stack stays up. Next:
  ./iscp job list          shows the state of each index
  eval "$( ./iscp env )"   sets the addresses in a shell, for queries such as
  curl -s "$CLICKHOUSE_URL" -d "SELECT count() FROM docs.symbols_mirror"
  ./iscp down              ends it; docs/quickstart.md has a table of your own"""


def run(*, keep: bool) -> int:
    """Run the demo; 0 when every index is in step and agrees with its source."""
    console = Console(highlight=False)
    started_here = find_running_stack(get_home(os.environ)) is None
    try:
        control.start_stack({}, (), detach=True)
        environ = add_stack_variables(os.environ)
        deployment = open_deployment(environ)
        with Receiver(alerts.get_port(environ), environ.get(WEBHOOK_SECRET, "")) as receiver:
            # This receiver also gets the events that an earlier demo left.
            open_outbox(deployment).resume(alerts.RECEIVER)
            demo = Demo(
                deployment=deployment,
                source=_find_table(load_tables(environ)),
                dagster=DagsterApi(environ[DAGSTER_URL]),
                console=console,
                tenants=list_installed(),
                receiver=receiver,
            )
            began = time.monotonic()
            verdicts = demo.run_steps()
        _require_agreement(console, verdicts, time.monotonic() - began)
        if keep:
            control.print_status(as_json=False)
            console.print(_NEXT, markup=False, soft_wrap=True)
    finally:
        disconnect()
        if started_here and not keep:
            control.stop_stack()
    return 0


def _find_table(tables: Iterable[SourceTable]) -> SourceTable:
    """The demo's table. Raises SetupError if the location no longer declares it."""
    for table in tables:
        if (table.database, table.table) == (DATABASE, TABLE):
            return table
    raise SetupError(f"no module of assets/ declares {DATABASE}.{TABLE}; put assets/docs.py back")


def _require_agreement(console: Console, verdicts: Sequence[IndexVerdict], seconds: float) -> None:
    wrong = [verdict for verdict in verdicts if not verdict.agrees]
    if wrong or not verdicts:
        raise OutOfStepError(f"{len(wrong)} of {len(verdicts)} indexes differ from their source.")
    rows = sum(verdict.rows for verdict in verdicts)
    console.print(
        f"[green]Every index agrees with its source[/]: {len(verdicts)} comparisons, "
        f"{rows:,} rows compared, {seconds:.0f} s."
    )


def _format_flag(value: bool) -> str:  # noqa: FBT001 - a cell's value
    return "[green]yes[/]" if value else "[red]no[/]"


@contextmanager
def _show_bar(console: Console, title: str, total: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task(title, total=total)
        yield lambda completed: progress.update(task, completed=completed)
