"""What a run that ends too soon reports, without Dagster and without rows."""

from contextlib import contextmanager
from threading import Event
from types import SimpleNamespace

import pytest
from dagster import AssetCheckEvaluation, AssetKey, AssetMaterialization
from dagster._core.errors import DagsterExecutionInterruptedError

from iscp_dagster.location.assets import reporting
from iscp_dagster.model.errors import UnavailableError


@pytest.fixture
def its(monkeypatch):
    """Return iterations whose outcomes are their own events."""
    monkeypatch.setattr(reporting, "build_news_events", lambda *_: [])
    monkeypatch.setattr(reporting, "DataVersions", lambda *_: None)
    monkeypatch.setattr(reporting, "build_materializations", lambda *given: given[3])
    monkeypatch.setattr(reporting, "log_event", lambda dagster, event, _: dagster.store(event))
    deployment = SimpleNamespace(make_delta_log=lambda _: None)
    return SimpleNamespace(
        to=SimpleNamespace(version=1), deployment=deployment, source=None, run_id="run"
    )


def outcomes_of(*names):
    return [SimpleNamespace(tenant=name, asset_key=AssetKey("text")) for name in names]


def run(its, store, *scans, ends=lambda: None):
    """Report the scans as a run does, then end as `ends` does."""
    context = SimpleNamespace(instance=None, store=store)
    with reporting.report_in_background(context, its) as tell:
        for some in scans:
            tell(some, [])
        ends()


def test_a_run_that_fails_has_reported_what_it_served(its):
    def fail():
        raise UnavailableError("Spark restarts")

    stored, scans = [], (outcomes_of("a", "b"), outcomes_of("c"))
    with pytest.raises(UnavailableError):
        run(its, stored.append, *scans, ends=fail)
    assert stored == [*scans[0], *scans[1]]


def test_a_run_that_is_terminated_ends_after_the_batch_that_is_being_stored(its, monkeypatch):
    monkeypatch.setattr(reporting, "BATCH", 2)
    begun, left, stored = Event(), Event(), []

    def store(event):
        stored.append(event)
        begun.set()
        assert left.wait(60)

    noted = reporting._set_when_interrupted

    @contextmanager
    def noting(event):
        try:
            with noted(event):
                yield
        finally:
            left.set()

    monkeypatch.setattr(reporting, "_set_when_interrupted", noting)

    def terminated():
        assert begun.wait(60)
        raise DagsterExecutionInterruptedError

    with pytest.raises(DagsterExecutionInterruptedError):
        run(its, store, outcomes_of("a", "b", "c"), outcomes_of("d"), ends=terminated)
    assert [each.tenant for each in stored] == ["a", "b"]


def test_what_dagster_does_not_store_fails_the_run_when_all_was_tried(its):
    tried = []

    def store(event):
        tried.append(event.tenant)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        run(its, store, outcomes_of("a", "b"), outcomes_of("c"))
    assert tried == ["a", "c"]


def test_a_batch_is_of_one_asset_and_checks_follow_what_they_are_of(monkeypatch):
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
    of_tenants = [each for pair in zip(text, mirror, strict=True) for each in pair]
    reporting.store_events(None, [check, *source])
    reporting.store_events(None, of_tenants)
    assert logged == [*source, check, *mirror[:2], *text, mirror[2]]
    sizes = [3, 1, 2, 3, 1]
    ends = [left == 1 for size in sizes for left in range(size, 0, -1)]
    assert [is_end for _, is_end in batches] == ends
    assert len({batch for batch, _ in batches}) == len(sizes)
