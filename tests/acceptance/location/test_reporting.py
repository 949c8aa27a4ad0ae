"""What runs report to Dagster: after the rows, for each tenant, even if a run ends too soon."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256

import dagster as dg
import pytest
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    StaleStatus,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from test_location import TWO, again_tags, load, locating, range_tags, tenants_name

from iscp_dagster import Mirror
from iscp_dagster.location.assets.reports import reporting
from iscp_dagster.location.assets.reports.data_versions import get_version_event_type
from iscp_dagster.location.names import get_source_asset_key
from iscp_dagster.model.errors import UnavailableError
from iscp_dagster.model.states import JobState
from iscp_dagster.planning import joining
from iscp_dagster.sync.reading.reader import SourceReader
from support.errors import assert_names
from support.lake.delta_tables import rows

REPORT = "iscp_report_indexes"
FRESH, STALE, MISSING = {StaleStatus.FRESH}, {StaleStatus.STALE}, {StaleStatus.MISSING}


@pytest.fixture
def locate(clickhouse_url, near_spark, tmp_path, migrations_read):
    with locating(clickhouse_url, near_spark, tmp_path) as build:
        yield build


def of_many(location, tenants="abc", **run):
    """Give each tenant a row and run what the sensor then requests, one run of all."""
    (request,) = asked_of_many(location, tenants)
    return request, location.run(None, None, request.tags, job_name=request.job_name, **run)


def asked_of_many(location, tenants="abc"):
    location.table.create()
    for tenant in tenants:
        location.table.insert(1, tenant=tenant)
    return location.tick().run_requests


def statuses(location, tenants="abc"):
    return {tenant: location.status(tenant) for tenant in tenants}


def materialized(location, run) -> Counter:
    """Return how many materializations the run reported, by tenant."""
    return Counter(each.partition for each in location.materializations(run))


def message_of(failed) -> str:
    (failure,) = [e for e in failed.all_events if e.event_type_value == "STEP_FAILURE"]
    return failure.step_failure_data.user_failure_data.description


def dying(*_):
    raise RuntimeError("killed while it reports")


@pytest.fixture
def one_tenant_a_scan(monkeypatch):
    monkeypatch.setattr(joining, "MOST_TENANTS", 1)


def failing_to_read(tenant):
    """Return a `Reader.rows` that fails for a scan of the tenant alone."""
    read = SourceReader.make_frame

    def failing(reader, *arguments, **named):
        if reader.tenants == {tenant}:
            raise UnavailableError("Spark restarts")
        return read(reader, *arguments, **named)

    return failing


def test_who_was_served_before_a_later_scan_fails_is_reported(
    locate, monkeypatch, one_tenant_a_scan
):
    location = locate(indexes=[Mirror()])
    with monkeypatch.context() as patch:
        patch.setattr(SourceReader, "make_frame", failing_to_read("b"))
        _, failed = of_many(location, fails=True)
    assert materialized(location, failed) == {"a": 1}
    assert statuses(location, "ab") == {"a": FRESH, "b": MISSING}


def test_executing_a_run_again_reports_what_it_had_not(locate, monkeypatch):
    location = locate(indexes=[Mirror()])
    with monkeypatch.context() as patch:
        patch.setattr(reporting, "build_materializations", dying)
        request, failed = of_many(location, fails=True)
    location.table.check()
    assert location.tick().run_requests == [], "all are in step"
    assert statuses(location) == dict.fromkeys("abc", MISSING)
    again = location.run(None, None, again_tags(failed, request), job_name=request.job_name)
    assert materialized(location, again) == dict.fromkeys("abc", 1)
    assert statuses(location) == dict.fromkeys("abc", FRESH)
    # What was reported once is not reported again.
    again = location.run(None, None, again_tags(failed, request), job_name=request.job_name)
    assert materialized(location, again) == {}


def test_every_hour_what_a_dead_run_did_not_report_is_reported(locate, monkeypatch):
    location = locate(load=load, indexes=[Mirror()])
    with monkeypatch.context() as patch:
        patch.setattr(reporting, "build_materializations", dying)
        _, failed = of_many(location, "abcd", fails=True)
    location.table.sql(f"INSERT INTO {{t}} VALUES {rows(2, tenant='b')}")
    location.run(location.keys, "c")
    location.table.insert(2, tenant="d")
    location.follow()
    with monkeypatch.context() as patch:
        # As if the run still worked: then it reports for itself.
        patch.setattr(reporting, "ACTIVE_STATUSES", [dg.DagsterRunStatus.FAILURE])
        assert materialized(location, location.job(REPORT)) == {}
    reported = location.job(REPORT)
    # b has changed since; what it serves is reported as it is.
    assert materialized(location, reported)["a"] == 1
    assert "c" not in materialized(location, reported)
    assert "d" not in materialized(location, reported)
    assert statuses(location, "abcd") == dict.fromkeys("abcd", FRESH)
    assert materialized(location, location.job(REPORT)) == {}
    assert materialized(location, failed) == {}
    schedule = location.defs.resolve_schedule_def(f"{REPORT}_hourly")
    assert (schedule.cron_schedule, schedule.job_name) == ("37 * * * *", REPORT)


def test_what_is_reported_late_of_a_tenant_that_changed_since_shows_as_behind(locate, monkeypatch):
    location = locate()
    with monkeypatch.context() as patch:
        patch.setattr(reporting, "build_materializations", dying)
        of_many(location, "ab", fails=True)
    location.table.sql("INSERT INTO {t} VALUES ('b', 3, 'x', array(1, 2, 3))")
    (request,) = location.tick().run_requests
    location.run(request.asset_selection, "b", request.tags, fails=True)
    mirror, vector = location.keys
    # The late report would hide that b's partition has failed, so its run fails for it.
    reported = location.job(REPORT, fails=True)
    assert "[10300]" in message_of(reported)
    assert materialized(location, reported) == {"a": 2, "b": 1}
    assert statuses(location, "a") == {"a": FRESH}
    assert location.status("b", [mirror]) == FRESH
    assert location.status("b", [vector]) == STALE, "it is in error, and serves the first row"
    assert materialized(location, location.job(REPORT)) == {}


def test_when_dagster_is_told_the_rows_are_served_and_no_claim_is_left(locate, monkeypatch):
    location = locate(indexes=[Mirror()])
    seen, told = [], reporting.log_event

    def watched(context, event, batch):
        if isinstance(event, dg.AssetMaterialization):
            states = {job.state for job in location.table.jobs()}
            counts = [
                location.table.query(f"SELECT count() FROM {location.table.view(index)}")
                for index in location.source.indexes
            ]
            seen.append((states, counts))
        return told(context, event, batch)

    monkeypatch.setattr(reporting, "log_event", watched)
    of_many(location)
    assert len(seen) == 3
    assert all(each == ({JobState.COMPLETED}, [[(3,)]]) for each in seen)


def test_a_dagster_that_stores_no_events_costs_no_tenant_its_rows(
    locate, monkeypatch, one_tenant_a_scan
):
    location = locate(indexes=[Mirror()])
    with monkeypatch.context() as patch:
        patch.setattr(reporting, "log_event", dying)
        of_many(location, fails=True)
    assert {job.state for job in location.table.jobs()} == {JobState.COMPLETED}
    assert {job.status.attempts for job in location.table.jobs()} == {0}
    location.table.check()
    location.job(REPORT)
    assert statuses(location) == dict.fromkeys("abc", FRESH)


def stored(location, tenant):
    """Return what Dagster stores of the tenant's latest materializations, by index."""
    found = {}
    for key in location.keys:
        wanted = dg.AssetRecordsFilter(key, asset_partitions=[tenant])
        (record,) = location.instance.fetch_materializations(wanted, limit=1).records
        found[key] = record.asset_materialization
    return found


def test_dagster_stores_the_same_of_a_tenant_whether_its_run_was_of_many_or_of_one(locate):
    many, one = locate(indexes=[Mirror()]), locate(indexes=[Mirror()])
    _, of_all = of_many(many, "ab")
    asked_of_many(one, "ab")
    alone = one.run(one.keys, "a")
    theirs, his = stored(many, "a"), stored(one, "a")
    for made_by_many, made_alone in zip(theirs.values(), his.values(), strict=True):
        assert facts(many, of_all, made_by_many) == facts(one, alone, made_alone)


def facts(location, run, made):
    """Return a materialization's fields, without what names its location or run, or measures."""
    source, tags = get_source_asset_key(location.source), dict(made.tags)
    pointer = tags.pop(get_input_event_pointer_tag(source))
    version = tags.pop(get_input_data_version_tag(source))
    found = location.instance.event_log_storage.get_latest_tags_by_partition(
        source,
        get_version_event_type(location.source),
        [DATA_VERSION_TAG],
        [made.partition],
        before_cursor=int(pointer) + 1,
    )
    points_to = found[made.partition][DATA_VERSION_TAG]
    # Dagster keeps a digest of the partitions' versions, less those that are only observed.
    digests = {sha256(each.encode()).hexdigest() for each in ("", points_to)}
    return {
        "key": made.asset_key.path[-1],
        "partition": made.partition,
        "description": made.description,
        "tags": tags | {CODE_VERSION_TAG: tags[CODE_VERSION_TAG] == run.run_id},
        "built from": points_to if version in digests else version,
        "points to": points_to,
        # A tenant's share of Arrow's bitmaps, which hold a bit a row, is rounded.
        "metadata": {
            name: type(value) if name == "bytes" else shown(value)
            for name, value in made.metadata.items()
        },
    }


def shown(value):
    """Return a value of the metadata; only its type if it measures, or names what is made anew."""
    if isinstance(value, dg.IntMetadataValue):
        return value.value
    if isinstance(value, dg.TextMetadataValue) and not value.text.isdigit():
        return value.text.split(".")[-1]
    return type(value)


def test_by_hand_what_another_run_is_writing_is_left_out_and_named(locate):
    location = locate()
    _, _ = of_many(location)
    location.table.insert(2, tenant="b")
    log = location.table.deployment.log
    iteration = location.table.iteration("b")
    log.claim_jobs(iteration, "another run", {})
    for tenant in "ac":
        location.table.insert(2, tenant=tenant)
    failed = location.run(location.keys, None, range_tags("a", "c"), fails=True)
    said = message_of(failed).splitlines()
    assert [line.split(":")[0].split("/")[1] for line in said] == [
        f"{index.name}, tenant 'b'" for index in TWO
    ]
    assert_names(said[0], "run another run")
    assert materialized(location, failed) == {"a": 2, "c": 2}
    behind = [job for job in location.table.jobs() if job.key.tenant != "b"]
    assert {job.watermark.version for job in behind} == {location.table.version}
    # Once that run has ended, executing this one again does the rest.
    log.cancel(iteration.jobs)
    location.run(location.keys, None, range_tags("a", "c"))
    location.table.check()
    # Of one tenant, the jobs that no run has are done.
    location.table.insert(3, tenant="a")
    held = [job.key for job in location.table.jobs() if job.key.tenant == "a"][:1]
    whole = location.table.iteration("a")
    log.claim_jobs(type(whole)(**vars(whole) | {"jobs": tuple(held)}), "another run", {})
    failed = location.run(location.keys, "a", fails=True)
    assert held[0].job_name in message_of(failed)
    assert materialized(location, failed) == {"a": 1}


def test_a_job_that_another_run_takes_meanwhile_stops_no_other(locate, monkeypatch):
    location = locate(indexes=[Mirror()])
    of_many(location)
    for tenant in "abc":
        location.table.insert(2, tenant=tenant)
    log = location.table.deployment.log
    taken = location.table.iteration("b")
    flush = joining.DueIteration.flush

    def taking(due, joblog):
        flush(due, joblog)
        monkeypatch.undo()
        start = {job.key: job.watermark for job in location.table.jobs()}[taken.jobs[0]]
        log.claim_jobs(type(taken)(**vars(taken) | {"from_": start}), "another run", {})

    monkeypatch.setattr(joining.DueIteration, "flush", taking)
    failed = location.run(location.keys, None, range_tags("a", "c"), fails=True)
    assert_names(message_of(failed), "tenant 'b'", "run another run")
    assert materialized(location, failed) == {"a": 1, "c": 1}


def test_a_run_executed_again_has_no_more_tenants_than_it_had(locate):
    location = locate()
    request, first = of_many(location, "ab")
    location.table.sql("INSERT INTO {t} VALUES ('c', 3, 'x', array(1, 2, 3))")
    for tenant in "ab":
        location.table.insert(5, tenant=tenant)
    for later in location.tick().run_requests:
        location.run(
            later.asset_selection,
            later.partition_key,
            later.tags,
            job_name=later.job_name,
            fails=later.partition_key == "c",
        )
    before = {job.key: job for job in location.table.jobs() if job.key.tenant == "c"}
    assert JobState.ERROR in {job.state for job in before.values()}
    copied = {name: request.tags[name] for name in request.tags if name.startswith("iscp/")}
    for tags in (again_tags(first, request), copied):
        location.table.insert(len(tags) + 10, tenant="a")
        done = location.run(None, None, tags, job_name=request.job_name)
        assert materialized(location, done) == {"a": 2}
    assert {job.key: job for job in location.table.jobs() if job.key.tenant == "c"} == before


def test_a_run_whose_tenants_nobody_knows_any_more_is_not_executed_again(locate):
    location = locate(indexes=[Mirror()])
    (request,) = asked_of_many(location, "ab")
    log = location.table.deployment.log
    log.cancel([job.key for job in location.table.jobs()])
    location.follow()
    again = dict(request.tags) | {"dagster/parent_run_id": "gone", "dagster/root_run_id": "gone"}
    failed = location.run(None, None, again, job_name=tenants_name(location), fails=True)
    assert request.tags["iscp/dispatch"] in message_of(failed)
    assert "for all tenants" in message_of(failed)
