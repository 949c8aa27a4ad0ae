"""A kind of consumer from outside the package: one module, and one line in its metadata."""

from __future__ import annotations

import json
import re
import sys

import pytest
from places import DOCS
from tables import Table

from iscp_dagster import Mirror
from iscp_dagster.model.consumerkinds import consumer_kind
from iscp_dagster.model.declared.images import ChangeKind
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PAGE = (DOCS / "custom-consumers.md").read_text()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install the page's example, as pip would."""
    (code,) = re.findall(r"```python\n(# my_audit.py\n.*?)```", PAGE, re.DOTALL)
    (line,) = re.findall(r"```toml\n(\[.*?\n.*?\n)```", PAGE)
    (tmp_path / "my_audit.py").write_text(code)
    told = tmp_path / "my_audit-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: my_audit\nVersion: 1.0\n")
    header, offered = line.replace("project.entry-points.", "").replace('"', "").splitlines()
    (told / "entry_points.txt").write_text(f"{header}\n{offered}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    consumer_kind.cache_clear()
    yield
    sys.modules.pop("my_audit", None)
    consumer_kind.cache_clear()


@pytest.mark.usefixtures("installed")
def test_a_fifth_kind_reads_every_image_in_order(spark_deployment, tmp_path):
    table, root = Table.make(spark_deployment, Mirror()), tmp_path / "trail"
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')")
    table.insert(1, 2)
    source, log = table.source, spark_deployment.log
    job = JobID(db=source.database, table=source.table, job="trail")
    info = ConsumerInfo(type="audit", **vars_of(job), options={"folder": str(root)})
    table_id = spark_deployment.delta_log(source).table_id()
    assert log.register("a", job, table_id, JobSpec(detail=IterationDetail(consumer=info)))
    table.follow()
    table.sql("UPDATE {t} SET name = 'once' WHERE id = 1")
    table.sql("UPDATE {t} SET name = 'twice' WHERE id = 1")
    table.sql("DELETE FROM {t} WHERE id = 2")
    table.follow()
    base, changes = [
        [json.loads(each) for each in file.read_text().splitlines()]
        for file in sorted((root / "a").iterdir())
    ]
    shown = [(row["_change"], row["_image"], row["id"], row["name"]) for row in base]
    kind = ChangeKind.BASE
    rows = [(kind, 1, 1, "some words 1"), (kind, 1, 2, "some words 2")]
    assert [each for each in shown if each[0] == kind] == rows
    shown = [(row["_change"], row["_image"], row["id"], row["name"]) for row in changes]
    assert shown == [
        (ChangeKind.UPDATE, 0, 1, "some words 1"),
        (ChangeKind.UPDATE, 1, 1, "once"),
        (ChangeKind.UPDATE, 0, 1, "once"),
        (ChangeKind.UPDATE, 1, 1, "twice"),
        (ChangeKind.DELETE, 0, 2, "some words 2"),
    ]
    assert table.query("SELECT id, name FROM {mirror}") == [(1, "twice")]


def vars_of(job):
    return {"db": job.db, "table": job.table, "job": job.job}
