"""Users' own consumers on real services, alone and beside indexes."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from iscp_dagster import Mirror
from iscp_dagster.joblog.iterations import FailedStep, Iteration
from iscp_dagster.location.names import SERVICES_TAG
from iscp_dagster.location.sensor.runner import build_run_request
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.consumers.protocol import DataType
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.moment import START
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.look import Dispatch
from iscp_dagster.sync.executors.retriever import ConsumerScan, Retriever
from iscp_dagster.upkeep.verify_tables import compare_tables
from support.errors import assert_names
from support.lake.delta_tables import Table
from support.paths import DOCS

PAGE = DOCS / "custom-consumers.md"


@dataclass
class Keep:
    """Keeps its rows in memory."""

    source: Any
    info: Any
    calls: ClassVar[list[Keep]] = []
    inserts: list[pa.RecordBatch] = field(default_factory=list)
    deletes: list[pa.RecordBatch] = field(default_factory=list)

    def consume(self, retriever):
        self.data_type, self.range = retriever.data_type, retriever.range
        self.calls.append(self)
        done = False
        while not done:
            inserts, deletes, done = retriever.next()
            self.inserts += [] if inserts is None else [inserts]
            self.deletes += [] if deletes is None else [deletes]

    @classmethod
    def last(cls):
        return cls.calls[-1]


@pytest.fixture(autouse=True)
def _nothing_kept():
    Keep.calls.clear()


class Hasty(Keep):
    def consume(self, retriever):
        self.calls.append(self)


class Unlucky(Keep):
    def consume(self, retriever):
        retriever.next()
        raise UnavailableError("not now")


class Wrong(Keep):
    def consume(self, retriever):
        retriever.next()
        raise ZeroDivisionError("by me")


class InOneTransaction:
    """Writes rows and watermarks to the ISCP log's database in one transaction."""

    lose = staticmethod(lambda: None)
    """Is called before the transaction."""

    def __init__(self, source, info):
        self.engine = sa.create_engine(info.options["url"])
        self.fails = info.options.get("fails", False)

    def consume(self, retriever):
        done, rows = False, []
        while not done:
            upserts, _, done = retriever.next()
            for tenant, some in retriever.split_by_tenant(upserts).items():
                rows += [{"tenant": tenant, "id": id_} for id_ in some["id"].to_pylist()]
        self.lose()
        with self.engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS mine (tenant TEXT, id INTEGER)")
            for row in rows:
                connection.execute(sa.text("INSERT INTO mine VALUES (:tenant, :id)"), row)
            retriever.update_watermark(connection)
            if self.fails:
                raise UnavailableError("mine fell over before the commit")


def name(table, job="kept"):
    return JobID(db=table.source.database, table=table.source.table, job=job)


def register(table, kind, *, job="kept", tenant="a", columns=(), **options):
    info = ConsumerInfo(
        type=f"{__name__}:{kind}" if kind in globals() else kind,
        db=table.source.database,
        table=table.source.table,
        job=job,
        columns=columns,
        options=options,
    )
    table_id = table.deployment.make_delta_log(table.source).get_table_id()
    spec = JobSpec(detail=IterationDetail(consumer=info))
    assert table.deployment.log.register(tenant, name(table, job), table_id, spec)


def job_of(table, job="kept"):
    (found,) = table.deployment.log.list_jobs(name=name(table, job))
    return found


def rows(batches):
    return sorted(pa.Table.from_batches(batches).to_pylist(), key=lambda row: row["id"])


def test_consumers_of_one_iteration_share_one_scan_with_the_indexes(deployment):
    """A snapshot has version and time, no deletes, and the columns asked for, key and tenant."""
    table = Table.make(deployment, Mirror())
    table.insert(1, 2)
    register(table, "Keep", job="all")
    register(table, "Keep", job="one", columns=("name",))
    register(table, "Keep", job="two", columns=("v",))
    register(table, "text", job="words", columns=("name",), text=["name"])
    (dispatch,) = table.look().dispatches
    jobs = ["all", "mirror", "one", "two", "words"]
    assert [key.job_name for key in dispatch.iteration.jobs] == jobs
    table.run(dispatch.iteration, queued_as=dispatch.name)
    kept = {each.info.job: each for each in Keep.calls}
    assert {(each.data_type, len(each.deletes)) for each in Keep.calls} == {(0, 0)}
    found = {job: rows(each.inserts) for job, each in kept.items()}
    assert [row["id"] for row in found["all"]] == [1, 2]
    stamps = ["_version", "_timestamp"]
    assert {job: list(some[0]) for job, some in found.items()} == {
        "all": ["tenant", "id", "name", "v", *stamps],
        "one": ["tenant", "id", "name", *stamps],
        "two": ["tenant", "id", "v", *stamps],
    }
    latest = deployment.make_delta_log(table.source).get_latest_moment()
    stamped = {(row["_version"], row["_timestamp"]) for row in found["all"]}
    assert stamped == {(latest.version, latest.at)}
    assert job_of(table, "all").status.counts["inserted"] == 2
    assert table.query("SELECT count() FROM {mirror}") == [(2,)]
    # An index that nobody declared is kept by its spec.
    view = f"{table.source.database}.{table.source.table}_words"
    found = table.query(f"SELECT * FROM {view} WHERE hasAllTokens(name, 'words') ORDER BY id")
    assert found == [("a", 1, "some words 1"), ("a", 2, "some words 2")]


def test_a_tail_has_the_last_change_of_each_key_and_keys_of_what_went(deployment):
    table = Table.make(deployment, Mirror())
    table.insert(1, 2, 3)
    table.insert(9, tenant="b")
    table.follow()
    register(table, "Keep")
    # A consumer that has nothing yet is no index that is not built.
    found = compare_tables(deployment, [(table.source, None)])
    assert (found.complete, found.unbuilt) == (True, [])
    table.follow()
    assert [row["id"] for row in rows(Keep.last().inserts)] == [1, 2, 3]
    table.sql("UPDATE {t} SET name = 'once' WHERE id = 1")
    table.sql("UPDATE {t} SET name = 'twice' WHERE id = 1")
    table.sql("DELETE FROM {t} WHERE id = 2")
    table.follow()
    kept = Keep.last()
    assert kept.data_type == 1
    assert [(row["id"], row["name"], row["_version"]) for row in rows(kept.inserts)] == [
        (1, "twice", 4)
    ]
    assert [list(row) for row in rows(kept.deletes)] == [["tenant", "id", "_version", "_timestamp"]]
    assert [(row["id"], row["_version"]) for row in rows(kept.deletes)] == [(2, 5)]
    assert job_of(table).status.counts["deleted"] == 1


def test_consumers_that_fail_stop_and_roll_back_no_sibling(deployment):
    """What a consumer raises is permanent and named, unless it says otherwise."""
    table = Table.make(deployment, Mirror())
    table.insert(1)
    for kind in ("Unlucky", "Wrong", "Hasty"):
        register(table, kind, job=kind)
    register(table, "no_such_module:Consumer", job="missing")
    register(table, "Keep", job="nowhere", columns=("nowhere",))
    failed = {
        each.claim.key.job_name: (each.code, each.message)
        for each in table.follow()
        if isinstance(each, FailedStep)
    }
    assert failed["Unlucky"] == (UnavailableError.code, "not now")
    assert table.query("SELECT count() FROM {mirror}") == [(1,)]
    unlucky = job_of(table, "Unlucky")
    found = unlucky.state, unlucky.watermark, unlucky.status.attempts
    assert found == (JobState.COMPLETED, START, 1)
    for job, *named in (
        ("Wrong", "Consumer of", "ZeroDivisionError: by me"),
        ("Hasty", "returned before it had read everything"),
        ("missing", "'no_such_module:Consumer'"),
        ("nowhere", "'nowhere'"),
    ):
        assert job_of(table, job).state is JobState.ERROR
        assert_names(job_of(table, job).status.message, *named)


def test_data_and_watermark_in_one_transaction_commit_together(deployment, tmp_path):
    url = f"sqlite:///{tmp_path / 'iscp_log.sqlite'}"
    table = Table.make(deployment)
    table.insert(1, 2)

    def follow():
        table.follow()
        with sa.create_engine(url).connect() as connection:
            found = sa.inspect(connection).has_table("mine")
            return connection.exec_driver_sql("SELECT * FROM mine").all() if found else []

    register(table, "InOneTransaction", job="fails", url=url, fails=True)
    held, job = follow(), job_of(table, "fails")
    assert (held, job.watermark, job.status.code) == ([], START, UnavailableError.code)
    register(table, "InOneTransaction", url=url)
    held, job = follow(), job_of(table)
    assert sorted(held) == [("a", 1), ("a", 2)]
    assert job.watermark.version == table.version
    assert (job.state, job.status.counts["inserted"]) == (JobState.COMPLETED, 2)


def test_a_consumer_gets_nulls_whatever_the_indexes_have(deployment):
    columns = "tenant STRING, id BIGINT, tags ARRAY<STRING>, m MAP<STRING, INT>"
    table = Table.make(deployment, Mirror(nulls="json"), columns=columns, nulls="flag")
    null, there = "('a', 1, NULL, NULL)", "('a', 2, array(NULL), map('x', NULL))"
    table.sql(f"INSERT INTO {{t}} VALUES {null}, {there}")
    register(table, "Keep")
    table.follow()
    table.sql(f"INSERT INTO {{t}} VALUES {null.replace('1', '3')}")
    table.follow()
    table.agreed()
    (first,), (second,) = (call.inserts for call in Keep.calls)
    rows = [*first.to_pylist(), *second.to_pylist()]
    assert sorted((row["id"], row["tags"], row["m"]) for row in rows) == [
        (1, None, None),
        (2, [None], [("x", None)]),
        (3, None, None),
    ]


def test_the_example_in_the_docs(deployment, tmp_path, monkeypatch):
    (code, _) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_consumers.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    table, root = Table.make(deployment), tmp_path / "below" / "files"
    tenants = ("a", "b/c", "..")
    for tenant in tenants:
        table.insert(1, 2, tenant=tenant)
        register(table, "my_consumers:ParquetFolder", tenant=tenant, folder=str(root))
    table.follow()
    last = table.version
    table.sql("DELETE FROM {t} WHERE id = 1 AND tenant = 'a'")
    table.follow()

    def held(tenant):
        files = sorted((root / f"tenant={tenant}").glob("*.parquet"))
        return {file.name: pq.read_table(file)["id"].to_pylist() for file in files}

    first = {f"0-{last}-0-upsert.parquet": [1, 2]}
    assert [held(folder) for folder in ("b%2Fc", "..")] == [first] * 2
    assert held("a") == first | {f"{last + 1}-{last + 1}-0-delete.parquet": [1]}
    # Rebuilding one tenant replaces only its own files.
    deployment.log.rebuild([job.key for job in table.jobs() if job.key.tenant == "a"])
    table.follow()
    assert held("a") == {f"0-{last + 1}-0-upsert.parquet": [2]}
    assert [held(folder) for folder in ("b%2Fc", "..")] == [first] * 2
    assert sorted(folder.name for folder in root.iterdir()) == [
        *("tenant=..", "tenant=a", "tenant=b%2Fc")
    ]
    assert sorted(each.name for each in (tmp_path / "below").iterdir()) == ["files"]
    sys.modules.pop("my_consumers")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install the page's example, as pip would."""
    (code,) = re.findall(r"```python\n(# my_audit.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    (line,) = re.findall(r"```toml\n(\[.*?\n.*?\n)```", PAGE.read_text())
    (tmp_path / "my_audit.py").write_text(code)
    told = tmp_path / "my_audit-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: my_audit\nVersion: 1.0\n")
    header, offered = line.replace("project.entry-points.", "").replace('"', "").splitlines()
    (told / "entry_points.txt").write_text(f"{header}\n{offered}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    get_consumer_kind.cache_clear()
    yield
    sys.modules.pop("my_audit", None)
    get_consumer_kind.cache_clear()


def is_tagged_as_slow(table, job):
    """Whether the job's run takes one of the few places of runs that wait for others."""
    iteration = Iteration.from_jobs([job], replace(job.watermark, version=99))
    return (
        SERVICES_TAG
        in build_run_request(Dispatch(source=table.source, iteration=iteration, name="d")).tags
    )


@pytest.mark.usefixtures("installed")
def test_a_fifth_kind_is_registered_and_reads_rows(deployment, tmp_path):
    table = Table.make(deployment, Mirror())
    table.insert(1)
    register(table, "audit", job="trail", folder=str(tmp_path))
    iterations = [each.iteration for each in table.look().dispatches]
    (due,) = (each for each in iterations if each.jobs[0].job_name == "trail")
    tagged = {job.key.job_name: is_tagged_as_slow(table, job) for job in table.jobs()}
    assert tagged == {"trail": True, "mirror": False}
    info, kind = job_of(table, "trail").spec.detail.consumer, get_consumer_kind("audit")
    assert kind.of_images
    scan = ConsumerScan(
        job=name(table, "trail"),
        registrations={"a": 1},
        range=due.range,
        data_type=DataType.TAIL,
        columns=("id", "_image", "_ordinal"),
        delete_columns=("id",),
        tenant_column="tenant",
    )
    retriever = Retriever(scan=scan)
    images = {"id": [1, 2], "_image": [1, 0], "_ordinal": [1, 0], "_version": [1, 1]}
    stamps = {"tenant": ["a", "a"], "_timestamp": [0, 0], "_deleted": [False, False]}
    for rows in (pa.table(images | stamps), None):
        retriever.messages.put(rows)
    kind.make_consumer(table.source, info, scan).consume(retriever)
    (file,) = (tmp_path / "a").iterdir()
    found = [json.loads(each)["id"] for each in file.read_text().splitlines()]
    assert (file.stem, found) == (f"{due.to.version:020}", [2, 1])
