"""The events that a run reports though it ends too soon, without Dagster and without rows."""

from contextlib import contextmanager
from threading import Event
from types import SimpleNamespace

import pytest
from dagster import AssetCheckEvaluation, AssetKey, AssetMaterialization
from dagster._core.errors import DagsterExecutionInterruptedError

from iscp_dagster.location.assets.reports import reporting
from iscp_dagster.model.errors import UnavailableError
from support.errors import raises_naming


@pytest.fixture
def its(monkeypatch):
    """Return iterations whose outcomes are their own events."""
    monkeypatch.setattr(reporting, "build_news_events", lambda *_: [])
    monkeypatch.setattr(reporting, "DataVersions", lambda *_: None)
    monkeypatch.setattr(reporting, "build_materializations", lambda *arguments: arguments[3])
    monkeypatch.setattr(reporting, "log_event", lambda dagster, event, _: dagster.store(event))
    deployment = SimpleNamespace(make_delta_log=lambda _: None)
    return SimpleNamespace(
        to=SimpleNamespace(version=1), deployment=deployment, source=None, run_id="run"
    )


def make_outcomes(*names):
    return [SimpleNamespace(tenant=name, asset_key=AssetKey("text")) for name in names]


def run(its, store, *scans, ends=lambda: None):
    """Report the scans as a run does, then end as `ends` does."""
    context = SimpleNamespace(instance=None, store=store)
    with reporting.report_outcomes_in_background(context, its) as report:
        for outcomes in scans:
            report(outcomes, [])
        ends()


def test_a_run_that_fails_has_reported_its_outcomes(its):
    def fail():
        raise UnavailableError("Spark restarts")

    stored, scans = [], (make_outcomes("a", "b"), make_outcomes("c"))
    with pytest.raises(UnavailableError):
        run(its, stored.append, *scans, ends=fail)
    assert stored == [*scans[0], *scans[1]]


def test_a_run_that_is_terminated_ends_after_the_batch_that_is_being_stored(its, monkeypatch):
    monkeypatch.setattr(reporting, "BATCH", 2)
    storing, interrupted, stored = Event(), Event(), []

    def store(event):
        stored.append(event)
        storing.set()
        assert interrupted.wait(60)

    set_when_interrupted = reporting._set_when_interrupted

    @contextmanager
    def set_both(event):
        try:
            with set_when_interrupted(event):
                yield
        finally:
            interrupted.set()

    monkeypatch.setattr(reporting, "_set_when_interrupted", set_both)

    def interrupt():
        assert storing.wait(60)
        raise DagsterExecutionInterruptedError

    with pytest.raises(DagsterExecutionInterruptedError):
        run(its, store, make_outcomes("a", "b", "c"), make_outcomes("d"), ends=interrupt)
    assert [outcome.tenant for outcome in stored] == ["a", "b"]


def test_an_error_of_dagster_s_storage_fails_the_run_once_each_scan_was_tried(its):
    tenants = []

    def store(event):
        tenants.append(event.tenant)
        raise OSError("the disk is full")

    with raises_naming(OSError, "full"):
        run(its, store, make_outcomes("a", "b"), make_outcomes("c"))
    assert tenants == ["a", "c"]


def test_a_batch_is_of_one_asset_and_a_check_follows_its_asset(monkeypatch):
    logged, batches = [], []

    def log(_, event, batch):
        logged.append(event)
        batches.append((batch.id, batch.is_end))

    monkeypatch.setattr(reporting, "log_event", log)
    monkeypatch.setattr(reporting, "BATCH", 5)
    check = AssetCheckEvaluation(passed=True, check_name="readable", asset_key=AssetKey("source"))
    source, text, mirror = (
        [AssetMaterialization(asset, partition=tenant) for tenant in "abc"]
        for asset in ("source", "text", "mirror")
    )
    by_tenant = [event for pair in zip(text, mirror, strict=True) for event in pair]
    reporting.store_events(None, [check, *source])
    reporting.store_events(None, by_tenant)
    assert logged == [*source, check, *mirror[:2], *text, mirror[2]]
    sizes = [3, 1, 2, 3, 1]
    ends = [left == 1 for size in sizes for left in range(size, 0, -1)]
    assert [is_end for _, is_end in batches] == ends
    assert len({batch for batch, _ in batches}) == len(sizes)
