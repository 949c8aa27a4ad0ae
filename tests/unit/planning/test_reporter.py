"""Reports of the runner's looks, over real Delta logs and an ISCP log in memory."""

import shutil
from dataclasses import replace

import pytest
from deltalake import DeltaTable

from iscp_dagster import SourceTable
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.planning.look import SensorCursor
from iscp_dagster.planning.reporter import Reporter
from iscp_dagster.planning.runner import Runner
from support.jobs.log_rows import carry_out, complete
from support.jobs.one_table import commit


class Looking:
    """A runner and its reporter, each with its own cursor."""

    def __init__(self, deployment, *sources):
        self.runner = Runner(deployment, sources)
        self.cursor = self.told = None

    def look(self):
        found = self.runner.look(self.cursor)
        self.cursor = found.cursor
        return found

    def report(self):
        found = Reporter(self.runner).report(self.told)
        self.told = found.cursor
        return found


def versions(report):
    return [dict(each.versions) for each in report.news]


def test_nothing_is_told_before_the_runner_has_looked(deployment, source):
    commit(source, "eu")
    looking = Looking(deployment, source)
    assert (looking.report().news, looking.told) == ([], str(SensorCursor()))
    looking.look()
    assert versions(looking.report()) == [{"eu": 0}]
    assert looking.report().news == []


def test_all_that_several_looks_saw_is_told_at_once(deployment, source):
    looking = Looking(deployment, source)
    commit(source, "eu", "us", "za")
    carry_out(deployment, looking.look())
    looking.report()
    commit(source, "eu")
    looking.look()
    commit(source, "us", "eu")
    looking.look()
    assert versions(looking.report()) == [{"eu": 2, "us": 2}]


def test_who_was_brought_in_step_before_it_was_told_is_no_news(deployment, source):
    looking = Looking(deployment, source)
    commit(source, "eu", "us")
    carry_out(deployment, looking.look())
    assert versions(looking.report()) == [{}]


def test_optimize_is_news_of_no_tenant(deployment, source):
    looking = Looking(deployment, source)
    for _ in range(2):
        commit(source, "eu")
    carry_out(deployment, looking.look())
    looking.report()
    DeltaTable(source.path).optimize.compact()
    looking.look()
    assert versions(looking.report()) == [{}]


def test_a_tenant_that_no_database_can_store_is_no_news(deployment, source):
    looking = Looking(deployment, source)
    commit(source, "eu", "a\0b")
    looking.look()
    assert versions(looking.report()) == [{"eu": 0}]


@pytest.mark.slow
def test_a_commit_that_touches_many_tenants_is_told_of_in_several_reports(deployment, source):
    tenants = [f"t{number:04}" for number in range(2_500)]
    commit(source, *tenants)
    looking = Looking(deployment, source)
    look = looking.look()
    assert look.present == {"shop.orders": tuple(tenants)}
    told = [looking.report()]
    commit(source, "t0003", "t2499")
    while told[-1].news:
        assert sum(len(each.tenants) for each in told[-1].news) <= 1_000
        # Another process can go on from here with the same knowledge.
        looking.runner = Runner(deployment, [source])
        looking.look()
        told.append(looking.report())
        assert len(looking.told) < 200
    flat = [
        (version, tenant)
        for report in told
        for each in report.news
        for tenant, version in each.versions.items()
    ]
    assert flat == [(0, tenant) for tenant in tenants] + [(1, "t0003"), (1, "t2499")]


@pytest.mark.slow
def test_what_is_left_to_tell_of_a_dropped_table_is_forgotten(deployment, source):
    commit(source, *(f"t{number:04}" for number in range(1_200)))
    looking = Looking(deployment, source)
    looking.look()
    looking.report()
    shutil.rmtree(source.path)
    commit(source, "eu")
    looking.look()
    report = looking.report()
    assert "eu" in {tenant for each in report.news for tenant in each.tenants}
    assert {version for each in report.news for version in each.versions.values()} == {0}


@pytest.mark.slow
def test_news_of_one_table_do_not_keep_back_those_of_another(deployment, source, tmp_path):
    other = replace(source, name="shop.refunds", path=str(tmp_path / "refunds"))
    commit(source, *(f"t{number:04}" for number in range(1_500)))
    commit(other, "eu")
    looking = Looking(deployment, source, other)
    looking.look()
    assert [(each.source.name, len(each.tenants)) for each in looking.report().news] == [
        ("shop.orders", 500),
        ("shop.refunds", 1),
    ]


def test_what_a_person_brought_in_step_before_is_no_news(deployment, source):
    commit(source, "eu", "us")
    looking = Looking(deployment, source)
    carry_out(deployment, looking.look())
    looking.report()
    commit(source, "eu", "us")
    log = deployment.make_delta_log(source)
    jobs = [job for job in deployment.log.list_jobs() if job.key.tenant == "eu"]
    for claim in deployment.log.begin(
        Iteration.from_jobs(jobs, log.get_latest_moment()), "by hand", {}
    ):
        complete(deployment.log, claim, claim.range.to, {})
    looking.look()
    assert versions(looking.report()) == [{"us": 1}]


def test_news_name_the_version_that_changed_the_tenant_last(deployment, source):
    commit(source, "eu", "us")
    looking = Looking(deployment, source)
    carry_out(deployment, looking.look())
    looking.report()
    for tenants in (("eu",), ("us", "eu"), ("us",)):
        commit(source, *tenants)
    looking.look()
    assert versions(looking.report()) == [{"eu": 2, "us": 3}]


def test_of_a_table_that_another_runner_looks_at_nothing_is_told(source, clock, deployment):
    commit(source, "eu", "us")
    first = Runner(deployment, [source], owner="other")
    first.look(None)
    looking = Looking(deployment, source)
    looking.look()
    assert looking.report().news == []


def test_a_problem_and_its_end_are_told_once_each(deployment, source):
    looking = Looking(deployment, source)
    looking.look()
    reports = [looking.report(), looking.report()]
    commit(source, "eu")
    looking.look()
    reports += [looking.report(), looking.report()]
    assert [set(each.new_problem_tables) for each in reports] == [
        {source.name},
        set(),
        set(),
        set(),
    ]
    assert [set(each.settled) for each in reports] == [set(), set(), {source.name}, set()]
    assert [bool(each.list_problems(source.name)) for each in reports] == [True, True, False, False]


def test_a_table_that_cannot_be_read_meanwhile_stops_its_own_news_alone(
    deployment, source, tmp_path
):
    other = SourceTable("shop.other", key="id", tenant="region", path=str(tmp_path / "other"))
    for table in (source, other):
        commit(table, "eu")
    looking = Looking(deployment, source, other)
    looking.look()
    shutil.rmtree(source.path)
    assert [each.source.name for each in looking.report().news] == ["shop.other"]
