"""Dagster as a child of the stack: its home, its command line, and what it says of the location.

Run as `python -m iscp_dagster.stack.dagster_server PORT WORKSPACE` with DAGSTER_HOME set: fails
the runs that an earlier, killed Dagster left behind, then becomes `dagster dev`.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp_dagster.stack.service import Service, http_probe, post_json
from iscp_dagster.stack.settings import (
    DAGSTER,
    HOST,
    StackSettings,
    child_environment,
    repository,
)

if TYPE_CHECKING:
    from dagster import DagsterInstance

_LEFT_BEHIND = "The Dagster that ran this is gone; the next iteration takes up from its watermark."
_LOCATIONS = """{ workspaceOrError { ... on Workspace { locationEntries {
  name locationOrLoadError { __typename ... on PythonError { message } } } } } }"""


def service(settings: StackSettings) -> Service:
    """`dagster dev` on the repository's workspace.yaml."""
    workspace = repository() / "workspace.yaml"
    return Service(
        name=DAGSTER,
        command=(
            sys.executable,
            "-m",
            __name__,
            str(settings.dagster_port),
            str(workspace),
        ),
        address=settings.dagster,
        environment=child_environment(settings),
        folder=repository(),
        log=settings.logs / "dagster.log",
        probe=http_probe(settings.dagster_port, "/server_info"),
        start_seconds=300.0,
        # Its runs would fail as the others go, and are to be canceled.
        uses_others=True,
        note=lambda: asyncio.to_thread(_location_problem, settings.dagster_port),
    )


def prepare(settings: StackSettings) -> None:
    """Make Dagster's home and put the repository's dagster.yaml into it."""
    settings.dagster_home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(repository() / "dagster.yaml", settings.dagster_home / "dagster.yaml")


def _location_problem(port: int) -> str:
    """Why a code location did not load, in one line; empty when all did."""
    try:
        answer: Any = post_json(port, "/graphql", {"query": _LOCATIONS})
        entries = answer["data"]["workspaceOrError"]["locationEntries"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""
    problems = (
        f"code location {entry['name']} did not load: "
        + " ".join(entry["locationOrLoadError"]["message"].split())
        for entry in entries
        if (entry["locationOrLoadError"] or {}).get("__typename") == "PythonError"
    )
    return "; ".join(problems)


def fail_runs_left_behind(instance: DagsterInstance) -> int:
    """Fail every run that has a worker on record; returns how many.

    Only right before Dagster starts: the workers of an earlier one died with it, and the default
    launcher does not find out, so that such a run would hold its place in the queue for ever.
    """
    from dagster import DagsterRunStatus, RunsFilter

    worked = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
    runs = instance.get_runs(RunsFilter(statuses=worked))
    for run in runs:
        instance.report_run_failed(run, _LEFT_BEHIND)
    return len(runs)


def main(port: str, workspace: str) -> None:
    """Clean up after an earlier Dagster and become `dagster dev`."""
    if Path(os.environ["DAGSTER_HOME"], "history", "runs.db").exists():
        from dagster import DagsterInstance

        with DagsterInstance.get() as instance:
            fail_runs_left_behind(instance)
    command = [sys.executable, "-m", "dagster", "dev", "-w", workspace, "-h", HOST, "-p", port]
    os.execv(sys.executable, command)  # noqa: S606


if __name__ == "__main__":
    main(*sys.argv[1:])
