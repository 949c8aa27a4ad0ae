"""The stack's run launcher for Dagster: runs start in a tenth of a second."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from dagster import DagsterRun
from dagster import _check as check
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher.base import (
    CheckRunHealthResult,
    LaunchRunContext,
    WorkerStatus,
)
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import serialize_value

from iscp_dagster.runs.server import (
    END,
    PING,
    SERVER_TAG,
    SOCKET_VARIABLE,
    START,
    ask,
    server_of,
    server_tag,
)


class WarmRunLauncher(DefaultRunLauncher):
    """Has `iscp_dagster.runs.server` fork a run; if none answers, the code server starts it.

    The code server also starts runs for other Pythons, containers and machines.
    """

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start the run. Raises DagsterUserCodeUnreachableError; Dagster then tries again."""
        socket = os.environ.get(SOCKET_VARIABLE)
        if not socket or not _is_ours(context.dagster_run) or not self._forked(socket, context):
            self._disown(context.dagster_run.run_id)
            super().launch_run(context)

    def _disown(self, run_id: str) -> None:
        """Clear the run's server tag, or monitoring would take the run for gone."""
        run = self._instance.get_run_by_id(run_id)
        if run is not None and run.tags.get(SERVER_TAG):
            # Dagster cannot remove a tag.
            self._instance.add_run_tags(run_id, {SERVER_TAG: ""})

    def _forked(self, socket: str, context: LaunchRunContext) -> bool:
        """Start the run on the run server; False if there is none."""
        run = context.dagster_run
        arguments = ExecuteRunArgs(
            job_origin=check.not_none(run.job_code_origin),
            run_id=run.run_id,
            instance_ref=self._instance.get_ref(),
        )
        try:
            ask(socket, what=PING)
            # The process that ends the run may not have this one's environment.
            self._instance.add_run_tags(run.run_id, server_tag(run.run_id, socket))
            ask(socket, what=START, run=run.run_id, arguments=serialize_value(arguments))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as error:
            raise DagsterUserCodeUnreachableError(
                f"The run server at {socket} did not say whether it started the run: {error}"
            ) from error
        return True

    def terminate(self, run_id: str) -> bool:
        """Interrupt the run; say whether there was anything to interrupt."""
        run = self._instance.get_run_by_id(run_id) if self.has_instance else None
        if run is None or run.is_finished or not self._has(run):
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        # Must come before the run can say that it was canceled.
        self._instance.report_run_canceling(run)
        return bool(ask(server_of(run), what=END, run=run_id)["known"])

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True, so that a run whose process was killed frees its place in the queue at once."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """NOT_FOUND for a run that its server no longer has; RUNNING where that is unknown."""
        socket = server_of(run)
        try:
            known = not socket or bool(ask(socket, what=PING, run=run.run_id)["known"])
        except (ConnectionRefusedError, FileNotFoundError):
            # Runs die with their server.
            known = False
        except OSError:
            known = True
        if known:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "The process of the run is gone.")

    def _has(self, run: DagsterRun) -> bool:
        """Whether a run server has the run."""
        socket = server_of(run)
        with suppress(OSError):
            return bool(socket and ask(socket, what=PING, run=run.run_id)["known"])
        return False


def _is_ours(run: DagsterRun) -> bool:
    """Whether the run's code is loaded by this same Python, outside containers."""
    origin = run.job_code_origin
    if origin is None or origin.repository_origin.container_image:
        return False
    return origin.repository_origin.executable_path == sys.executable
