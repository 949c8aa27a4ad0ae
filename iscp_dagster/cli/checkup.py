"""Checks a deployment: its services, its Dagster and its ISCP log."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from durable_invocations.errors import DurableError
from iscp_dagster.api.invocations import open_invocations_client
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.api.names import (
    explains_remedy,
    format_command,
    format_names,
    format_title,
    get_remedy_verb,
    suggest_command,
)
from iscp_dagster.cli.parts.counting import count_nouns
from iscp_dagster.clickhouse.connect.endpoint import split_urls
from iscp_dagster.local.services.clickhouse_health import find_problem as clickhouse_problem
from iscp_dagster.local.services.dagster_health import (
    DEAF_SECONDS,
    ERROR_FIELDS,
    SENSOR,
    find_idle_problem,
    format_error,
)
from iscp_dagster.local.services.settings import redact_address
from iscp_dagster.local.services.spark_health import SparkHealth
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.errors import ConfigError, IscpError, NoTableError, UnavailableError
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.model.moment import START
from iscp_dagster.model.states import JobState
from iscp_dagster.model.variables import (
    CLICKHOUSE_URL,
    CLICKHOUSE_URLS,
    DAGSTER_URL,
    INVOCATIONS_URL,
    SPARK_REMOTE,
)
from iscp_dagster.planning.problems import Problem, make_problem
from iscp_dagster.planning.table_problems import find_problems, list_mistakes
from iscp_dagster.upkeep.outbox import open_outbox
from iscp_dagster.upkeep.position import JobPosition, read_positions
from iscp_dagster.webhooks.recording import EndpointState

_DAGSTER_SECONDS = 20.0
_SHOWN = 3
_MOST_PAUSED = 1_000
_SENDERS = "for the stack's sender, see `iscp logs graphql`; start your own (`iscp send`)"
# Without afterTimestamp, Dagster finds ticks by the origin of its first start, and no later ones.
_DAGSTER = f"""{{ instance {{ daemonHealth {{ allDaemonStatuses {{ daemonType required
      lastHeartbeatTime }} }} }}
  workspaceOrError {{ ... on PythonError {{ message }} ... on Workspace {{ locationEntries {{ name
    locationOrLoadError {{ ... on PythonError {{ {ERROR_FIELDS} }} ... on RepositoryLocation {{
      repositories {{ sensors {{ name minIntervalSeconds sensorState {{ status
        ticks(limit: 1, afterTimestamp: 1) {{ status timestamp error {{ {ERROR_FIELDS} }} }}
      }} }} }} }} }} }} }} }} }}"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check and its problem, which is empty if there is none."""

    what: str
    problem: str = ""
    code: int = 0
    """The problem's code in docs/errors.md, if it has one."""
    then: str = ""
    """What to do about the problem, if it does not say so itself."""
    note: str = ""
    """A remark that need not be a problem."""

    def __str__(self) -> str:
        if not self.problem:
            return f"{self.what}: {self.note or 'ok'}"
        code = f" (code {self.code})" if self.code else ""
        then = f"\n  next: {self.then}" if self.then else ""
        return f"{self.what}: {self.problem}{code}{then}"


def _make_finding(what: str, problem: str, then: str, code: int = 0) -> Finding:
    return (
        Finding(what=what, problem=problem, then=then, code=code) if problem else Finding(what=what)
    )


def inspect_services(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check every ClickHouse, and Spark."""
    urls = split_urls(environ.get(CLICKHOUSE_URLS, "")) or split_urls(
        environ.get(CLICKHOUSE_URL, "")
    )
    for url in urls:
        yield _make_service_finding(f"clickhouse {redact_address(url)}", clickhouse_problem(url))
    remote = environ.get(SPARK_REMOTE, "")
    if remote:
        problem = asyncio.run(SparkHealth(remote).find_problem(0.0))
        yield _make_service_finding(f"spark {redact_address(remote)}", problem)
    missing = {CLICKHOUSE_URL: urls, SPARK_REMOTE: remote}
    for name, value in missing.items():
        if not value:
            yield Finding(
                what=name,
                problem="is not set, and no stack is up",
                code=ConfigError.code,
                then="run `iscp up`, or set it to the address of your own service",
            )


def _make_service_finding(what: str, problem: str) -> Finding:
    name = what.partition(" ")[0]
    then = f"for the stack's, see `iscp logs {name}`; start your own, or correct its address"
    return _make_finding(what, problem, then, UnavailableError.code)


def inspect_dagster(url: str | None, now: float) -> Iterator[Finding]:
    """Check the webserver at a URL, and through it the locations, the daemon and the sensor."""
    if not url:
        yield Finding(
            what="dagster",
            problem="was not checked",
            code=ConfigError.code,
            then=f"set {DAGSTER_URL} to the address of its webserver",
        )
        return
    name = f"dagster {redact_address(url)}"
    try:
        answer = _query_dagster(url)
        entries = answer["workspaceOrError"]["locationEntries"]
        daemons = answer["instance"]["daemonHealth"]["allDaemonStatuses"]
    except Exception as error:  # noqa: BLE001 - any error means no answer
        yield _make_service_finding(name, f"does not answer: {_to_one_line(str(error))}")
        return
    yield Finding(what=name)
    restart = "for the stack's, see `iscp logs daemon`; restart your own (`dagster-daemon run`)"
    yield _make_finding("daemon", _find_daemon_problem(daemons, now), restart)
    yield from (_inspect_location(entry) for entry in entries)
    remedy = f"see its ticks at {redact_address(url).rstrip('/')}/automation"
    yield _make_finding(
        f"sensor {SENSOR}", _find_sensor_problem(list(_list_sensors(entries)), now), remedy
    )


def _query_dagster(url: str) -> Any:
    import httpx

    # Proxies from the environment do not apply to localhost.
    remote = urlsplit(url).hostname not in {"localhost", "127.0.0.1"}
    with httpx.Client(timeout=_DAGSTER_SECONDS, trust_env=remote) as client:
        answer = client.post(f"{url.rstrip('/')}/graphql", json={"query": _DAGSTER})
        answer.raise_for_status()
        return answer.json()["data"]


def _find_daemon_problem(daemons: Collection[Any], now: float) -> str:
    silent = [
        daemon["daemonType"].lower()
        for daemon in daemons
        if daemon["required"] and now - (daemon["lastHeartbeatTime"] or 0.0) > 2 * DEAF_SECONDS
    ]
    return f"has written no heartbeat lately: {', '.join(sorted(silent))}" if silent else ""


def _inspect_location(entry: Any) -> Finding:
    location = entry["locationOrLoadError"]
    failed = location is not None and "message" in location
    problem = format_error(location) if failed else "" if location else "is being loaded"
    then = "wait" if location is None else "correct the code, and reload the location"
    return _make_finding(f"code location {entry['name']}", problem, then)


def _list_sensors(entries: Collection[Any]) -> Iterator[Any]:
    for entry in entries:
        for repository in (entry["locationOrLoadError"] or {}).get("repositories", []):
            yield from (sensor for sensor in repository["sensors"] if sensor["name"] == SENSOR)


def _find_sensor_problem(sensors: Collection[Any], now: float) -> str:
    if not sensors:
        return "is not in any loaded code location"
    return next(filter(None, (_find_tick_problem(sensor, now) for sensor in sensors)), "")


def _find_tick_problem(sensor: Any, now: float) -> str:
    state = sensor["sensorState"]
    if state["status"] != "RUNNING":
        return "is switched off"
    failed = [tick for tick in state["ticks"] if tick["status"] == "FAILURE"]
    if failed:
        error = failed[0]["error"]
        return f"failed at its last tick{f': {format_error(error)}' if error else ''}"
    return find_idle_problem(sensor, 0.0, now) if state["ticks"] else "has not ticked yet"


def inspect_jobs(deployed: Jobs, limit: float) -> Iterator[Finding]:
    """Jobs in error, indexes more than `limit` seconds behind, and endpoints that get no events."""
    failed = deployed.list_jobs(None, None, JobState.ERROR)
    yield from _inspect_failed_jobs(failed)
    for source in deployed.sources:
        yield from _inspect_table(deployed, source, failed, limit)
    yield from inspect_endpoints(deployed, limit)


def inspect_declarations(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Declaration errors that belong to no table; `inspect_jobs` reports those of a table."""
    from iscp_dagster.api.discovery import load_declarations, resolve_declarations

    for error in resolve_declarations(load_declarations(environ), environ).placeless:
        yield Finding(what="declarations", problem=_to_one_line(str(error)), code=error.code)


def _inspect_table(
    deployed: Jobs, source: SourceTable, failed: Collection[Job], limit: float
) -> Iterator[Finding]:
    """What is wrong with the table itself, with its jobs, and how far they are behind."""
    what = f"table {source.name}"
    mistakes = [_to_finding(what, mistake) for mistake in list_mistakes(source)]
    try:
        positions = read_positions(deployed.deployment, source)
    except NoTableError as error:
        yield from [*mistakes, _inspect_missing_table(deployed, source, what, error)]
        return
    except Exception as error:  # noqa: BLE001 - a table may raise anything
        yield from [*mistakes, _to_finding(what, make_problem(source, error))]
        return
    findings = [
        _to_finding(what, problem) for problem in find_problems(deployed.deployment, source)
    ]
    own_jobs = [job for job in failed if f"{job.name.db}.{job.name.table}" == source.name]
    lag = _inspect_lag(what, positions, limit, deployed.deployment.clock().timestamp())
    if own_jobs and not lag.problem:
        lag = replace(lag, note=f"held up by the jobs in error: {_join_job_names(own_jobs)}")
    yield from findings if findings and not (lag.problem or lag.note) else [*findings, lag]


def _to_finding(what: str, problem: Problem) -> Finding:
    message = _to_one_line(problem.message)
    if problem.severe:
        return Finding(what=what, problem=message, code=problem.code)
    return Finding(what=what, note=message)


def _join_job_names(jobs: Collection[Job]) -> str:
    """The jobs' names, each with the number of its tenants."""
    tenants = Counter(job.name.job for job in jobs)
    names = [
        f"{name} ({count_nouns(number, 'tenant')})" for name, number in sorted(tenants.items())
    ]
    return _join_first(names)


def _get_name_and_tenant(job: Job) -> tuple[str, str]:
    return job.name.job, job.key.tenant


def inspect_endpoints(deployed: Jobs, limit: float) -> Iterator[Finding]:
    """Webhook endpoints, and why one gets nothing or has accepted nothing for `limit` seconds."""
    outbox = open_outbox(deployed.deployment)
    states, now = outbox.list_endpoints(), deployed.deployment.clock()
    triggers = [trigger for source in deployed.sources for trigger in source.triggers]
    names = sorted({*states, *(name for trigger in triggers for name in trigger.endpoints)})
    served, waiting = outbox.find_served(names), outbox.find_waiting(names)
    for name in names:
        what, state = f"endpoint {name}", states.get(name, EndpointState(name=name))
        since = state.health.failing_since
        if not state.active:
            problem = f"is {state.state}: {_to_one_line(state.reason)}"
            yield _make_finding(what, problem, f"`iscp endpoint resume {name}`")
        elif name not in served and name in waiting:
            yield _make_finding(what, "no sender serves it, and events wait for it", _SENDERS)
        elif name in waiting and since and (now - since).total_seconds() > limit:
            problem = f"has accepted nothing since {since:%Y-%m-%d %H:%M:%S} UTC"
            yield _make_finding(
                what, problem, f"`iscp events list --endpoint {name} --state pending`"
            )
        else:
            yield Finding(what=what, note="" if name in served else "no sender serves it")


def inspect_invocations(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The runtime of invocations, if there is one, and what it has paused."""
    url = environ.get(INVOCATIONS_URL, "")
    if not url:
        return
    with open_invocations_client(environ) as client:
        what = f"invocations {url}"
        try:
            client.check_health()
            paused = client.invocations(status="paused", limit=_MOST_PAUSED)
        except DurableError as error:
            then = "for the stack's, see `iscp logs invocations`; start your own (`iscp "
            yield _make_finding(
                what, _to_one_line(str(error)), f"{then}invocations serve`)", error.code
            )
            return
    count = f"{len(paused):,}{'' if len(paused) < _MOST_PAUSED else ' or more'}"
    problem = (
        f"paused: {count}, such as {paused[0]['id']} of {paused[0]['target']}" if paused else ""
    )
    then = "`iscp invocations list --status paused`, remove the cause, then resume or kill them"
    yield _make_finding(what, problem, then)


def inspect_served_catalog(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What the GraphQL server leaves out, and why; nothing without the extra `serve`."""
    url = environ.get(CLICKHOUSE_URL) or environ.get(CLICKHOUSE_URLS)
    if not url or find_spec("graphql") is None:
        return
    from iscp_dagster.serve.web.server import LazyCatalogLoader

    try:
        notes = LazyCatalogLoader(environ)().notes
    except UnavailableError:
        return  # `services` reports it
    yield from (Finding(what="graphql", note=_to_one_line(note)) for note in notes)


def _inspect_missing_table(
    deployed: Jobs, source: SourceTable, what: str, error: NoTableError
) -> Finding:
    """A table that does not exist yet, or one that is gone while its indexes serve its rows."""
    log = deployed.deployment.log
    ids = log.find_table_ids(source.database, source.table)
    if all(watermark == START for id_ in ids for watermark in log.list_watermarks(id_)):
        return Finding(what=what, note="no table yet")
    return Finding(
        what=what,
        problem=f"its indexes serve rows of a table that is gone: {_to_one_line(str(error))}",
        code=error.code,
        then="put the table back, or unregister its jobs (`iscp job unregister … --tenant '*'`)",
    )


def _inspect_failed_jobs(failed: Collection[Job]) -> Iterator[Finding]:
    """One finding per index, code and remedy, for all its tenants, with every message."""
    if not failed:
        yield Finding(what="jobs")
    groups: dict[tuple[JobID, int, str, bool], list[Job]] = {}
    for job in sorted(failed, key=_get_name_and_tenant):
        remedy = (get_remedy_verb(job.status), explains_remedy(job.status))
        groups.setdefault((job.name, job.status.code, *remedy), []).append(job)
    for (name, code, verb, remedied), jobs in sorted(groups.items()):
        tenants = sorted({job.key.tenant for job in jobs})
        fix = suggest_command(verb, tenants, name) if verb else ""
        noun = "tenant" if len(tenants) == 1 else "tenants"
        yield Finding(
            what=f"job {name}",
            problem=f"in error for {noun} {format_names(tenants)}: {_join_messages(jobs)}",
            code=code,
            then=fix if remedied else f"remove the cause, then {fix}",
        )


def _join_messages(jobs: Collection[Job]) -> str:
    """The common message; else the first few messages, each with its tenants."""
    tenants: dict[str, list[str]] = {}
    for job in jobs:
        tenants.setdefault(_to_one_line(job.status.message), []).append(job.key.tenant)
    if len(tenants) == 1:
        return next(iter(tenants))
    messages = [f"{format_names(names)}: {message}" for message, names in tenants.items()]
    hint = " (`iscp job list --state error` shows all)" if len(messages) > _SHOWN else ""
    return f"{_join_first(messages)}{hint}"


def _inspect_lag(
    what: str, positions: Collection[JobPosition], limit: float, now: float
) -> Finding:
    """The indexes more than `limit` seconds behind, the worst first."""
    lateness = {position: compute_lateness(position, now) for position in positions}
    behind = sorted(
        (position for position in positions if lateness[position] > limit),
        key=lambda position: -lateness[position],
    )
    if not behind:
        return Finding(what=what)
    lags = [
        f"{format_title(str(position.job.name), position.tenant)} by {lateness[position]:,.0f} s"
        for position in behind
    ]
    worst = behind[0].job
    return Finding(
        what=what,
        problem=f"behind: {_join_first(lags)}",
        code=worst.status.code,
        then=format_command("status", worst.key.tenant, worst.name),
    )


def compute_lateness(position: JobPosition, now: float) -> float:
    """Seconds that a job is behind: its lag, or the age of the latest commit if that is more.

    0 for a job that is in step, paused, or in error, which is reported separately.
    """
    if position.in_step or position.job.paused_at or position.job.state is JobState.ERROR:
        return 0.0
    return max(position.lag or 0.0, now - position.latest.micros / 1e6)


def _join_first(names: Collection[str]) -> str:
    text = "; ".join(list(names)[:_SHOWN])
    return f"{text}; and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else text


def _to_one_line(text: str) -> str:
    return " ".join(text.split())


def run_inspection(what: str, inspect: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings; a failure of the check itself is one more."""
    try:
        yield from inspect()
    except (IscpError, DurableError) as error:
        yield Finding(what=what, problem=_to_one_line(str(error)), code=error.code)


def inspect_deployment(
    environ: Mapping[str, str], deployed: Callable[[], Jobs], limit: float
) -> Iterator[Finding]:
    """Yield every finding as soon as it is known."""
    yield from run_inspection("services", lambda: inspect_services(environ))
    yield from run_inspection(
        "dagster", lambda: inspect_dagster(environ.get(DAGSTER_URL), time.time())
    )
    yield from run_inspection("invocations", lambda: inspect_invocations(environ))
    yield from run_inspection(
        "jobs", lambda: chain(inspect_jobs(deployed(), limit), inspect_declarations(environ))
    )
    yield from run_inspection("graphql", lambda: inspect_served_catalog(environ))
