"""A stack of the benchmark's own, with Dagster, to time a user's commit to its indexes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from iscp_dagster import FullText, Mirror, SourceTable
from iscp_dagster.api.environment import deployment_of
from iscp_dagster.local.services.settings import repository
from iscp_dagster.local.stack.environment import with_stack
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
DECLARED = (
    '{name} = SourceTable("bench.{name}", key="id", tenant="tenant", '
    'indexes=[Mirror(), FullText("name")])'
)
OF_A_STACK = ("ISCP_", "DAGSTER_", "SPARK_", "CLICKHOUSE_", "PYSPARK_")
PATIENCE = 1_800.0
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Followed:
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
            self.deployment.path(self.source),
            table,
            mode="append",
            partition_by=["tenant"],
            configuration={"delta.enableChangeDataFeed": "true"},
        )

    @property
    def path(self) -> str:
        return self.deployment.path(self.source)

    def sql(self, statement: str) -> None:
        """Run the statement in the stack's Spark."""
        self.deployment.spark().sql(statement).collect()

    def latest(self) -> datetime:
        """The time of the table's latest commit."""
        return self.deployment.delta_log(self.source).latest().at

    def await_in_step(self, jobs: int) -> None:
        """Wait until `jobs` jobs are at the latest commit, so that their rows are searchable."""
        delta_log = self.deployment.delta_log(self.source)
        table_id, version = delta_log.table_id(), delta_log.latest().version

        def there() -> bool:
            found = self.deployment.log.count(table_id)[JobState.COMPLETED]
            return found == jobs and not self.deployment.log.tenants(table_id, behind=version)

        await_(there, f"{self.source.name} in step")

    def await_served(self, id_: int) -> None:
        """Wait until the mirror's readers see a row."""
        endpoint = self.deployment.endpoint
        query = f"SELECT count() FROM bench.{self.source.table}_mirror WHERE id = {id_}"
        await_(lambda: endpoint.client().query(query).first_row[0] == 1, f"row {id_} served")


def await_(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise UnavailableError(f"Timed out after {PATIENCE:.0f} s: {what}.")
        time.sleep(LOOK_SECONDS)


@contextmanager
def deployed(
    folder: Path, names: Sequence[str], declared: str = ""
) -> Iterator[dict[str, Followed]]:
    """Start a stack in `folder` over tables of these names, each with a mirror and a text index.

    With `declared`, over what that module declares.
    """
    project = folder / "project"
    for name in PROJECT:
        copy = shutil.copytree if (repository() / name).is_dir() else shutil.copy
        project.mkdir(exist_ok=True)
        copy(repository() / name, project / name)
    for module in (project / "assets").glob("[a-z]*.py"):
        module.unlink()
    lines = "\n".join(DECLARED.format(name=name) for name in names)
    text = declared or TABLES.format(lines=lines)
    (project / "assets" / "tables.py").write_text(text)
    environ = _environment(project)
    command = [sys.executable, "-m", "iscp_dagster.cli.main"]
    subprocess.run(
        [*command, "up", "--detach"],
        cwd=project,
        env=environ,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        deployment = deployment_of(with_stack(environ))
        yield {name: Followed(deployment, _source(name)) for name in names}
    finally:
        # A session that is still there when its server ends asks it again and again.
        disconnect()
        subprocess.run([*command, "down"], cwd=project, env=environ, check=True)


@contextmanager
def instance_in(folder: Path) -> Iterator[DagsterInstance]:
    """The Dagster instance of the stack in `folder`."""
    from dagster import DagsterInstance

    home = folder / "project" / ".iscp" / "dagster"
    with DagsterInstance.from_config(str(home)) as instance:
        yield instance


def _source(name: str) -> SourceTable:
    return SourceTable(
        f"bench.{name}", key="id", tenant="tenant", indexes=[Mirror(), FullText("name")]
    )


def _environment(project: Path) -> Mapping[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OF_A_STACK)}
    jars = {"ISCP_JARS": os.environ["ISCP_JARS"]} if "ISCP_JARS" in os.environ else {}
    return kept | jars | {"ISCP_HOME": str(project / ".iscp"), "PYTHONPATH": str(project)}
