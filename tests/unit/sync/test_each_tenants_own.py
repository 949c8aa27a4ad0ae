"""What is decided for each tenant before a range is read, if files of some tenants are gone."""

from dataclasses import replace
from pathlib import Path

import pytest

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.clickhouse.tables.indexes import IndexStore
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.batch import BatchAction, Range
from iscp_dagster.planning.declared import make_job_specs, make_new_jobs
from iscp_dagster.sync.ledger import load_ledger
from iscp_dagster.sync.reading.reader import SourceReader
from support.jobs.log_rows import complete
from support.jobs.one_table import Clock, commit, in_memory

EVERYONE = frozenset(f"t{number}" for number in range(20))
EARLY = frozenset(f"t{number}" for number in range(10))
GONE = frozenset({"t3", "t4", "t17"})


class Fleet:
    """A table without a key whose index keeps dead letters; all jobs are at version 0."""

    def __init__(self, folder):
        index = Mirror(append=True, errors="dead_letter")
        path = str(folder / "events")
        self.source = SourceTable("shop.events", tenant="region", path=path, indexes=[index])
        self.deployment = in_memory(Clock())
        self.log = self.deployment.log
        self.put(*EVERYONE)
        rows = make_new_jobs(
            self.delta_log.get_table_id(), EVERYONE, make_job_specs(self.source, [index])
        )
        self.log.register_many(rows)
        iteration = self.iteration()
        for claim in self.log.begin(iteration, "first", {}):
            complete(self.log, claim, iteration.to, {})

    @property
    def delta_log(self):
        return self.deployment.make_delta_log(self.source)

    def put(self, *tenants):
        commit(self.source, *tenants)

    def lose(self, version, tenants):
        """Remove the files that the commit wrote for these tenants, as VACUUM may."""
        for _, file in self.delta_log.feed_files(version - 1, version, tenants):
            Path(self.source.path, file.path).unlink()

    def range(self, after, upto):
        log = self.delta_log
        return Range(from_=log.get_moment(after), to=log.get_moment(upto))

    def reader(self, tenants=EVERYONE):
        return SourceReader(self.deployment, self.source, tenants, self.delta_log)

    def iteration(self, tenants=EVERYONE):
        jobs = [job for job in self.log.list_jobs() if job.key.tenant in tenants]
        return Iteration.from_jobs(jobs, self.delta_log.get_latest_moment())

    def begin(self, run, tenants=EVERYONE):
        """Begin an iteration up to the last commit, as a run does."""
        iteration, reader = self.iteration(tenants), self.reader(tenants)
        layout = reader.plan_layout(iteration.range)
        layouts = reader.plan_snapshot_layouts(iteration.range, layout)
        _, recall, _ = load_ledger(reader, iteration)
        return self.log.begin(iteration, run, layout, layouts=layouts, recall=recall)

    def die(self, tenants=EVERYONE):
        """Begin an iteration in a run that then dies."""
        self.begin("dies", tenants)
        self.log.recover({"dies"})


@pytest.fixture
def fleet(tmp_path):
    return Fleet(tmp_path)


def tenants_by_action(claims):
    found = {}
    for claim in claims:
        found.setdefault(claim.step.action, set()).add(claim.key.tenant)
    return found


def test_tenants_whose_files_are_gone_are_read_together_and_the_others_as_changes(fleet):
    fleet.put(*EVERYONE)
    fleet.put("t3")
    fleet.lose(1, GONE - {"t3"})
    fleet.lose(2, {"t3"})
    plans = fleet.reader().plan_tenants(fleet.range(0, 2))
    found = {plan.kind: tenants for plan, tenants in plans.items()}
    assert found == {ReadKind.SNAPSHOT: GONE, ReadKind.TAIL: EVERYONE - GONE}
    assert len(plans) == 2


def test_an_index_is_asked_once_for_all_tenants_what_it_has_in_an_added_column(fleet, monkeypatch):
    asked = []

    def kept(_store, columns, tenants):
        asked.append((columns, tenants))
        return dict.fromkeys(GONE, "body")

    monkeypatch.setattr(IndexStore, "find_filled_columns", kept)
    commit(fleet.source, *EVERYONE, body="words")
    (job, *_) = fleet.log.list_jobs()
    reader = replace(fleet.reader(), consumers=(job.spec.detail.consumer,))
    plans = reader.plan_tenants(fleet.range(0, 1))
    assert {plan.kind: tenants for plan, tenants in plans.items()} == {
        ReadKind.SNAPSHOT: GONE,
        ReadKind.TAIL: EVERYONE - GONE,
    }
    assert asked == [(["body"], EVERYONE)]


def test_only_the_batch_of_a_tenant_whose_files_are_gone_is_set_aside(fleet):
    fleet.put(*EVERYONE)
    fleet.die()
    fleet.put(*EVERYONE)
    fleet.lose(1, GONE)
    found = tenants_by_action(fleet.begin("next"))
    assert found == {BatchAction.DEAD_LETTER: GONE, BatchAction.REPLAY: EVERYONE - GONE}


def test_a_tenant_that_is_due_for_a_snapshot_anyway_is_not_set_aside_and_the_others_are(fleet):
    fleet.put(*EVERYONE)
    fleet.die()
    fleet.put(*EVERYONE)
    fleet.lose(1, GONE)
    fleet.lose(2, {"t3"})
    found = tenants_by_action(fleet.begin("next"))
    assert found[BatchAction.DEAD_LETTER] == GONE - {"t3"}


def test_a_tenant_of_whom_only_a_snapshot_was_begun_is_not_set_aside(fleet):
    fleet.put(*EVERYONE)
    fleet.lose(1, GONE)
    fleet.die()
    fleet.put(*EVERYONE)
    # By then the files of others are gone as well.
    fleet.lose(1, {"t5"})
    found = tenants_by_action(fleet.begin("next"))
    assert found == {BatchAction.DEAD_LETTER: {"t5"}, BatchAction.REPLAY: EVERYONE - {"t5"}}


def test_batches_of_different_ranges_are_decided_each_by_its_own(fleet):
    fleet.put(*EVERYONE)
    fleet.die(EARLY)
    fleet.put(*EVERYONE)
    fleet.die(EVERYONE - EARLY)
    fleet.put(*EVERYONE)
    fleet.lose(1, {"t3", "t17"})
    fleet.lose(2, {"t5", "t16"})
    found = tenants_by_action(fleet.begin("next"))
    # The batch of t5 ended before its second commit.
    assert found[BatchAction.DEAD_LETTER] == {"t3", "t16", "t17"}
