"""Each process of the stack is killed, stopped or held, many times: it heals, and is in step."""

from __future__ import annotations

import json
import os
import runpy
import signal
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from killing import HANG, KILL, KINDS, SERVING, STOP, Killer, living, of_kind
from nearspark import near, served
from stackfixture import (
    DAGSTERS,
    SERVICES,
    Stack,
    assert_nothing_left,
    assert_runs,
    copied_project,
    running_stack,
    wait_for,
)
from tables import FEED, Table

from iscp_dagster.api.environment import deployment_of
from iscp_dagster.local.services.dagster_health import LOCATION, SENSOR
from iscp_dagster.local.services.state import Condition
from iscp_dagster.model.errors import IscpError
from iscp_dagster.spark.session import shared
from iscp_dagster.upkeep.position import positions
from iscp_dagster.upkeep.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
HEALS_SECONDS = 240.0
"""On a machine that is busy with other tests; by itself it is well under a minute."""
LOOK_SECONDS = 1.0
SEED = int(os.environ.get("ISCP_KILL_SEED", "1"))
ROUNDS = int(os.environ.get("ISCP_KILL_ROUNDS", "60"))
TENANTS = 3
ROWS = 300

DECLARED = """
from iscp_dagster import FullText, Mirror, SourceTable

rows = SourceTable(
    "kills.rows", key="id", tenant="tenant", indexes=[Mirror(), FullText("words")]
)
"""
_LOCATION = """{ workspaceOrError { ... on Workspace { locationEntries {
  locationOrLoadError { __typename } } } } }"""
_TICK = f"""{{ sensorOrError(sensorSelector: {{ repositoryLocationName: "{LOCATION}",
  repositoryName: "__repository__", sensorName: "{SENSOR}" }}) {{ ... on Sensor {{ sensorState {{
  ticks(limit: 5) {{ status timestamp }} }} }} }} }}"""


@dataclass
class Campaign:
    """A stack, a table that it follows, and somebody who kills its processes."""

    stack: Stack
    table: Table
    killer: Killer
    commits: int = 0
    healed: list[float] = field(default_factory=list)
    problem: str = ""
    """What ClickHouse or Spark last failed with."""

    def commit(self) -> None:
        """Rows that were not there."""
        self.commits += 1
        ids = range(self.commits * 1_000_000, self.commits * 1_000_000 + ROWS)
        rows = {
            "tenant": [f"t{each % TENANTS}" for each in ids],
            "id": list(ids),
            "words": [f"{each * 7919:x}" for each in ids],
        }
        write_deltalake(self.table.path, pa.table(rows), mode="append")

    def strike(self, how: str, kinds: Collection[str]) -> list[str]:
        """Do it, wait until all is well, and see a commit through; what was done."""
        self.use_python()
        return self.seen_through(lambda: self.killer.strike(how, kinds), how, kinds)

    def seen_through(
        self, strike: Callable[[], list[str]], how: str, kinds: Collection[str]
    ) -> list[str]:
        since = time.time()
        began = time.monotonic()
        struck = strike()
        if how == HANG:
            self.await_restarts(kinds)
        wait_for(lambda: self.well(since), HEALS_SECONDS, self.told, every=LOOK_SECONDS)
        self.healed.append(time.monotonic() - began)
        print(f"{', '.join(struck)}: healed in {self.healed[-1]:.0f} s", flush=True)  # noqa: T201
        self.commit()
        wait_for(self.in_step, HEALS_SECONDS, self.told, every=LOOK_SECONDS)
        return struck

    def await_restarts(self, kinds: Collection[str]) -> None:
        names = [SERVING[kind] for kind in kinds]
        before = {name: self.stack.service(name).restarts for name in names}

        def restarted() -> bool:
            return all(self.stack.service(name).restarts > before[name] for name in names)

        wait_for(restarted, HEALS_SECONDS, self.told)

    def well(self, since: float) -> bool:
        """Everything is ready, and has answered or ticked since."""
        return (
            all(each.condition is Condition.READY for each in self.stack.state().services)
            and self._loaded()
            and self._ticked(since)
            and self._answers()
        )

    def in_step(self) -> bool:
        try:
            found = positions(self.table.deployment, self.table.source)
        except IscpError:
            return False
        return len(found) == TENANTS * 2 and all(each.in_step for each in found)

    def verified(self) -> None:
        verdicts = verify(self.table.deployment, self.table.source)
        assert len(verdicts) == TENANTS * 2
        assert [each for each in verdicts if not each.agrees] == []

    def told(self) -> str:
        jobs = [f"{job.key} {job.state} {job.status}" for job in self.table.jobs()]
        log = (self.stack.home / "logs" / "supervisor.log").read_text()
        told = f"{dict(self.killer.done)} {self.problem}"
        return f"{told}\n{jobs}\n{self.stack.state()}\n{log[-5_000:]}"

    def _loaded(self) -> bool:
        answer = self._asked(_LOCATION)
        entries = answer["workspaceOrError"]["locationEntries"] if answer else []
        loaded = [(each["locationOrLoadError"] or {}).get("__typename") for each in entries]
        return loaded == ["RepositoryLocation"]

    def _ticked(self, since: float) -> bool:
        answer = self._asked(_TICK)
        ticks = answer["sensorOrError"]["sensorState"]["ticks"] if answer else []
        return any(
            each["timestamp"] > since and each["status"] in {"SUCCESS", "SKIPPED"} for each in ticks
        )

    def _asked(self, query: str):
        asked = urllib.request.Request(
            f"{self.stack.dagster_url}/graphql",
            json.dumps({"query": query}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return json.load(answer)["data"]
        except (OSError, ValueError):
            return None

    def _answers(self) -> bool:
        """A query of ClickHouse, and one of Spark that needs a Python worker."""
        try:
            self.table.query("SELECT 1")
            self.use_python()
        except Exception as error:  # noqa: BLE001 - a Spark that is killed says it in many ways
            self.problem = str(error)
            return False
        return True

    def use_python(self) -> None:
        """A query that a Python worker answers."""
        # A lambda is sent as it is; a function of this module, which Spark cannot import, is not.
        spark = shared(self.stack.spark_remote)
        same = spark.range(3).mapInArrow(lambda batches: batches, "id bigint")
        assert same.count() == 3


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    project = copied_project(tmp_path_factory.mktemp("kills") / "project")
    for each in Path(project, "assets").glob("[!_]*.py"):
        each.unlink()
    declared = Path(project, "assets", "kills.py")
    declared.write_text(DECLARED)
    extra = {"PYTHONPATH": str(project), "ISCP_SCAN_SECONDS": "1"}
    # Runs have the stack's Spark; the tests need none to write and to compare.
    with running_stack(project / ".iscp", SERVICES, extra=extra) as stack, near() as session:
        environment = stack.environment | extra | {"ISCP_LAKE": str(stack.home / "lake")}
        source = runpy.run_path(str(declared))["rows"]
        table = Table(served(deployment_of(environment), session), source)
        table.create("tenant STRING, id BIGINT, words STRING", FEED)
        made = Campaign(stack=stack, table=table, killer=Killer(stack, Random(SEED)))
        made.commit()
        wait_for(made.in_step, HEALS_SECONDS, made.told)
        yield made


@pytest.fixture
def counted(campaign: Campaign, record_property) -> Iterator[Campaign]:
    before = campaign.killer.done.copy()
    campaign.healed.clear()
    yield campaign
    done = campaign.killer.done - before
    record_property(f"{done.total()} kills", dict(done))
    if campaign.healed:
        record_property("healed in", f"{max(campaign.healed):.0f} s at most")


@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        (KILL, ["code", "webserver", "python worker"]),
        (KILL, ["clickhouse", "daemon", "python daemon"]),
        (KILL, ["code server", "jvm", "run server"]),
        (KILL, ["ward"]),
        (STOP, list(KINDS)),
        (HANG, list(SERVING)),
    ],
)
def test_a_process_that_is_gone_or_does_nothing_is_made_good(counted, how, kinds):
    workers = of_kind(counted.stack, "python daemon") + of_kind(counted.stack, "python worker")
    struck = counted.strike(how, kinds)
    if "jvm" in kinds and how != STOP:
        assert not {each.pid for each in living(counted.stack)} & set(workers)
    assert len(struck) == len([kind for kind in kinds if kind != "run"])
    counted.verified()


def test_an_iteration_whose_run_is_killed_comes_again(counted):
    wait_for(lambda: not of_kind(counted.stack, "run"), HEALS_SECONDS, counted.told)
    counted.commit()
    caught: list[int] = []
    wait_for(lambda: halted(counted.stack, caught), HEALS_SECONDS, counted.told, every=0.02)

    def kill() -> list[str]:
        os.kill(caught[0], signal.SIGKILL)
        counted.killer.done["kill run"] += 1
        return ["kill run"]

    counted.seen_through(kill, KILL, ["run"])
    counted.verified()


def halted(stack: Stack, caught: list[int]) -> bool:
    """Whether a run stands still in the middle of what it does."""
    for run in of_kind(stack, "run")[:1]:
        with suppress(ProcessLookupError):
            os.kill(run, signal.SIGSTOP)
            caught.append(run)
    return bool(caught)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_killed_at_random_many_times_it_heals_always(counted):
    random = counted.killer.random
    for _ in range(ROUNDS):
        how = random.choice([KILL, KILL, KILL, STOP, HANG])
        kinds = list(SERVING if how == HANG else KINDS)
        if random.random() < 0.5:
            counted.commit()
        counted.strike(how, random.sample(kinds, random.randint(1, 3)))
    counted.verified()
    print(f"healed after: {sorted(round(each) for each in counted.healed)}")  # noqa: T201


def test_no_process_outlives_a_supervisor_that_is_killed(campaign):
    """The last test here: the stack is gone after it."""
    home = campaign.stack.home
    assert_runs(home, (*DAGSTERS, "SparkConnectServer", "runs.server"))
    os.kill(campaign.stack.supervisor, signal.SIGKILL)
    assert_nothing_left(home)
    log = (home / "up.log").read_text()
    assert "Traceback" not in log, log
