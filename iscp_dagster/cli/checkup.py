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
from iscp_dagster.api.names import command, command_for, has_remedy, listed, mending_verb, titled
from iscp_dagster.cli.parts.counting import count_nouns
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
from iscp_dagster.planning.problems import Problem, problem_of
from iscp_dagster.planning.table_problems import mistaken, problems_of
from iscp_dagster.upkeep.outbox import outbox_of
from iscp_dagster.upkeep.position import Position, positions
from iscp_dagster.webhooks.recording import EndpointState

_DAGSTER_SECONDS = 20.0
_SHOWN = 3
_MOST_PAUSED = 1_000
_SENDERS = "for the stack's sender, see `iscp logs graphql`; start your own (`iscp send`)"
# Without a time Dagster asks by the origin of its first start, and finds no tick of a later one.
_DAGSTER = f"""{{ instance {{ daemonHealth {{ allDaemonStatuses {{ daemonType required
      lastHeartbeatTime }} }} }}
  workspaceOrError {{ ... on PythonError {{ message }} ... on Workspace {{ locationEntries {{ name
    locationOrLoadError {{ ... on PythonError {{ {ERROR_FIELDS} }} ... on RepositoryLocation {{
      repositories {{ sensors {{ name minIntervalSeconds sensorState {{ status
        ticks(limit: 1, afterTimestamp: 1) {{ status timestamp error {{ {ERROR_FIELDS} }} }}
      }} }} }} }} }} }} }} }} }}"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was checked, and its problem; an empty `problem` means that there is none."""

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


def _checked(what: str, problem: str, then: str, code: int = 0) -> Finding:
    return (
        Finding(what=what, problem=problem, then=then, code=code) if problem else Finding(what=what)
    )


def services(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check every ClickHouse, and Spark."""
    urls = urls_of(environ.get(CLICKHOUSE_URLS, "")) or urls_of(environ.get(CLICKHOUSE_URL, ""))
    for url in urls:
        yield _service(f"clickhouse {without_password(url)}", clickhouse_problem(url))
    remote = environ.get(SPARK_REMOTE, "")
    if remote:
        problem = asyncio.run(SparkHealth(remote).problem(0.0))
        yield _service(f"spark {without_password(remote)}", problem)
    missing = {CLICKHOUSE_URL: urls, SPARK_REMOTE: remote}
    for name, value in missing.items():
        if not value:
            yield Finding(
                what=name,
                problem="is not set, and no stack is up",
                code=ConfigError.code,
                then="run `iscp up`, or set it to the address of your own service",
            )


def _service(what: str, problem: str) -> Finding:
    name = what.partition(" ")[0]
    then = f"for the stack's, see `iscp logs {name}`; start your own, or correct its address"
    return _checked(what, problem, then, UnavailableError.code)


def dagster(url: str | None, now: float) -> Iterator[Finding]:
    """Check the webserver at a URL, and through it the locations, the daemon and the sensor."""
    if not url:
        yield Finding(
            what="dagster",
            problem="was not checked",
            code=ConfigError.code,
            then=f"set {DAGSTER_URL} to the address of its webserver",
        )
        return
    name = f"dagster {without_password(url)}"
    try:
        answer = _asked(url)
        entries = answer["workspaceOrError"]["locationEntries"]
        beats = answer["instance"]["daemonHealth"]["allDaemonStatuses"]
    except Exception as error:  # noqa: BLE001 - any error means no answer
        yield _service(name, f"does not answer: {_line(str(error))}")
        return
    yield Finding(what=name)
    restart = "for the stack's, see `iscp logs daemon`; restart your own (`dagster-daemon run`)"
    yield _checked("daemon", _daemon(beats, now), restart)
    yield from (_location(entry) for entry in entries)
    look = f"see its ticks at {without_password(url).rstrip('/')}/automation"
    yield _checked(f"sensor {SENSOR}", _ticks(list(_sensors(entries)), now), look)


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
    then = "wait" if loaded is None else "correct the code, and reload the location"
    return _checked(f"code location {entry['name']}", problem, then)


def _sensors(entries: Collection[Any]) -> Iterator[Any]:
    for entry in entries:
        for repository in (entry["locationOrLoadError"] or {}).get("repositories", []):
            yield from (each for each in repository["sensors"] if each["name"] == SENSOR)


def _ticks(sensors: Collection[Any], now: float) -> str:
    if not sensors:
        return "is not in any loaded code location"
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
    """Jobs in error, indexes that a commit older than `limit` seconds has not reached, and
    endpoints to which nothing is sent.
    """
    failed = deployed.list_jobs(None, None, JobState.ERROR)
    yield from _in_error(failed)
    for source in deployed.sources:
        yield from _table(deployed, source, failed, limit)
    yield from endpoints(deployed, limit)


def declared(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What is left out of the location and belongs to no table of it; `jobs` tells the rest."""
    from iscp_dagster.api.discovery import declarations, stands

    for error in stands(declarations(environ), environ).placeless:
        yield Finding(what="declarations", problem=_line(str(error)), code=error.code)


def _table(
    deployed: Jobs, source: SourceTable, failed: Collection[Job], limit: float
) -> Iterator[Finding]:
    """What is wrong with the table itself, with its jobs, and how far they are behind."""
    what = f"table {source.name}"
    left_out = [_problem(what, each) for each in mistaken(source)]
    try:
        found = positions(deployed.deployment, source)
    except NoTableError as error:
        yield from [*left_out, _missing(deployed, source, what, error)]
        return
    except Exception as error:  # noqa: BLE001 - a table may raise anything
        yield from [*left_out, _problem(what, problem_of(source, error))]
        return
    findings = [_problem(what, each) for each in problems_of(deployed.deployment, source)]
    own = [job for job in failed if f"{job.name.db}.{job.name.table}" == source.name]
    late = _behind(what, found, limit, deployed.deployment.clock().timestamp())
    if own and not late.problem:
        late = replace(late, note=f"held up by the jobs in error: {_names_of(own)}")
    yield from findings if findings and not (late.problem or late.note) else [*findings, late]


def _problem(what: str, problem: Problem) -> Finding:
    message = _line(problem.message)
    if problem.severe:
        return Finding(what=what, problem=message, code=problem.code)
    return Finding(what=what, note=message)


def _names_of(jobs: Collection[Job]) -> str:
    """The jobs' names, each with the number of its tenants."""
    tenants = Counter(job.name.job for job in jobs)
    said = [f"{name} ({count_nouns(number, 'tenant')})" for name, number in sorted(tenants.items())]
    return _some(said)


def _by_name(job: Job) -> tuple[str, str]:
    return job.name.job, job.key.tenant


def endpoints(deployed: Jobs, limit: float) -> Iterator[Finding]:
    """The endpoints of webhooks, and why nothing is sent to one, or nothing was accepted by it for
    `limit` seconds.
    """
    outbox = outbox_of(deployed.deployment)
    states, now = outbox.endpoints(), deployed.deployment.clock()
    triggers = [each for source in deployed.sources for each in source.triggers]
    names = sorted({*states, *(name for each in triggers for name in each.endpoints)})
    served, waiting = outbox.served(names), outbox.waiting(names)
    for name in names:
        what, state = f"endpoint {name}", states.get(name, EndpointState(name=name))
        since = state.health.failing_since
        if not state.active:
            problem = f"is {state.state}: {_line(state.reason)}"
            yield _checked(what, problem, f"`iscp endpoint resume {name}`")
        elif name not in served and name in waiting:
            yield _checked(what, "no sender serves it, and events wait for it", _SENDERS)
        elif name in waiting and since and (now - since).total_seconds() > limit:
            problem = f"has accepted nothing since {since:%Y-%m-%d %H:%M:%S} UTC"
            yield _checked(what, problem, f"`iscp events list --endpoint {name} --state pending`")
        else:
            yield Finding(what=what, note="" if name in served else "no sender serves it")


def invocations(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The runtime of invocations, if there is one, and what it has paused."""
    url = environ.get(INVOCATIONS_URL, "")
    if not url:
        return
    with open_invocations_client(environ) as client:
        what = f"invocations {url}"
        try:
            client.health()
            paused = client.invocations(status="paused", limit=_MOST_PAUSED)
        except DurableError as error:
            then = "for the stack's, see `iscp logs invocations`; start your own (`iscp "
            yield _checked(what, _line(str(error)), f"{then}invocations serve`)", error.code)
            return
    many = f"{len(paused):,}{'' if len(paused) < _MOST_PAUSED else ' or more'}"
    problem = (
        f"paused: {many}, such as {paused[0]['id']} of {paused[0]['target']}" if paused else ""
    )
    then = "`iscp invocations list --status paused`, remove the cause, then resume or kill them"
    yield _checked(what, problem, then)


def graphql(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What the GraphQL server leaves out, and why; nothing without the extra `serve`."""
    named = environ.get(CLICKHOUSE_URL) or environ.get(CLICKHOUSE_URLS)
    if not named or find_spec("graphql") is None:
        return
    from iscp_dagster.serve.web.server import Declared

    try:
        notes = Declared(environ)().notes
    except UnavailableError:
        return  # which `services` says
    yield from (Finding(what="graphql", note=_line(note)) for note in notes)


def _missing(deployed: Jobs, source: SourceTable, what: str, error: NoTableError) -> Finding:
    """A table that does not exist yet, or one that is gone while its indexes serve its rows."""
    log = deployed.deployment.log
    ids = log.table_ids(source.database, source.table)
    if all(each == START for id_ in ids for each in log.watermarks(id_)):
        return Finding(what=what, note="no table yet")
    return Finding(
        what=what,
        problem=f"its indexes serve rows of a table that is gone: {_line(str(error))}",
        code=error.code,
        then="put the table back, or unregister its jobs (`iscp job unregister … --tenant '*'`)",
    )


def _in_error(found: Collection[Job]) -> Iterator[Finding]:
    """One finding per index, code and remedy, for all its tenants, with every message."""
    if not found:
        yield Finding(what="jobs")
    alike: dict[tuple[JobID, int, str, bool], list[Job]] = {}
    for job in sorted(found, key=_by_name):
        remedy = (mending_verb(job.status), has_remedy(job.status))
        alike.setdefault((job.name, job.status.code, *remedy), []).append(job)
    for (name, code, verb, remedied), held in sorted(alike.items()):
        tenants = sorted({job.key.tenant for job in held})
        mend = command_for(verb, tenants, name) if verb else ""
        whose = "tenant" if len(tenants) == 1 else "tenants"
        yield Finding(
            what=f"job {name}",
            problem=f"in error for {whose} {listed(tenants)}: {_messages(held)}",
            code=code,
            then=mend if remedied else f"remove the cause, then {mend}",
        )


def _messages(jobs: Collection[Job]) -> str:
    """The message that all have; else each message with the tenants whose it is, a few of them."""
    tenants: dict[str, list[str]] = {}
    for job in jobs:
        tenants.setdefault(_line(job.status.message), []).append(job.key.tenant)
    if len(tenants) == 1:
        return next(iter(tenants))
    said = [f"{listed(names)}: {message}" for message, names in tenants.items()]
    more = " (`iscp job list --state error` shows all)" if len(said) > _SHOWN else ""
    return f"{_some(said)}{more}"


def _behind(what: str, found: Collection[Position], limit: float, now: float) -> Finding:
    """The indexes that a commit older than `limit` seconds has not reached, the worst first."""
    late = {each: lateness(each, now) for each in found}
    over = sorted((each for each in found if late[each] > limit), key=lambda each: -late[each])
    if not over:
        return Finding(what=what)
    said = [f"{titled(str(each.job.name), each.tenant)} by {late[each]:,.0f} s" for each in over]
    worst = over[0].job
    return Finding(
        what=what,
        problem=f"behind: {_some(said)}",
        code=worst.status.code,
        then=command("status", worst.key.tenant, worst.name),
    )


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
    """Yield the findings; if the check itself fails, that is one more."""
    try:
        yield from look()
    except (IscpError, DurableError) as error:
        yield Finding(what=what, problem=_line(str(error)), code=error.code)


def checkup(
    environ: Mapping[str, str], deployed: Callable[[], Jobs], limit: float
) -> Iterator[Finding]:
    """Yield every finding as soon as it is known."""
    yield from careful("services", lambda: services(environ))
    yield from careful("dagster", lambda: dagster(environ.get(DAGSTER_URL), time.time()))
    yield from careful("invocations", lambda: invocations(environ))
    yield from careful("jobs", lambda: chain(jobs(deployed(), limit), declared(environ)))
    yield from careful("graphql", lambda: graphql(environ))
