"""Reports of the runner's looks, over real Delta logs and an ISCP log in memory."""

import json
import shutil
from dataclasses import replace

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.moment import Moment
from iscp_dagster.planning import reporter
from iscp_dagster.planning.look import SensorCursor
from iscp_dagster.planning.news import PendingNews, add_range, take_batches
from support.jobs.log_rows import complete
from support.jobs.one_table import commit


@pytest.fixture
def report_first(begin):
    def report_first_look(source, *tenants):
        """Return a sensor that has reported its first look, whose runs have ended."""
        sensor = begin(source, *tenants)
        # They are in step before the report.
        assert versions(sensor.report()) == [{}]
        return sensor

    return report_first_look


def versions(report):
    return [dict(each.versions) for each in report.news]


def test_the_news_of_several_looks_name_each_tenants_last_change(source, start):
    commit(source, "eu", "us", "za")
    sensor = start(source)
    # The runner has not looked yet.
    assert (sensor.report().news, sensor.report_cursor) == ([], str(SensorCursor()))
    sensor.look()
    assert versions(sensor.report()) == [{"eu": 0, "us": 0, "za": 0}]
    assert sensor.report().news == []
    for tenants in (["eu"], ["us", "eu"], ["us"]):
        commit(source, *tenants)
        sensor.look()
    assert versions(sensor.report()) == [{"eu": 2, "us": 3}]


def test_optimize_is_news_of_no_tenant_and_makes_none_due(source, report_first):
    commit(source, "eu")
    sensor = report_first(source, "eu")
    DeltaTable(source.path).optimize.compact()
    assert sensor.look().dispatches == []
    assert versions(sensor.report()) == [{}]


def test_a_commit_that_changes_many_tenants_is_reported_in_parts(source, start, monkeypatch):
    assert reporter.MOST_NEWS == 1_000, "as docs/limits.md says"
    monkeypatch.setattr(reporter, "MOST_NEWS", 100)
    tenants = [f"t{number:03}" for number in range(250)]
    commit(source, *tenants)
    sensor = start(source)
    assert sensor.look().present == {"shop.orders": tuple(tenants)}
    reports = [sensor.report()]
    commit(source, "t003", "t249")
    while reports[-1].news:
        assert sum(len(each.tenants) for each in reports[-1].news) <= 100
        # Another process can continue from here with the same knowledge.
        sensor.restart()
        sensor.look()
        reports.append(sensor.report())
        assert len(sensor.report_cursor) < 200
    reported = [
        (version, tenant)
        for report in reports
        for each in report.news
        for tenant, version in each.versions.items()
    ]
    assert reported == [(0, tenant) for tenant in tenants] + [(1, "t003"), (1, "t249")]


def test_tenants_that_share_buckets_are_reported_together(source, start, monkeypatch):
    """Their events are of buckets, of which there are few."""
    monkeypatch.setattr(reporter, "MOST_NEWS", 10)
    shared = replace(source, buckets=4)
    other = replace(source, name="shop.refunds", path=f"{source.path}-refunds")
    commit(shared, *(f"t{number:02}" for number in range(50)))
    commit(other, *(f"t{number:02}" for number in range(50)))
    sensor = start(shared, other)
    sensor.look()
    assert [len(each.tenants) for each in sensor.report().news] == [50, 6]


def test_pending_news_of_a_dropped_table_are_forgotten(source, start, monkeypatch):
    monkeypatch.setattr(reporter, "MOST_NEWS", 10)
    commit(source, *(f"t{number:02}" for number in range(12)))
    sensor = start(source)
    sensor.look()
    sensor.report()
    shutil.rmtree(source.path)
    commit(source, "eu")
    sensor.look()
    report = sensor.report()
    assert "eu" in {tenant for each in report.news for tenant in each.tenants}
    assert {version for each in report.news for version in each.versions.values()} == {0}


def test_tables_share_a_reports_room(source, start, monkeypatch):
    monkeypatch.setattr(reporter, "MOST_NEWS", 10)
    other = replace(source, name="shop.refunds", path=f"{source.path}-refunds")
    commit(source, *(f"t{number:02}" for number in range(15)))
    commit(other, "eu")
    sensor = start(source, other)
    sensor.look()
    news = sensor.report().news
    assert [each.source.name for each in news] == ["shop.orders", "shop.refunds"]
    assert [len(each.tenants) for each in news] == [5, 1]


def test_tenants_that_a_person_brought_in_step_are_no_news(deployment, source, report_first):
    sensor = report_first(source, "eu", "us")
    commit(source, "eu", "us")
    jobs = deployment.log.list_jobs(tenant="eu")
    iteration = Iteration.from_jobs(jobs, deployment.make_delta_log(source).get_latest_moment())
    for claim in deployment.log.claim_jobs(iteration, "by hand", {}):
        complete(deployment.log, claim, claim.range.to, {})
    sensor.look()
    assert versions(sensor.report()) == [{"us": 1}]


def test_a_table_that_cannot_be_read_meanwhile_stops_its_own_news_alone(source, start):
    other = replace(source, name="shop.other", path=f"{source.path}-other")
    for table in (source, other):
        commit(table, "eu")
    sensor = start(source, other)
    sensor.look()
    shutil.rmtree(source.path)
    assert [each.source.name for each in sensor.report().news] == ["shop.other"]


TENANTS = st.frozensets(st.sampled_from("abcdefgh"))
LOOKS = st.lists(st.one_of(st.none(), st.lists(TENANTS, min_size=1, max_size=3)), max_size=12)


@given(LOOKS, st.integers(1, 4))
def test_every_changed_tenant_is_reported_after_its_change_and_the_backlog_stays_small(looks, room):
    """A look brings commits or none; in the end each tenant's last change was reported."""
    commits, pending, reported = [], [], {}

    def list_changed(range_):
        first = 0 if range_.after is None else range_.after.version + 1
        return {t for tenants in commits[first : range_.upto.version + 1] for t in tenants}

    def look(new):
        nonlocal pending
        if new:
            after = Moment(len(commits) - 1) if commits else None
            commits.extend(new)
            pending = add_range(pending, after, Moment(len(commits) - 1))
        news, pending = take_batches(pending, list_changed, room)
        pending = [
            PendingNews.from_json(json.loads(json.dumps(each.to_json()))) for each in pending
        ]
        assert len(pending) <= 2
        for each in news:
            for tenant in each.tenants:
                assert reported.get(tenant, -1) < each.upto.version
                reported[tenant] = each.upto.version
        return sum(len(each.tenants) for each in news)

    for new in looks:
        assert look(new or []) <= room
    while pending:
        look([])
    last = {tenant: number for number, tenants in enumerate(commits) for tenant in tenants}
    assert reported.keys() == last.keys()
    assert all(reported[tenant] >= version for tenant, version in last.items())
