"""What a run that is ahead of the runner reports to Dagster with a data version."""

import dagster as dg
import pytest

from iscp_dagster.delta.log.deltalog import DeltaLog
from iscp_dagster.location.assets.data_versions import DataVersions
from support.jobs.one_table import commit, orders


@pytest.fixture
def source(tmp_path):
    source = orders(tmp_path)
    commit(source, "eu", "us")
    return source


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def build_events(instance, source, *tenants):
    """Build the events of the tenants that a run of version 0 reports."""
    log = DeltaLog(source.path, "region")
    return DataVersions(instance, source, log, 0).build_unreported_events(tenants)


def test_an_event_has_the_table_s_facts_as_of_the_run_s_version(source, instance):
    """Dagster shows what a table's latest event says, and nothing from earlier ones."""
    commit(source, "eu", later="than the run")
    events = build_events(instance, source, "eu", "us")
    versions = {(event.partition, event.metadata["version"].value) for event in events}
    assert versions == {("eu", 0), ("us", 0)}
    for event in events:
        columns = event.metadata["dagster/column_schema"].schema.columns
        assert [column.name for column in columns] == ["id", "region"]
        assert event.metadata["path"].value == source.path


def test_a_version_is_reported_even_if_the_table_s_facts_are_unknown(source, instance, monkeypatch):
    def fail(*_):
        raise OSError("the checkpoint is gone")

    monkeypatch.setattr(DeltaLog, "get_facts", fail)
    (event,) = build_events(instance, source, "eu")
    assert (event.partition, set(event.metadata)) == ("eu", {"version"})
