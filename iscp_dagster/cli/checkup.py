"""Checks a deployment: its services, its Dagster and its ISCP log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from iscp_dagster.api.jobs import Jobs
from iscp_dagster.clickhouse.connect.endpoint import urls_of
from iscp_dagster.local.services.clickhouse_health import problem as clickhouse_problem
from iscp_dagster.local.services.dagster_health import (
    DEAF_SECONDS,
    ERROR_FIELDS,
    SENSOR,
    idle,
    told,
)
from iscp_dagster.local.services.settings import without_password
from iscp_dagster.local.services.spark_health import SparkHealth
from iscp_dagster.model.errors import IscpError, NoTableError
from iscp_dagster.model.states import JobState
from iscp_dagster.model.variables import CLICKHOUSE_URL, CLICKHOUSE_URLS, DAGSTER_URL, SPARK_REMOTE
from iscp_dagster.planning.problems import problem_of
from iscp_dagster.upkeep.position import Position, positions

_DAGSTER_SECONDS = 20.0
_SHOWN = 3
_DAGSTER = f"""{{ instance {{ daemonHealth {{ allDaemonStatuses {{ daemonType required
      lastHeartbeatTime }} }} }}
  workspaceOrError {{ ... on PythonError {{ message }} ... on Workspace {{ locationEntries {{ name
    locationOrLoadError {{ ... on PythonError {{ {ERROR_FIELDS} }} ... on RepositoryLocation {{
      repositories {{ sensors {{ name minIntervalSeconds sensorState {{ status
        ticks(limit: 1) {{ status timestamp error {{ {ERROR_FIELDS} }} }}
      }} }} }} }} }} }} }} }} }}"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was checked, and what is wrong with it; an empty `problem` means nothing."""

    what: str
    problem: str = ""
    note: str = ""
    """A remark that need not be a problem."""


def services(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check every ClickHouse, and Spark."""
    urls = urls_of(environ.get(CLICKHOUSE_URLS, "")) or urls_of(environ.get(CLICKHOUSE_URL, ""))
    for url in urls:
        yield Finding(what=f"clickhouse {without_password(url)}", problem=clickhouse_problem(url))
    remote = environ.get(SPARK_REMOTE, "")
    if remote:
        problem = asyncio.run(SparkHealth(remote).problem(0.0))
        yield Finding(what=f"spark {without_password(remote)}", problem=problem)
    missing = {CLICKHOUSE_URL: urls, SPARK_REMOTE: remote}
    for name, value in missing.items():
        if not value:
            yield Finding(what=name, problem="is not set, and no stack is up")


def dagster(url: str | None, now: float) -> Iterator[Finding]:
    """Check the webserver at a URL, and by it the locations, the daemon and the sensor."""
    if not url:
        yield Finding(
            what="dagster",
            problem=f"was not asked: set {DAGSTER_URL} to the address of its webserver",
        )
        return
    name = f"dagster {without_password(url)}"
    try:
        answer = _asked(url)
        entries = answer["workspaceOrError"]["locationEntries"]
        beats = answer["instance"]["daemonHealth"]["allDaemonStatuses"]
    except Exception as error:  # noqa: BLE001 - any error means no answer
        yield Finding(what=name, problem=f"does not answer: {_line(str(error))}")
        return
    yield Finding(what=name)
    yield Finding(what="daemon", problem=_daemon(beats, now))
    yield from (_location(entry) for entry in entries)
    yield Finding(what=f"sensor {SENSOR}", problem=_ticks(list(_sensors(entries)), now))


def _asked(url: str) -> Any:
    import httpx

    # A proxy from the environment does not serve this machine itself.
    remote = urlsplit(url).hostname not in {"localhost", "127.0.0.1"}
    with httpx.Client(timeout=_DAGSTER_SECONDS, trust_env=remote) as client:
        answer = client.post(f"{url.rstrip('/')}/graphql", json={"query": _DAGSTER})
        answer.raise_for_status()
        return answer.json()["data"]


def _daemon(beats: Collection[Any], now: float) -> str:
    silent = [
        each["daemonType"].lower()
        for each in beats
        if each["required"] and now - (each["lastHeartbeatTime"] or 0.0) > 2 * DEAF_SECONDS
    ]
    return f"has written no heartbeat lately: {', '.join(sorted(silent))}" if silent else ""


def _location(entry: Any) -> Finding:
    loaded = entry["locationOrLoadError"]
    failed = loaded is not None and "message" in loaded
    problem = told(loaded) if failed else "" if loaded else "is being loaded"
    return Finding(what=f"code location {entry['name']}", problem=problem)


def _sensors(entries: Collection[Any]) -> Iterator[Any]:
    for entry in entries:
        for repository in (entry["locationOrLoadError"] or {}).get("repositories", []):
            yield from (each for each in repository["sensors"] if each["name"] == SENSOR)


def _ticks(sensors: Collection[Any], now: float) -> str:
    if not sensors:
        return "is in no loaded code location"
    return next(filter(None, (_tick(sensor, now) for sensor in sensors)), "")


def _tick(sensor: Any, now: float) -> str:
    state = sensor["sensorState"]
    if state["status"] != "RUNNING":
        return "is switched off"
    failed = [tick for tick in state["ticks"] if tick["status"] == "FAILURE"]
    if failed:
        error = failed[0]["error"]
        return f"failed at its last tick{f': {told(error)}' if error else ''}"
    return idle(sensor, 0.0, now) if state["ticks"] else "has not ticked yet"


def jobs(deployed: Jobs, limit: float) -> Iterator[Finding]:
    """Jobs in error, and indexes that a commit older than `limit` seconds has not reached."""
    now = deployed.deployment.clock().timestamp()
    errors = deployed.list_jobs(None, None, JobState.ERROR)
    named = [f"{job.name.db}.{job.name.table}/{job.name.job}, {job.key.tenant}" for job in errors]
    yield Finding(what="jobs", problem=f"in error: {_some(named)}" if named else "")
    for source in deployed.sources:
        what = f"table {source.name}"
        try:
            found = positions(deployed.deployment, source)
        except NoTableError:
            yield Finding(what=what, note="no table yet")
        except Exception as error:  # noqa: BLE001 - a table may raise anything
            yield Finding(what=what, problem=_line(problem_of(source, error).message))
        else:
            yield Finding(what=what, problem=behind(found, limit, now))


def behind(found: Collection[Position], limit: float, now: float) -> str:
    """The indexes that a commit older than `limit` seconds has not reached, the worst first."""
    late = {each: lateness(each, now) for each in found}
    over = [
        f"{each.index}, {each.tenant} by {seconds:,.0f} s"
        for each, seconds in sorted(late.items(), key=lambda item: -item[1])
        if seconds > limit
    ]
    return f"behind: {_some(over)}" if over else ""


def lateness(each: Position, now: float) -> float:
    """Seconds that a job is behind: its lag, or the age of the latest commit if that is more.

    0 for a job that is in step, paused, or in error, which is reported separately.
    """
    if each.in_step or each.job.paused_at or each.job.state is JobState.ERROR:
        return 0.0
    return max(each.lag or 0.0, now - each.latest.micros / 1e6)


def _some(names: Collection[str]) -> str:
    shown = "; ".join(list(names)[:_SHOWN])
    return f"{shown}; and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else shown


def _line(text: str) -> str:
    return " ".join(text.split())


def careful(what: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings; a check that itself fails is one more."""
    try:
        yield from look()
    except IscpError as error:
        yield Finding(what=what, problem=_line(str(error)))


def checkup(
    environ: Mapping[str, str], deployed: Callable[[], Jobs], limit: float
) -> Iterator[Finding]:
    """Yield every finding as soon as it is known."""
    yield from careful("services", lambda: services(environ))
    yield from careful("dagster", lambda: dagster(environ.get(DAGSTER_URL), time.time()))
    yield from careful("jobs", lambda: jobs(deployed(), limit))
