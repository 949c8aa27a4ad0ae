"""A whole stack over declared tables, used as users do."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iscp_dagster.demo.dagster_api import DagsterApi
from support.lake.delta_tables import Table
from support.services.stack import Stack, iscp

RUNS = """
query($tags: [ExecutionTag!], $limit: Int) {
  runsOrError(filter: {tags: $tags}, limit: $limit) {
    ... on Runs { results { runId status tags { key value } } }
  }
}
"""
TERMINATE = "mutation($id: String!) { terminateRun(runId: $id) { __typename } }"
A_LOGS_END = 6_000
SLOTS = 3
A_TENANTS_SLOTS = 2
"""The limits on concurrent runs: of all, and of one tenant."""


@dataclass(kw_only=True)
class Deployed:
    """The stack of a project's folder; commands run with `environment` reach the same services."""

    stack: Stack
    environment: Mapping[str, str]
    dagster: DagsterApi
    tables: tuple[Table, ...]

    @property
    def project(self) -> Path:
        return self.stack.home.parent

    def iscp(
        self, *arguments: str, stderr: int = subprocess.PIPE
    ) -> subprocess.CompletedProcess[str]:
        """Run a command; return how it ended."""
        environment = {**self.environment, "COLUMNS": "200", "TERM": "xterm"}
        return iscp(environment, self.project, *arguments, stderr=stderr)

    def done(self, *arguments: str) -> str:
        """Run a command that must succeed; return its output."""
        run = self.iscp(*arguments)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def runs(self, tags: Mapping[str, str], limit: int | None = None) -> list[dict[str, Any]]:
        """Return id, status and tags of Dagster's runs with these tags, the newest first."""
        variables = {"tags": [{"key": k, "value": v} for k, v in tags.items()], "limit": limit}
        runs = self.dagster.query(RUNS, variables)["runsOrError"]["results"]
        return [{**run, "tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in runs]

    def terminate(self, run: str | None) -> None:
        """Terminate a run, as the button in Dagster's UI does."""
        self.dagster.run_mutation(TERMINATE, {"id": run}, {"TerminateRunSuccess"})

    def told(self) -> str:
        """Return the jobs and the end of Dagster's log, to explain a failure."""
        log = (self.stack.home / "logs" / "dagster.log").read_text()
        jobs = [job for table in self.tables for job in table.jobs()]
        states = [f"{job.key} {job.state} {job.watermark} {job.status}" for job in jobs]
        return "\n".join([*states, log[-A_LOGS_END:]])
