"""The end of a Dagster of one's own, in which `iscp up` has no part: by a signal, or a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from iscp_dagster import Mirror
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.model.jobs import Job, JobID
from iscp_dagster.model.moment import START
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec, TriggerSpec
from iscp_dagster.model.states import Event, JobState
from support.lake.delta_tables import Table, deployment_at
from support.paths import ROOT
from support.services.stack import clean_environment, wait_for
from support.spark.fake_spark import NearSpark

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_800)]

SECONDS = 300.0
DEFINITIONS = """
import time
from pathlib import Path

from iscp_dagster import Mirror, SourceTable, build_definitions, resources_from_environment


class Gate:
    def __init__(self, source, info):
        self.folder = Path(info.options["folder"])

    def consume(self, retriever):
        done, ids = False, []
        while not done:
            inserts, _, done = retriever.next()
            ids += [] if inserts is None else inserts["id"].to_pylist()
        while not (self.folder / "open").exists():
            time.sleep(0.1)
        with (self.folder / "taken").open("a") as file:
            file.write(f"{{sorted(ids)}}\\n")


rows = SourceTable("{name}", key="id", tenant="tenant", indexes=[Mirror()])
defs = build_definitions([rows], resources_from_environment())
"""
WORKSPACE = """
load_from:
  - grpc_server: {{host: 127.0.0.1, port: {port}, location_name: mine}}
"""
STORAGE = """
storage:
  custom: {module: iscp_dagster.runs.sqlite, class: SqliteStorage}
"""


def _heed_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class OwnDagster:
    """A project of one table and the processes of its Dagster; a job of a consumer with a gate."""

    folder: Path
    environment: dict[str, str]
    table: Table
    port: int
    running: dict[str, psutil.Popen] = field(default_factory=dict)

    def start_dev(self) -> None:
        self._start("dev", "dagster", "dev", "-m", "definitions", "-p", str(find_free_port()))

    def start_code_server(self) -> None:
        self._start(
            *("code server", "dagster", "api", "grpc", "-m", "definitions"),
            *("-h", "127.0.0.1", "-p", str(self.port)),
        )

    def start_daemon(self) -> None:
        self._start("daemon", "dagster._daemon", "run", "-w", "workspace.yaml")

    def _start(self, name: str, *module: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = psutil.Popen(
                [sys.executable, "-m", *module],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Whoever runs the tests in the background has it ignored, and Dagster then stays.
                preexec_fn=_heed_sigint,
            )

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to the process alone, and wait for its end."""
        process = self.running.pop(name)
        process.send_signal(number)
        process.wait(SECONDS)

    def job(self, name: str = "gate") -> Job | None:
        source = self.table.source
        named = JobID(db=source.database, table=source.table, job=name)
        return next(iter(self.table.deployment.log.list_jobs(tenant="a", name=named)), None)

    def events(self) -> list[Event]:
        job = self.job()
        history = self.table.deployment.log.read_history(tenant="a", name=job.name)
        return [each.event for each in history]

    def await_state(self, state: JobState, name: str = "gate") -> None:
        wait_for(lambda: (job := self.job(name)) and job.state is state, SECONDS, self.told)

    def await_in_step(self) -> None:
        def is_so() -> bool:
            version = self.table.version
            jobs = self.table.jobs()
            return len(jobs) == 2 and all(
                each.state is JobState.COMPLETED and each.watermark.version == version
                for each in jobs
            )

        wait_for(is_so, SECONDS, self.told)

    @property
    def taken(self) -> list[str]:
        """What the consumer has taken to its end, an iteration a line."""
        file = self.folder / "taken"
        return file.read_text().splitlines() if file.exists() else []

    def open_gate(self) -> None:
        (self.folder / "open").touch()

    def told(self) -> str:
        logs = [f"{file.name}: {file.read_text()[-5_000:]}" for file in self.folder.glob("*.log")]
        return "\n".join([*map(str, self.table.jobs()), *map(str, self.events()), *logs])

    def processes(self) -> list[psutil.Process]:
        """All living processes of this Dagster, its runs too."""
        home = str(self.folder / "home")
        found = []
        for each in psutil.process_iter():
            try:
                if each.environ().get("DAGSTER_HOME") == home:
                    found.append(each)
            except psutil.Error:
                continue
        return found


@pytest.fixture
def own(clickhouse_url, spark_remote, tmp_path):
    deployment = deployment_at(clickhouse_url, spark_remote, tmp_path)
    table = Table.make(deployment, Mirror(), writer=NearSpark())
    (tmp_path / "definitions.py").write_text(DEFINITIONS.format(name=table.source.name))
    port = find_free_port()
    (tmp_path / "workspace.yaml").write_text(WORKSPACE.format(port=port))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text() + STORAGE)
    environment = clean_environment(tmp_path / "no stack") | {
        "DAGSTER_HOME": str(tmp_path / "home"),
        "ISCP_LOG_URL": deployment.log.engine.url.render_as_string(hide_password=False),
        "ISCP_LAKE": deployment.lake,
        "CLICKHOUSE_URL": clickhouse_url,
        "SPARK_REMOTE": spark_remote,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
    }
    own = OwnDagster(folder=tmp_path, environment=environment, table=table, port=port)
    table.insert(1)
    source = table.source
    name = JobID(db=source.database, table=source.table, job="gate")
    info = ConsumerInfo(
        type="definitions:Gate", db=name.db, table=name.table, job="gate",
        options={"folder": str(tmp_path)},
    )  # fmt: skip
    spec = JobSpec(trigger=TriggerSpec(job_type="greedy"), detail=IterationDetail(consumer=info))
    assert deployment.log.register(
        "a", name, deployment.make_delta_log(source).get_table_id(), spec
    )
    yield own
    for each in own.processes():
        each.kill()
    for each in own.running.values():
        each.wait(SECONDS)


def test_a_daemons_end_cancels_what_runs(own):
    own.start_code_server()
    own.start_daemon()
    own.await_state(JobState.RUNNING)
    own.end("daemon")
    own.await_state(JobState.CANCELED)
    assert (own.job().watermark, own.taken) == (START, [])
    assert own.events() == [Event.REGISTER, Event.ENQUEUE, Event.START, Event.CANCEL]


def test_the_end_of_dagster_dev_cancels_what_runs(own):
    own.start_dev()
    own.await_state(JobState.RUNNING)
    own.end("dev")
    wait_for(lambda: not own.processes(), SECONDS, own.told)
    ended = own.job()
    assert (ended.state, ended.watermark) == (JobState.CANCELED, START), own.told()
    assert own.taken == []
    own.open_gate()
    own.start_dev()
    own.await_in_step()
    assert own.taken == ["[1]"]
    own.end("dev")
    own.table.check()


def test_a_kill_of_daemon_or_code_server_ends_no_run(own):
    own.start_code_server()
    own.start_daemon()
    own.await_state(JobState.RUNNING)
    run = own.job().run_id
    own.end("daemon", signal.SIGKILL)
    own.start_daemon()
    own.end("code server", signal.SIGKILL)
    own.start_code_server()
    assert (own.job().state, own.job().run_id, own.taken) == (JobState.RUNNING, run, [])
    own.open_gate()
    own.await_in_step()
    own.table.insert(2)
    own.await_in_step()
    assert own.taken == ["[1]", "[2]"]
    assert Event.RECOVER not in own.events()
    own.table.check()
    own.end("daemon")
    own.end("code server")
    wait_for(lambda: not own.processes(), SECONDS, own.told)
