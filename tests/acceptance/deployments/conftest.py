"""One whole stack for the tests of faults, kills and scheduling, with a proxy that fails.

ClickHouse has a stack of its own, so that the proxy lies between the two. The default run's stack
has no Spark: its runs read by the stand-in, or with the Spark of all tests. A soak's has Spark.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from iscp_dagster.api.environment import open_deployment
from iscp_dagster.demo.dagster_api import DagsterApi
from iscp_dagster.local.services.settings import CLICKHOUSE, SERVICES
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.spark.session import disconnect, get_shared_session
from iscp_dagster.sync.deployment import Deployment
from sql_transactions.testing import run_postgres
from support.jobs.deployment import A_TENANTS_SLOTS, SLOTS
from support.lake import trades_table
from support.lake.delta_tables import COLUMNS, FEED, Table
from support.paths import ROOT
from support.services.fault_proxy import FaultyClickHouse, faulty
from support.services.stack import Stack, copied_project, running_stack
from support.spark.fake_spark import NearSpark, near, served

DECLARED = """
from iscp_dagster import FullText, Mirror, SourceTable, Vector

keyed = SourceTable(
    "faults.rows",
    key="id",
    tenant="tenant",
    indexes=[Mirror(), FullText("words"), Vector("v", dimension=8)],
)
keyless = SourceTable("faults.events", tenant="tenant", indexes=[Mirror(append=True)])
killed = SourceTable(
    "kills.rows", key="id", tenant="tenant", indexes=[Mirror(), FullText("words")]
)
rows = SourceTable(
    "sched.rows", key="id", tenant="tenant", indexes=[Mirror(), FullText("name")]
)
others = SourceTable("sched.others", key="id", tenant="tenant", indexes=[Mirror()])
"""
SERVED = """
from iscp_dagster import ServiceConsumer

slow = SourceTable(
    "sched.slow",
    key="id",
    tenant="tenant",
    indexes=[Mirror()],
    services=[
        ServiceConsumer(
            "http://127.0.0.1:%(port)s", handler="Slow/told", name="told", patience=600
        )
    ],
)
"""
FAULTY = "tenant STRING, id BIGINT, words STRING, v ARRAY<FLOAT>"
KILLED = "tenant STRING, id BIGINT, words STRING"
TABLES = {
    "keyed": FAULTY,
    "keyless": FAULTY,
    "killed": KILLED,
    "rows": COLUMNS,
    "others": COLUMNS,
    "slow": COLUMNS,
}
MINE = """
import time
from pathlib import Path

from iscp_dagster.planning.triggers import plan_iteration


class Gate:
    def __init__(self, source, info):
        self.file = Path(info.options["file"])

    def consume(self, retriever):
        while not retriever.next()[2]:
            continue
        deadline = time.monotonic() + 300
        while not self.file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody opened {self.file}")
            time.sleep(0.1)


class Broken:
    def __init__(self, source, info):
        pass

    def consume(self, retriever):
        raise ValueError("broken by design")


def each_by_itself(jobs, latest, now):
    return tuple(i for job in jobs for i in plan_iteration([job], latest))
"""
# The part of `resources/` that is replaced, to give up sooner on a silent ClickHouse.
MADE = "resources_from_environment()"
QUERY_SECONDS = 5
WITH_SPARK = "runs read with Spark"
"""The file in the project that makes them so, if it is there when they begin."""
NEAR = f"""

if not Path(__file__).parents[1].joinpath("{WITH_SPARK}").exists():
    from support.spark.fake_spark import near

    near().__enter__()
"""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The stack, with its ClickHouse behind the proxy; the tests bypass the proxy."""

    stack: Stack
    environment: Mapping[str, str]
    dagster: DagsterApi
    deployment: Deployment
    declared: Mapping[str, Any]
    clickhouse: Stack
    proxy: FaultyClickHouse
    postgres: Any
    trades: trades_table.Trades
    hooks: int
    """The port at which the stack expects the receiver of the trades' events."""
    services: int
    """The port at which it expects the services that table rows are told to."""

    @contextmanager
    def with_spark(self) -> Iterator[None]:
        """Have runs that begin meanwhile read with Spark, as all runs of a soak do."""
        file = self.stack.home.parent / WITH_SPARK
        is_soak = file.exists()
        file.touch()
        yield
        if not is_soak:
            file.unlink()


def project_of(folder: Path, hooks: int, services: int) -> Path:
    """Make the project with these tables, few slots, and a short timeout for ClickHouse."""
    project = copied_project(folder)
    (project / "assets" / "docs.py").unlink()
    ports = {"port": hooks}, {"port": services}
    declared = DECLARED + trades_table.DECLARED % ports[0] + SERVED % ports[1]
    (project / "assets" / "rows.py").write_text(declared)
    (project / "mine.py").write_text(MINE)
    patient = f"{MADE[:-1]}query_timeout={QUERY_SECONDS})"
    resources = project / "resources" / "__init__.py"
    replaced(resources, MADE, patient)
    replaced(resources, "from typing", "from pathlib import Path\nfrom typing")
    with resources.open("a") as file:
        file.write(NEAR)
    replaced(project / "dagster.yaml", "max_concurrent_runs: 4", f"max_concurrent_runs: {SLOTS}")
    assert f"        limit: {A_TENANTS_SLOTS}\n" in (project / "dagster.yaml").read_text()
    return project


def replaced(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.fixture(scope="session")
def ground(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ground")
    hooks, services = find_free_port(), find_free_port()
    project = project_of(folder / "project", hooks, services)
    with ExitStack() as exits:
        clickhouse = exits.enter_context(running_stack(folder / "clickhouse", (CLICKHOUSE,)))
        proxy = exits.enter_context(faulty(clickhouse.clickhouse_url))
        postgres = exits.enter_context(run_postgres(tmp_path_factory.mktemp("runtime")))
        folders = [str(project), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        extra = {
            "CLICKHOUSE_URL": proxy.url,
            "ISCP_LOG_URL": postgres.get_uri(),
            "ISCP_STATE_STORE": f"sqlite:///{folder / 'states.sqlite'}",
            "ISCP_SCAN_SECONDS": "3",
            "PYTHONPATH": os.pathsep.join(folders),
        }
        if request.config.option.markexpr == "not soak":
            extra["SPARK_REMOTE"] = request.getfixturevalue("spark_remote")
        else:
            (project / WITH_SPARK).touch()
        stack = exits.enter_context(running_stack(project / ".iscp", SERVICES, extra=extra))
        # Later tests must not use sessions of this Spark, which ends here.
        exits.callback(disconnect)
        environment = stack.environment | extra
        direct = {"CLICKHOUSE_URL": clickhouse.clickhouse_url}
        lake = {"ISCP_LAKE": str(stack.home / "lake")}
        client = exits.enter_context(httpx.Client(timeout=60))
        # Runs use the stack's Spark; the tests write without it.
        deployment = served(open_deployment(environment | direct | lake), NearSpark())
        declared = runpy.run_path(str(project / "assets" / "rows.py"))
        for name, columns in TABLES.items():
            Table(deployment, declared[name]).create(columns, FEED)
        flow = Table(deployment, declared["trades"])
        yield Ground(
            stack=stack,
            environment=environment,
            dagster=DagsterApi(stack.dagster_url, client),
            deployment=deployment,
            declared=declared,
            clickhouse=clickhouse,
            proxy=proxy,
            postgres=postgres,
            trades=trades_table.trades(
                Path(flow.path), folder / "flow", on_spark(environment, flow)
            ),
            hooks=hooks,
            services=services,
        )


def on_spark(environment: Mapping[str, str], table: Table) -> Callable[[str], object]:
    """Return what runs the table's SQL on the Spark of that environment."""

    def run(statement: str) -> object:
        spark = get_shared_session(environment["SPARK_REMOTE"])
        return spark.sql(statement.replace("{t}", f"delta.`{table.path}`")).collect()

    return run


@pytest.fixture(scope="module")
def compared_near():
    """Compare without Spark, too."""
    with near():
        yield
