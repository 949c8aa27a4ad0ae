"""Dagster as children of the stack: code server, run server, daemon and webserver.

Run as `python -m iscp_dagster.local.services.dagster_server SOCKET` with DAGSTER_HOME set: fails
the runs that an earlier, killed code server left behind, then becomes the code server (ADR 19).
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from iscp_dagster.local.services import dagster_health
from iscp_dagster.local.services.service import Service
from iscp_dagster.local.services.settings import (
    CODE,
    DAEMON,
    DAGSTER,
    HOST,
    RUNS,
    StackSettings,
    build_child_environment,
    get_module_folder,
    get_repository,
)
from iscp_dagster.model.variables import DAGSTER_HOME
from iscp_dagster.runs.server import SOCKET_VARIABLE, report_left_behind_runs
from iscp_dagster.runs.server_address import RunServerAddress
from iscp_dagster.runs.shutdown import ENDING_VARIABLE

_MODULE = "iscp_dagster.definitions"
_STORAGE = """
# The files of Dagster's default.
storage:
  custom:
    module: iscp_dagster.runs.sqlite
    class: SqliteStorage
    config:
      base_dir: {folder}
"""
_LONGEST_SOCKET = 100
"""Bytes of a socket's path; Linux allows 107."""


def build_services(settings: StackSettings) -> list[Service]:
    """The code server, the run server, the daemon and the webserver; call `prepare` first."""
    socket, runs_socket = (
        _make_socket_path(settings, "code.sock"),
        _make_socket_path(settings, "runs.sock"),
    )
    launch_environment = {SOCKET_VARIABLE: runs_socket}
    runs_health = dagster_health.RunsHealth(runs_socket)
    workspace = _write_workspace(settings, socket)
    code_health = dagster_health.CodeHealth(socket)
    health = dagster_health.DagsterHealth(settings.dagster_port, code_health)
    python = (sys.executable, "-m")
    return [
        _build_service(
            settings,
            CODE,
            (*python, __name__, socket),
            extra={ENDING_VARIABLE: str(_get_ending_path(settings))},
            probe=code_health.is_answering,
            check=code_health.find_problem,
            mend=code_health.reload,
        ),
        _build_service(
            settings,
            RUNS,
            (*python, "iscp_dagster.runs.server", runs_socket),
            after=CODE,
            probe=runs_health.is_answering,
            check=runs_health.find_problem,
        ),
        _build_service(
            settings,
            DAEMON,
            (*python, "dagster._daemon", "run", "-w", workspace),
            extra=launch_environment,
            after=CODE,
            probe=health.is_daemon_alive,
            check=health.find_daemon_problem,
            check_interval_factor=4,
        ),
        _build_service(
            settings,
            DAGSTER,
            (
                *(*python, "iscp_dagster.local.web.dagster_webserver", "-w", workspace, "-h", HOST),
                *("-p", str(settings.dagster_port), "--live-data-poll-rate", "2000"),
            ),
            address=settings.dagster,
            after=CODE,
            probe=health.is_code_loaded,
            check=health.find_web_problem,
            check_interval_factor=2,
            note=health.find_code_problem,
        ),
    ]


def _build_service(
    settings: StackSettings,
    name: str,
    command: tuple[str, ...],
    *,
    extra: Mapping[str, str] = MappingProxyType({}),
    **fields: Any,
) -> Service:
    return Service(
        **{
            "name": name,
            "command": command,
            "address": "",
            "environment": build_child_environment(settings) | dict(extra),
            "folder": get_module_folder(),
            "log": settings.logs / f"{name}.log",
            "start_seconds": 300.0,
            # Its runs must be canceled: they would fail if other services ended first.
            "stops_first": True,
            **fields,
        }
    )


def prepare(settings: StackSettings) -> None:
    """Make Dagster's home, with the repository's dagster.yaml and a storage if that names none."""
    settings.dagster_home.mkdir(parents=True, exist_ok=True)
    _get_ending_path(settings).unlink(missing_ok=True)
    text = (get_repository() / "dagster.yaml").read_text(encoding="utf-8")
    if not _has_storage(text):
        text += _STORAGE.format(folder=json.dumps(str(settings.dagster_home)))
    (settings.dagster_home / "dagster.yaml").write_text(text, encoding="utf-8")


def _has_storage(dagster_yaml: str) -> bool:
    import yaml  # type: ignore[import-untyped]

    storages = {"storage", "run_storage", "event_log_storage", "schedule_storage"}
    return not storages.isdisjoint(yaml.safe_load(dagster_yaml) or ())


def signal_end(settings: StackSettings) -> None:
    """Make waiting sensor ticks return now; the daemon ends only after them."""
    if settings.dagster_home.exists():
        _get_ending_path(settings).touch()


def _get_ending_path(settings: StackSettings) -> Path:
    return settings.dagster_home / "ending"


def _make_socket_path(settings: StackSettings, name: str) -> str:
    """The path of a server's socket, which only this user can reach."""
    path = settings.dagster_home / name
    if len(os.fsencode(path)) <= _LONGEST_SOCKET:
        return str(path)
    folder = tempfile.mkdtemp(prefix="iscp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(Path(folder) / name)


def _write_workspace(settings: StackSettings, socket: str) -> str:
    """Copy the repository's workspace.yaml with our location at the socket; return the path."""
    import yaml

    workspace = yaml.safe_load((get_repository() / "workspace.yaml").read_text(encoding="utf-8"))
    others = [
        entry
        for entry in workspace["load_from"]
        if entry.get("python_module", {}).get("location_name") != dagster_health.LOCATION
    ]
    location = {"grpc_server": {"socket": socket, "location_name": dagster_health.LOCATION}}
    path = settings.dagster_home / "workspace.yaml"
    path.write_text(yaml.safe_dump({"load_from": [location, *others]}), encoding="utf-8")
    return str(path)


def main(socket: str) -> None:
    """Fail the runs that died with an earlier code server, then become the code server."""
    if Path(os.environ[DAGSTER_HOME], "history", "runs.db").exists():
        # The runs' processes died with their code server. The default launcher does not notice, so
        # they would hold their places in the queue for ever. The run server ends its own runs.
        report_left_behind_runs(lambda run: RunServerAddress.from_run(run) is None)
    # The code server holds the code in a child process, so a reload replaces only the child.
    command = [sys.executable, "-m", "dagster", "code-server", "start", "--socket", socket]
    command += ["--module-name", _MODULE, "--location-name", dagster_health.LOCATION]
    command += ["--inject-env-vars-from-instance", "--log-level", "warning"]
    os.execv(sys.executable, command)  # noqa: S606


if __name__ == "__main__":
    main(*sys.argv[1:])
