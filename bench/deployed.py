"""A separate stack with Dagster, to time a user's commit until it is in the indexes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from iscp_dagster import FullText, Mirror, SourceTable
from iscp_dagster.api.environment import open_deployment
from iscp_dagster.local.services.settings import get_repository
from iscp_dagster.local.stack.environment import add_stack_variables
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.model.states import JobState
from iscp_dagster.spark.session import disconnect
from iscp_dagster.sync.deployment import Deployment

if TYPE_CHECKING:
    from dagster import DagsterInstance

PROJECT = ("assets", "iscp_dagster", "resources", "dagster.yaml", "workspace.yaml")
TABLES = """
from iscp_dagster import FullText, Mirror, SourceTable

{lines}
"""
TABLE_LINE = (
    '{name} = SourceTable("bench.{name}", key="id", tenant="tenant", buckets={buckets}, '
    'indexes=[Mirror(), FullText("name")])'
)
STACK_PREFIXES = ("ISCP_", "DAGSTER_", "SPARK_", "CLICKHOUSE_", "PYSPARK_")
PATIENCE = 1_800.0
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class StackTable:
    """A declared table of the stack; delta-rs writes its commits."""

    deployment: Deployment
    source: SourceTable

    def commit(self, tenants: Sequence[str], rows: int, first: int) -> None:
        """Commit `rows` rows of each tenant at once, with ids from `first` on."""
        ids = range(first, first + rows * len(tenants))
        table = pa.table(
            {
                "tenant": [tenant for tenant in tenants for _ in range(rows)],
                "id": pa.array(ids, pa.int64()),
                "name": [f"some words of {number}" for number in ids],
            }
        )
        write_deltalake(
            self.deployment.get_table_path(self.source),
            table,
            mode="append",
            partition_by=None if self.source.buckets else ["tenant"],
            configuration={"delta.enableChangeDataFeed": "true"},
        )

    @property
    def path(self) -> str:
        return self.deployment.get_table_path(self.source)

    def run_sql(self, statement: str) -> None:
        """Run the statement in the stack's Spark."""
        self.deployment.spark().sql(statement).collect()

    def get_latest_time(self) -> datetime:
        """The time of the table's latest commit."""
        return self.deployment.make_delta_log(self.source).get_latest_moment().at

    def await_in_step(self, jobs: int, tenants: Collection[str] | None = None) -> None:
        """Wait until `jobs` jobs are at the latest commit, so that their rows are searchable.

        Of the `tenants`, if given: the others' jobs stay at the commits that changed them.
        """
        delta_log = self.deployment.make_delta_log(self.source)
        table_id, version = delta_log.get_table_id(), delta_log.get_latest_moment().version
        selected = frozenset(tenants or ())

        def is_in_step() -> bool:
            if self.deployment.log.count(table_id)[JobState.COMPLETED] != jobs:
                return False
            behind = self.deployment.log.list_tenants(table_id, behind=version)
            return not (behind if tenants is None else behind & selected)

        await_(is_in_step, f"{self.source.name} in step")

    def await_served(self, first: int, number: int = 1) -> None:
        """Wait until the mirror's readers see so many rows, with ids from `first` on."""
        endpoint = self.deployment.endpoint
        query = (
            f"SELECT count() FROM bench.{self.source.table}_mirror "
            f"WHERE id >= {first} AND id < {first + number}"
        )
        client = endpoint.get_client()
        await_(lambda: client.query(query).first_row[0] == number, f"{number} rows served")


def await_(condition: Callable[[], bool], label: str) -> None:
    """Wait until the condition holds, with a tenth of a core at most."""
    until = time.monotonic() + PATIENCE
    while True:
        began = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        if now > until:
            raise UnavailableError(f"Timed out after {PATIENCE:.0f} s: {label}.")
        time.sleep(max(LOOK_SECONDS, 9 * (now - began)))


@contextmanager
def deploy_stack(
    folder: Path, names: Sequence[str], declared: str = "", *, buckets: int | None = None
) -> Iterator[dict[str, StackTable]]:
    """Start a stack in `folder` over tables of these names, each with a mirror and a text index.

    With `declared`, over what that module declares; with `buckets`, tenants share so many.
    """
    project = folder / "project"
    for name in PROJECT:
        copy = shutil.copytree if (get_repository() / name).is_dir() else shutil.copy
        project.mkdir(exist_ok=True)
        copy(get_repository() / name, project / name)
    for module in (project / "assets").glob("[a-z]*.py"):
        module.unlink()
    lines = "\n".join(TABLE_LINE.format(name=name, buckets=buckets) for name in names)
    text = declared or TABLES.format(lines=lines)
    (project / "assets" / "tables.py").write_text(text)
    environ = _build_environment(project)
    command = [sys.executable, "-m", "iscp_dagster.cli.main"]
    subprocess.run(
        [*command, "up", "--detach"],
        cwd=project,
        env=environ,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        deployment = open_deployment(add_stack_variables(environ))
        yield {name: StackTable(deployment, _make_source(name, buckets)) for name in names}
    finally:
        # A session that outlives its server retries it again and again.
        disconnect()
        subprocess.run([*command, "down"], cwd=project, env=environ, check=True)


@contextmanager
def open_instance(folder: Path) -> Iterator[DagsterInstance]:
    """The Dagster instance of the stack in `folder`."""
    from dagster import DagsterInstance

    home = folder / "project" / ".iscp" / "dagster"
    with DagsterInstance.from_config(str(home)) as instance:
        yield instance


def _make_source(name: str, buckets: int | None) -> SourceTable:
    return SourceTable(
        f"bench.{name}",
        key="id",
        tenant="tenant",
        buckets=buckets,
        indexes=[Mirror(), FullText("name")],
    )


def _build_environment(project: Path) -> Mapping[str, str]:
    variables = {k: v for k, v in os.environ.items() if not k.startswith(STACK_PREFIXES)}
    jars = {"ISCP_JARS": os.environ["ISCP_JARS"]} if "ISCP_JARS" in os.environ else {}
    return variables | jars | {"ISCP_HOME": str(project / ".iscp"), "PYTHONPATH": str(project)}
