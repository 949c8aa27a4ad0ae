"""What a run that is ahead of the runner reports to Dagster with a data version."""

import dagster as dg
import pytest

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.location.assets.data_versions import DataVersions
from support.jobs.one_table import commit, orders


@pytest.fixture
def source(tmp_path):
    made = orders(tmp_path)
    commit(made, "eu", "us")
    return made


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def test_it_tells_the_table_s_facts_as_of_the_run_s_version(source, instance):
    """Dagster shows what a table's latest event says, and nothing from earlier ones."""
    commit(source, "eu", later="than the run")
    log = DeltaLog(source.path, "region")
    news = DataVersions(instance, source, log, 0).build_unreported_events(["eu", "us"])
    assert {(each.partition, each.metadata["version"].value) for each in news} == {
        ("eu", 0),
        ("us", 0),
    }
    for each in news:
        shown = [column.name for column in each.metadata["dagster/column_schema"].schema.columns]
        assert shown == ["id", "region"]
        assert each.metadata["path"].value == source.path


def test_a_version_is_told_also_if_the_table_s_facts_are_not_known(source, instance, monkeypatch):
    def unreadable(*_):
        raise OSError("the checkpoint is gone")

    monkeypatch.setattr(DeltaLog, "get_facts", unreadable)
    news = DataVersions(
        instance, source, DeltaLog(source.path, "region"), 0
    ).build_unreported_events(["eu"])
    assert [(each.partition, set(each.metadata)) for each in news] == [("eu", {"version"})]
