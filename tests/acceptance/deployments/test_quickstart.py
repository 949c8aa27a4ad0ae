"""The quickstart's text and the demo's steps, in this process and without Spark.

The same by processes of their own, with Spark, triggers and webhooks, is a soak: test_first_hour.
"""

from __future__ import annotations

import io
import json
import logging
import re
import runpy
import shlex
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import dagster as dg
import httpx
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from rich.console import Console
from standardwebhooks import Webhook

import assets
from assets.docs import symbols
from iscp_dagster.demo import load as loading
from iscp_dagster.demo.receiver import Receiver
from iscp_dagster.demo.run import Demo
from iscp_dagster.demo.symbols import list_source_files
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.location.assets.source_asset import Load
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.model.moment import START
from support.clients.cli import CommandLine
from support.clients.document_commands import Reader, blocks_of, section
from support.jobs.one_table import name_deployment
from support.jobs.sensor_ticks import Ticks
from support.lake.delta_tables import Table, deployment_at
from support.paths import DOCS
from support.spark.fake_spark import run_sql

SECRET = f"whsec_{'A' * 32}"


def walk():
    return blocks_of(section(DOCS / "quickstart.md", "Your own table"))


@dataclass(frozen=True, kw_only=True)
class NearReader(Reader):
    """Follows a document in this process, where nothing but ClickHouse is started."""

    command_line: CommandLine
    ticks: Ticks

    def run(self, commands: str) -> CompletedProcess[str]:
        output = "".join(map(self.run_line, self.fill_in(commands).splitlines()))
        return CompletedProcess(commands, 0, stdout=output, stderr="")

    def run_line(self, line: str) -> str:
        words = shlex.split(line)
        if words[0] in {"eval", "."} or words[:2] in (["./iscp", "up"], ["./iscp", "down"]):
            return ""
        if words[0] == "./iscp":
            code, text = self.command_line(*words[1:])
            assert code == 0, text
            return text
        if "$DAGSTER_URL/graphql" in words:
            self.synchronize()
            return ""
        if words[0] != ".venv/bin/python":
            done = super().run(line)
            assert done.returncode == 0, done.stderr
            return done.stdout
        with redirect_stdout(io.StringIO()) as output:
            runpy.run_path(str(self.folder / words[1]), run_name="__main__")
        self.synchronize()
        return output.getvalue()

    def synchronize(self) -> None:
        """Load the location, once it is declared, and run all that its sensor asks for."""
        if (self.folder / "assets" / "tickets.py").exists():
            self.ticks.defs = (
                self.ticks.defs or runpy.run_module("iscp_dagster.definitions")["defs"]
            )
            while requests := self.ticks().run_requests:
                for each in requests:
                    job = self.ticks.defs.resolve_job_def(each.job_name)
                    job.execute_in_process(instance=self.ticks.instance, tags=dict(each.tags))
        # Leave out what Dagster logged.
        self.command_line.capsys.readouterr()


def make_plain(statement):
    """Write a statement as the stand-in for Spark reads it: in one line, without suffixes."""
    return re.sub(r"\b([\d.]+)F\b", r"float(\1)", " ".join(statement.split()))


@pytest.fixture
def reader(tmp_path, own_clickhouse_url, near_spark, migrations_read, monkeypatch, capsys):
    """Return a reader whose files in `assets/` belong to the location."""
    environ = name_deployment(monkeypatch, tmp_path) | {"CLICKHOUSE_URL": own_clickhouse_url}
    monkeypatch.setenv("CLICKHOUSE_URL", own_clickhouse_url)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("support.clients.document_commands.FOLLOW_SECONDS", 10)
    (tmp_path / "assets").mkdir()
    monkeypatch.setattr(assets, "__path__", [*assets.__path__, str(tmp_path / "assets")])
    for name in ("get_shared_session", "create_private_session"):
        monkeypatch.setattr(f"iscp_dagster.api.environment.{name}", lambda _: near_spark)
    plain = SimpleNamespace(sql=lambda text: run_sql(make_plain(text)))
    builder = SimpleNamespace(builder=SimpleNamespace(getOrCreate=lambda: plain))
    monkeypatch.setattr("pyspark.sql.SparkSession", builder)
    with dg.DagsterInstance.ephemeral(
        str(tmp_path), settings={"telemetry": {"enabled": False}}
    ) as instance:
        yield NearReader(
            folder=tmp_path,
            places={"/tmp/lake": str(tmp_path / "lake"), ".venv/bin/iscp": "./iscp"},
            environment=environ | {"no_proxy": "127.0.0.1", "PATH": "/usr/bin:/bin"},
            logs=str,
            command_line=CommandLine(capsys, monkeypatch),
            ticks=Ticks(None, instance),
        )
    sys.modules.pop("assets.tickets", None)


def test_the_walk_gives_what_is_written(reader):
    """Without its trigger and desk, since only Spark writes the times that triggers need."""
    unused = ("desk", "MATCH fixed", '{"data":')
    blocks = [each for each in walk() if not any(part in each.title + each.text for part in unused)]
    assert blocks[-1].text.strip() == "./iscp down"
    changes = [each.title for each in blocks].index("change_tickets.py")
    proof = blocks_of(section(DOCS / "production.md", "A deployment of your own, step by step"))
    verify = next(at for at, each in enumerate(proof) if "iscp verify" in each.text)
    reader.do([*blocks[:changes], *proof[verify : verify + 2], *blocks[changes:]])


TENANTS = ("rich", "typer")
MODULES = 6
"""Of each distribution; of rich they include the one whose symbol the demo changes."""
MERGE = re.compile(
    r"MERGE INTO delta\.`(?P<path>.+?)` AS held USING symbols_now AS now ON (?P<on>.+) "
    r"WHEN MATCHED AND (?P<differs>.+) THEN UPDATE SET \* WHEN NOT MATCHED THEN INSERT \* "
    r"WHEN NOT MATCHED BY SOURCE AND (?P<gone>.+) THEN DELETE"
)


class LoadingSpark:
    """Does what the demo's `load` asks of Spark: frames of Arrow, CREATE and MERGE by delta-rs."""

    def createDataFrame(self, rows):  # noqa: N802 - Spark's name
        self.batches = [pa.RecordBatch.from_pylist(rows)]
        return self

    def repartition(self, _tasks):
        return self

    def mapInArrow(self, function, _schema):  # noqa: N802 - Spark's name
        self.symbols = pa.Table.from_batches(function(self.batches))
        return self

    def createOrReplaceTempView(self, name):  # noqa: N802 - Spark's name
        assert name == "symbols_now"

    def sql(self, text):
        text = " ".join(text.split())
        if (merge := MERGE.fullmatch(text)) is None:
            run_sql(re.sub(r" COMMENT '[^']*'", "", text))
            return
        self.symbols = self.symbols.cast(pa.schema(DeltaTable(merge["path"]).schema().to_arrow()))
        held = DeltaTable(merge["path"]).merge(
            self.symbols, merge["on"], source_alias="now", target_alias="held"
        )
        held = held.when_matched_update_all(merge["differs"]).when_not_matched_insert_all()
        held.when_not_matched_by_source_delete(merge["gone"]).execute()


def post_signed(url, event):
    """Send a webhook; return the receiver's status."""
    body, now, number = json.dumps(event), get_utc_now(), str(event["event_id"])
    headers = {
        "webhook-id": number,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(SECRET).sign(number, now, body),
    }
    return httpx.post(url, content=body, headers=headers, trust_env=False).status_code


@dataclass
class NearDagster:
    """Does in this process what the demo asks of Dagster, and delivers an event of each kind."""

    table: Table
    receiver: Receiver
    url: str = "nowhere"

    def add_partition(self, definition: str, key: str) -> None:
        assert (definition, key in TENANTS) == ("docs_symbols_tenants", True)

    def materialize(self, _asset: Any, partitions: tuple[str, str], config: Any) -> str:
        first, last = map(TENANTS.index, partitions)
        (config,) = config["ops"].values()
        asked = Load(
            spark=LoadingSpark(),
            path=self.table.path,
            tenants=TENANTS[first : last + 1],
            config=loading.SymbolsConfig(**config["config"]),
            log=logging.getLogger(__name__),
        )
        loading.load_symbols(asked)
        self.table.follow()
        for kind in ("MATCH", "UNMATCH"):
            name = f"{kind} of {self.table.version}"
            event = {"event_id": name, "event_type": kind, "data": {"qualified_name": name}}
            assert post_signed(self.receiver.url, event) == 204
        return "run"

    def wait(self, run_id: str, seconds: float) -> None:
        assert run_id == "run"


def test_the_demo_loads_changes_searches_and_verifies(
    own_clickhouse_url, near_spark, tmp_path, monkeypatch
):
    def list_some(distribution):
        files = sorted(
            list_source_files(distribution), key=lambda each: "progress" not in each.file
        )
        return files[:MODULES]

    monkeypatch.setattr(loading, "list_source_files", list_some)
    table = Table(deployment_at(own_clickhouse_url, near_spark, tmp_path), symbols)
    shown = Console(file=io.StringIO(), width=80, highlight=False)
    with Receiver(find_free_port(), SECRET) as receiver:
        verdicts = Demo(
            deployment=table.deployment,
            source=symbols,
            dagster=NearDagster(table, receiver),
            console=shown,
            tenants=TENANTS,
            receiver=receiver,
        ).run_steps()
    assert len(verdicts) == len(TENANTS) * len(symbols.indexes)
    assert all(each.agrees and each.rows > MODULES for each in verdicts)
    changed, untouched = (
        [job for job in table.jobs() if job.key.tenant == tenant] for tenant in TENANTS
    )
    assert all(job.watermark.version == 2 for job in changed)
    assert all(job.status.from_.version == 1 for job in changed)
    assert all(job.status.counts["deleted"] > 0 < job.status.counts["inserted"] for job in changed)
    assert all(job.status.from_ == START for job in untouched), "it moves in memory only"
    text = shown.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split()[-2:] for line in text.splitlines() if line.rstrip().endswith("yes")]
    assert rows == [["yes", "yes"]] * len(verdicts)
    assert "MATCH of 2" in text
    assert "MATCH of 1" not in text, "this came before the change"
    assert "and 1 UNMATCH" in text
    for title, number in (("Meaning:", 5), ("SQL:", len(TENANTS))):
        found = text.partition(title)[2].splitlines()[2 : 2 + number]
        assert all(line.strip() for line in found), text
    doc = "SELECT doc FROM docs.symbols_mirror WHERE qualified_name = 'rich.progress.track'"
    assert table.query(doc)[0][0].endswith("Deprecated, as an example.")
