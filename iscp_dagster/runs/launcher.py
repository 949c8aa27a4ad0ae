"""The stack's run launcher for Dagster: runs start in a tenth of a second."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress

import dagster as dg

from iscp_dagster.runs.internals import (
    CheckRunHealthResult,
    DagsterUserCodeUnreachableError,
    ExecuteRunArgs,
    LaunchRunContext,
    WorkerStatus,
)
from iscp_dagster.runs.run_names import is_iteration_run
from iscp_dagster.runs.server import END, PING, SOCKET_VARIABLE, START, ask
from iscp_dagster.runs.server_address import SERVER_TAG, RunServerAddress

AWAY = (
    "The run server at {socket} does not answer ({error}), so the code server starts runs, which "
    "takes some seconds each. Start it, or see why it ended: python -m iscp_dagster.runs.server."
)
STAYS = (
    "Run %s was not interrupted, and continues if its process lives: %s. Once it has ended, or its "
    "lease has run out, the next iteration continues its work."
)
LOGGER = logging.getLogger(__name__)
_SILENT: set[str] = set()
"""Sockets of run servers that this process has warned about. Several threads launch runs."""
_LOCK = threading.Lock()


class WarmRunLauncher(dg.DefaultRunLauncher):
    """Has `iscp_dagster.runs.server` fork a run; if none answers, the code server starts it.

    The code server also starts runs for other Pythons, containers and machines.

    Runs of a run server end with it. Iterations that the code server runs end with the daemon,
    since the code server would continue them.
    """

    _in_daemon = False
    """Whether it has launched a run, or watched one, which only the daemon does."""

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start the run. Raises DagsterUserCodeUnreachableError; Dagster then tries again."""
        self._in_daemon = True
        socket = os.environ.get(SOCKET_VARIABLE)
        if (
            not socket
            or not _is_this_python(context.dagster_run)
            or not self._start_on_server(socket, context)
        ):
            self._clear_server_tag(context.dagster_run.run_id)
            super().launch_run(context)

    def _clear_server_tag(self, run_id: str) -> None:
        """Clear the run's server tag, or monitoring would take the run for gone."""
        run = self._instance.get_run_by_id(run_id)
        if run is not None and run.tags.get(SERVER_TAG):
            # Dagster cannot remove a tag.
            self._instance.add_run_tags(run_id, {SERVER_TAG: ""})

    def _start_on_server(self, socket: str, context: LaunchRunContext) -> bool:
        """Start the run on the run server; False if there is none."""
        run = context.dagster_run
        assert run.job_code_origin is not None
        arguments = ExecuteRunArgs(
            job_origin=run.job_code_origin,
            run_id=run.run_id,
            instance_ref=self._instance.get_ref(),
        )
        try:
            ask(socket, what=PING)
            address = RunServerAddress.from_socket(socket)
        except OSError as error:
            return self._warn_once(socket, error, run)
        # The process that ends the run may not have this one's environment.
        self._instance.add_run_tags(run.run_id, address.build_tags(run.run_id))
        try:
            ask(socket, what=START, run=run.run_id, arguments=dg.serialize_value(arguments))
        except (ConnectionRefusedError, FileNotFoundError) as error:
            return self._warn_once(socket, error, run)
        except OSError as error:
            raise DagsterUserCodeUnreachableError(
                f"The run server at {socket} did not say whether it started the run: {error}"
            ) from error
        with _LOCK:
            _SILENT.discard(socket)
        return True

    def _warn_once(self, socket: str, error: OSError, run: dg.DagsterRun) -> bool:
        """Warn, once until the server starts a run again; returns False."""
        with _LOCK:
            warned = socket in _SILENT
            _SILENT.add(socket)
        if not warned:
            warning = AWAY.format(socket=socket, error=error)
            LOGGER.warning(warning)
            self._instance.report_engine_event(warning, run)
        return False

    def terminate(self, run_id: str) -> bool:
        """Interrupt the run; return whether there was anything to interrupt."""
        run = self._instance.get_run_by_id(run_id) if self.has_instance else None
        address = None if run is None or run.is_finished else RunServerAddress.from_run(run)
        if run is None or address is None or not _is_known(address, run):
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        # Must come before the run can say that it was canceled.
        self._instance.report_run_canceling(run)
        return bool(ask(address.socket, what=END, run=run_id)["known"])

    def dispose(self) -> None:
        """Interrupt the code server's iterations, if this is the process of Dagster's daemon."""
        if not self._in_daemon:
            return
        begun = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]
        for run in self._instance.get_runs(dg.RunsFilter(statuses=begun)):
            if is_iteration_run(run) and RunServerAddress.from_run(run) is None:
                try:
                    self.terminate(run.run_id)
                except dg.DagsterError as error:
                    LOGGER.warning(STAYS, run.run_id, error)

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True, so that a run whose process was killed frees its place in the queue at once."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """NOT_FOUND for a run whose process has ended; RUNNING also if that is unknown."""
        self._in_daemon = True
        if _is_gone(run):
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "The process of the run is gone.")
        return CheckRunHealthResult(WorkerStatus.RUNNING)


def _is_known(address: RunServerAddress, run: dg.DagsterRun) -> bool:
    """Whether the server there has the run."""
    with suppress(OSError):
        return bool(ask(address.socket, what=PING, run=run.run_id)["known"])
    return False


def _is_gone(run: dg.DagsterRun) -> bool:
    """Whether the run's process is known to have ended."""
    address = RunServerAddress.from_run(run)
    if address is None:
        return False
    try:
        has_run = ask(address.socket, what=PING, run=run.run_id)["known"]
    except OSError:
        return address.is_deserted
    return address.is_here and not has_run


def _is_this_python(run: dg.DagsterRun) -> bool:
    """Whether the run's code is loaded by this same Python, outside containers."""
    origin = run.job_code_origin
    if origin is None or origin.repository_origin.container_image:
        return False
    return origin.repository_origin.executable_path == sys.executable
