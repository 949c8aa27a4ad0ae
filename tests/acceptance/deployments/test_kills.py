"""The stack recovers and gets in step however often its processes are killed or stopped."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp_dagster.local.services.dagster_health import LOCATION, SENSOR
from iscp_dagster.local.services.settings import DAEMON, PARTS
from iscp_dagster.local.services.state import Condition
from iscp_dagster.local.stack.plan import resolve
from iscp_dagster.local.stack.running import build
from iscp_dagster.model.errors import IscpError
from iscp_dagster.spark.session import get_shared_session
from iscp_dagster.upkeep.position import read_positions
from iscp_dagster.upkeep.verify_indexes import compare_or_raise
from support.lake.delta_tables import Table
from support.services.stack import Stack, jars_folder, wait_for
from support.services.stack_processes import (
    HANG,
    KILL,
    KINDS,
    SERVING,
    STOP,
    Killer,
    serving,
)

pytestmark = pytest.mark.timeout(900)
HEALS_SECONDS = 240.0
"""The limit on a machine busy with other tests; otherwise it takes well under a minute."""
LOOK_SECONDS = 1.0
SEED = int(os.environ.get("ISCP_KILL_SEED", "1"))
ROUNDS = int(os.environ.get("ISCP_KILL_ROUNDS", "60"))
TENANTS = 3
ROWS = 300
WELL = {Condition.READY, Condition.EXTERNAL}
_LOCATION = """{ workspaceOrError { ... on Workspace { locationEntries {
  locationOrLoadError { __typename } } } } }"""
_TICK = f"""{{ sensorOrError(sensorSelector: {{ repositoryLocationName: "{LOCATION}",
  repositoryName: "__repository__", sensorName: "{SENSOR}" }}) {{ ... on Sensor {{ sensorState {{
  ticks(limit: 5) {{ status timestamp }} }} }} }} }}"""


@dataclass
class Campaign:
    """The stack, the stack of its ClickHouse, a table, and a killer of their processes."""

    stack: Stack
    clickhouse: Stack
    table: Table
    killer: Killer
    commits: int = 0
    healed: list[float] = field(default_factory=list)
    problem: str = ""
    """The last error of ClickHouse or Spark."""

    @property
    def stacks(self) -> tuple[Stack, ...]:
        return self.stack, self.clickhouse

    def commit(self) -> None:
        """Commit new rows."""
        self.commits += 1
        ids = range(self.commits * 1_000_000, self.commits * 1_000_000 + ROWS)
        rows = {
            "tenant": [f"t{each % TENANTS}" for each in ids],
            "id": list(ids),
            "words": [f"{each * 7919:x}" for each in ids],
        }
        write_deltalake(self.table.path, pa.table(rows), mode="append")

    def strike(self, how: str, kinds: Collection[str]) -> list[str]:
        """Strike, wait until all is well, and follow a commit; return what was done."""
        self.use_python()
        hanging = kinds if how == HANG else ()
        return self.heal_after(lambda: self.killer.strike(how, kinds), hanging=hanging)

    def heal_after(self, strike: Callable[[], list[str]], hanging: Collection[str]) -> list[str]:
        since = time.time()
        began = time.monotonic()
        restarts = self.count_restarts(hanging)
        struck = strike()
        wait_for(lambda: self.have_restarted(restarts), HEALS_SECONDS, self.told)
        wait_for(lambda: self.well(since), HEALS_SECONDS, self.told, every=LOOK_SECONDS)
        self.healed.append(time.monotonic() - began)
        print(f"{', '.join(struck)}: healed in {self.healed[-1]:.0f} s", flush=True)  # noqa: T201
        self.commit()
        wait_for(self.in_step, HEALS_SECONDS, self.told, every=LOOK_SECONDS)
        return struck

    def count_restarts(self, kinds: Collection[str]) -> dict[str, int]:
        return {kind: serving(self.stacks, kind).restarts for kind in kinds}

    def have_restarted(self, before: dict[str, int]) -> bool:
        now = self.count_restarts(before)
        return all(now[kind] > before[kind] for kind in before)

    def well(self, since: float) -> bool:
        """Whether every service is ready, and has answered or ticked since."""
        return (
            all(each.condition in WELL for stack in self.stacks for each in stack.state().services)
            and self._loaded()
            and self._ticked(since)
            and self._answers()
        )

    def in_step(self) -> bool:
        try:
            positions = read_positions(self.table.deployment, self.table.source)
        except IscpError:
            return False
        return len(positions) == TENANTS * 2 and all(each.in_step for each in positions)

    def verified(self) -> None:
        verdicts = compare_or_raise(self.table.deployment, self.table.source)
        assert len(verdicts) == TENANTS * 2
        assert [each for each in verdicts if not each.agrees] == []

    def told(self) -> str:
        jobs = [f"{job.key} {job.state} {job.status}" for job in self.table.jobs()]
        log = (self.stack.home / "logs" / "supervisor.log").read_text()
        kills = f"{dict(self.killer.done)} {self.problem}"
        return f"{kills}\n{jobs}\n{self.stack.state()}\n{log[-5_000:]}"

    def _loaded(self) -> bool:
        answer = self._query_dagster(_LOCATION)
        entries = answer["workspaceOrError"]["locationEntries"] if answer else []
        loaded = [(each["locationOrLoadError"] or {}).get("__typename") for each in entries]
        return loaded == ["RepositoryLocation"]

    def _ticked(self, since: float) -> bool:
        answer = self._query_dagster(_TICK)
        ticks = answer["sensorOrError"]["sensorState"]["ticks"] if answer else []
        return any(
            each["timestamp"] > since and each["status"] in {"SUCCESS", "SKIPPED"} for each in ticks
        )

    def _query_dagster(self, query: str):
        request = urllib.request.Request(
            f"{self.stack.dagster_url}/graphql",
            json.dumps({"query": query}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)["data"]
        except (OSError, ValueError):
            return None

    def _answers(self) -> bool:
        """Whether ClickHouse answers a query, and Spark one that needs a Python worker."""
        try:
            self.table.query("SELECT 1")
            self.use_python()
        except Exception as error:  # noqa: BLE001 - a Spark that is killed says it in many ways
            self.problem = str(error)
            return False
        return True

    def use_python(self) -> None:
        """Run a query that needs a Python worker."""
        # A lambda is sent by value; a function of this module, which Spark cannot import, is not.
        spark = get_shared_session(self.stack.spark_remote)
        same = spark.range(3).mapInArrow(lambda batches: batches, "id bigint")
        assert same.count() == 3


@pytest.fixture(scope="module")
def campaign(ground, compared_near):
    table = Table(ground.deployment, ground.declared["killed"])
    stacks = ground.stack, ground.clickhouse
    campaign = Campaign(*stacks, table=table, killer=Killer(stacks, Random(SEED)))
    campaign.commit()
    wait_for(campaign.in_step, HEALS_SECONDS, campaign.told)
    return campaign


@pytest.fixture
def counted(campaign: Campaign, record_property) -> Iterator[Campaign]:
    before = campaign.killer.done.copy()
    campaign.healed.clear()
    yield campaign
    done = campaign.killer.done - before
    record_property(f"{done.total()} kills", dict(done))
    if campaign.healed:
        record_property("healed in", f"{max(campaign.healed):.0f} s at most")


async def test_the_check_of_each_service_sees_that_it_does_not_answer(tmp_path, monkeypatch):
    """One whose check goes on failing is started again: tests/unit/local/test_stack_health.py."""
    monkeypatch.setenv("ISCP_JARS", str(jars_folder()))
    settings = resolve(tmp_path, {}, {})
    services = build(settings)
    assert {each.name for each in services} == {name for part in PARTS.values() for name in part}
    content = [each.name for each in services if not each.check or not await each.check(0)]
    # Its heartbeats are read through the webserver.
    assert content == [DAEMON]


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
