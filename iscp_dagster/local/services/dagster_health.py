"""Checks Dagster's code server, run server, webserver, daemon and sensor."""

from __future__ import annotations

import asyncio
import http.client
import time
from contextlib import suppress
from typing import Any

from iscp_dagster.local.services.rpc import Rpc, RpcError
from iscp_dagster.local.services.service import post_json
from iscp_dagster.runs.server import PING, ask

LOCATION = "iscp_dagster"
SENSOR = "iscp_runner"
UNREACHABLE = "DagsterUserCodeUnreachableError"
DEAF_SECONDS = 75.0
"""Each of the daemon's threads writes a heartbeat every 30 seconds."""
HANGING_SECONDS = 300.0
IDLE_SECONDS = 120.0
"""The sensor starts a tick within seconds of the last one's end; a tick may take long."""
_PING_SECONDS = 5.0
_RELOAD_SECONDS = 60.0

ERROR_FIELDS = "message errorChain { error { message } }"
"""The fields of a PythonError that `format_error` reads."""
_LONGEST = 500

_LOCATIONS = f"""{{ workspaceOrError {{ ... on Workspace {{ locationEntries {{ name loadStatus
  locationOrLoadError {{ __typename
    ... on PythonError {{ className {ERROR_FIELDS} }} }} }} }} }} }}"""
_HEARTBEATS = "{ instance { daemonHealth { allDaemonStatuses { required lastHeartbeatTime } } } }"
_SENSOR = f"""{{ sensorOrError(sensorSelector: {{ repositoryLocationName: "{LOCATION}",
  repositoryName: "__repository__", sensorName: "{SENSOR}" }}) {{ ... on Sensor {{
  minIntervalSeconds sensorState {{ status ticks(limit: 1) {{ status timestamp }} }} }} }} }}"""

Unanswered = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError)
"""The exceptions raised for a missing answer or one of an unexpected shape."""


class CodeHealth:
    """The code server at a socket: a proxy, and below it the process that holds the code."""

    def __init__(self, socket: str) -> None:
        self._rpc = Rpc(f"unix:{socket}")

    async def find_problem(self, _since: float) -> str:
        """The problem in one line; empty when there is none."""
        try:
            await asyncio.to_thread(self._rpc.call, "/api.DagsterApi/Ping", b"", _PING_SECONDS)
        except RpcError as error:
            return f"does not answer: {_format_details(error)}"
        return ""

    async def is_answering(self, since: float) -> bool:
        return not await self.find_problem(since)

    async def reload(self) -> None:
        """Replace the process that holds the code; runs of the old one continue."""
        call = self._rpc.call
        # The proxy itself answers this; a proxy that hangs cannot reload.
        await asyncio.to_thread(call, "/api.DagsterApi/Heartbeat", b"", _PING_SECONDS)
        # When the new process runs, the proxy asks the old one to end; this fails if that is gone.
        with suppress(RpcError):
            await asyncio.to_thread(call, "/api.DagsterApi/ReloadCode", b"", _RELOAD_SECONDS)


class RunsHealth:
    """The run server at a socket, which forks the runs."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    async def find_problem(self, _since: float) -> str:
        """The problem in one line; empty when there is none."""
        try:
            await asyncio.to_thread(ask, self._socket, what=PING)
        except (OSError, ValueError) as error:
            return f"does not answer: {error}"
        return ""

    async def is_answering(self, since: float) -> bool:
        return not await self.find_problem(since)


class DagsterHealth:
    """Checks the webserver at a port, and the daemon; ignores faults of the code server."""

    def __init__(self, port: int, code: CodeHealth) -> None:
        self._port = port
        self._code = code

    async def _query_dagster(self, query: str) -> Any:
        answer: Any = await asyncio.to_thread(post_json, self._port, "/graphql", {"query": query})
        return answer["data"]

    async def _list_locations(self) -> list[Any]:
        locations: list[Any] = (await self._query_dagster(_LOCATIONS))["workspaceOrError"][
            "locationEntries"
        ]
        return locations

    async def is_code_loaded(self, _since: float) -> bool:
        """Whether the webserver answers and has reached every location, even if code is broken."""
        try:
            entries = await self._list_locations()
        except Unanswered:
            return False
        return all(
            entry["loadStatus"] == "LOADED" and not _is_unreachable(entry) for entry in entries
        )

    async def find_web_problem(self, since: float) -> str:
        """The webserver's problem; empty also when the code server is at fault."""
        try:
            unreachable = [
                entry["name"] for entry in await self._list_locations() if _is_unreachable(entry)
            ]
        except Unanswered as error:
            return f"does not answer: {error}"
        if not unreachable or await self._code.find_problem(since):
            return ""
        return f"does not reach code location {', '.join(unreachable)}"

    async def find_code_problem(self) -> str:
        """Why code does not load, in one line; empty when it loads or a server does not answer."""
        try:
            entries = await self._list_locations()
        except Unanswered:
            return ""
        return "; ".join(
            f"code location {entry['name']} did not load: "
            + format_error(entry["locationOrLoadError"])
            for entry in entries
            if not _is_unreachable(entry)
            and (entry["locationOrLoadError"] or {}).get("__typename") == "PythonError"
        )

    async def is_daemon_alive(self, since: float) -> bool:
        """Whether the daemon wrote a heartbeat after `since`, in seconds since 1970."""
        try:
            return max(await self._list_heartbeats(), default=0.0) > since
        except Unanswered:
            return False

    async def _list_heartbeats(self) -> list[float]:
        health = (await self._query_dagster(_HEARTBEATS))["instance"]["daemonHealth"]
        return [
            status["lastHeartbeatTime"] or 0.0
            for status in health["allDaemonStatuses"]
            if status["required"]
        ]

    async def find_daemon_problem(self, since: float) -> str:
        """The problem of the daemon that started at `since`.

        Empty also when the webserver does not answer, or when the code server is at fault.
        """
        try:
            beats = [max(since, beat) for beat in await self._list_heartbeats()]
            sensor = (await self._query_dagster(_SENSOR))["sensorOrError"]
        except Unanswered:
            return ""
        if await self._code.find_problem(since):
            return ""
        now = time.time()
        if now - max(beats) > DEAF_SECONDS:
            return f"wrote its last heartbeat {now - max(beats):.0f} seconds ago"
        if now - min(beats) > HANGING_SECONDS:
            return f"has a thread whose last heartbeat was {now - min(beats):.0f} seconds ago"
        return find_idle_problem(sensor, since, now)


def find_idle_problem(sensor: Any, since: float, now: float) -> str:
    """The problem if the sensor should have ticked by now; the daemon started at `since`."""
    state = sensor.get("sensorState")
    if state is None or state["status"] != "RUNNING":
        return ""
    last_time = max([since, *(tick["timestamp"] for tick in state["ticks"])])
    under_way = any(tick["status"] == "STARTED" for tick in state["ticks"])
    patience = HANGING_SECONDS if under_way else IDLE_SECONDS + 3 * sensor["minIntervalSeconds"]
    return (
        f"has not ticked sensor {SENSOR} for {now - last_time:.0f} s"
        if now - last_time > patience
        else ""
    )


def format_error(error: Any) -> str:
    """A Dagster error in one line: the error below Dagster's own, and its root cause."""
    causes = [link["error"]["message"] for link in error.get("errorChain", [])]
    lines = [" ".join(text.split()) for text in causes or [error["message"]]]
    first, last = (line[:_LONGEST] + "…" * (len(line) > _LONGEST) for line in (lines[0], lines[-1]))
    return first if last.partition(": ")[2] in first else f"{first} (caused by {last})"


def _format_details(error: RpcError) -> str:
    """Only the details: the proxy quotes the whole gRPC error."""
    return str(error).partition(" debug_error_string")[0].rpartition("details = ")[2]


def _is_unreachable(entry: Any) -> bool:
    return (entry["locationOrLoadError"] or {}).get("className") == UNREACHABLE
