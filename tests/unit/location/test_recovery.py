"""A look frees what dead runs leave behind, and leaves live runs of any Dagster alone."""

from dataclasses import replace

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.joblog.renewal import renew_lease
from iscp_dagster.location.names import TABLE_TAG
from iscp_dagster.location.run_context import renew_run_lease
from iscp_dagster.location.sensor.recovery import LocationRuns, Recovery
from iscp_dagster.model.errors import FenceError, RunGoneError, SourceError, UnavailableError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.runs.known_runs import DISPATCH_TAG, ensure_instance_name
from support.jobs.log_rows import key, log_in_memory, over
from support.jobs.one_table import Clock, in_memory

SOURCE = SourceTable("d.t", key="id", indexes=[Mirror()])
STATUS = DagsterRunStatus


class TwoInstances:
    """Two Dagster instances on one log, with a clock that a test moves."""

    def __init__(self):
        self.now = 1_000.0
        self.log = log_in_memory(lease_clock=lambda: self.now)
        self.deployment = replace(in_memory(Clock()), log=self.log)
        self.here, self.there = DagsterInstance.ephemeral(), DagsterInstance.ephemeral()
        self.instances = [
            (
                each,
                Recovery(
                    self.deployment, LocationRuns.from_sources([SOURCE]), monotonic=lambda: self.now
                ),
            )
            for each in (self.here, self.there)
        ]

    def look(self):
        for instance, recovery in self.instances:
            recovery.look(instance)

    def pass_(self, seconds, *kept_runs):
        """Let time pass, with looks, and with renewals by live runs."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1
            self.log.renew_leases(kept_runs, self.log.leases.run)
            if self.now % 10 == 0:
                self.look()

    def run(self, run_id, status, *, where=None, job_name="sync_d_t", tags=None, **more):
        run = DagsterRun(job_name=job_name, run_id=run_id, status=status, tags=tags or {}, **more)
        (where or self.here).add_run(run)
        return run

    def put(self, job, run, *, begun, queued=True):
        consumer = ConsumerInfo(type="mirror", db="d", table="t", job=job)
        spec = JobSpec(detail=IterationDetail(consumer=consumer))
        assert self.log.register("a", JobID(db="d", table="t", job=job), "t", spec)
        due = self.due(job)
        if queued:
            self.log.enqueue(due, run)
        return self.log.begin(due, run, {}) if begun else ()

    @staticmethod
    def due(job):
        return over(key(job, "a", "t"))

    def states(self):
        return {job.key.job_name: job.state.label for job in self.log.list_jobs()}

    def code(self, job):
        status = self.log.find_job(self.due(job).jobs[0]).status
        return status.code, status.attempts


@pytest.fixture
def world():
    world = TwoInstances()
    yield world
    world.here.dispose()
    world.there.dispose()


def test_no_dagster_frees_what_runs_or_waits_in_another_one(world):
    for name, where in (("here", world.here), ("there", world.there)):
        world.run(f"run {name}", STATUS.STARTED, where=where)
        world.put(f"runs {name}", f"run {name}", begun=True)
        world.run(
            f"queued {name}", STATUS.NOT_STARTED, where=where, tags={DISPATCH_TAG: f"to {name}"}
        )
        world.put(f"waits {name}", f"to {name}", begun=False)
    world.pass_(600, "run here", "run there")
    assert world.states() == {
        "runs here": "running",
        "runs there": "running",
        "waits here": "pending",
        "waits there": "pending",
    }
    assert world.here.get_run_by_id("run here").status is STATUS.STARTED


def test_what_a_killed_dagster_held_another_one_frees_within_its_leases(world):
    world.run("run", STATUS.STARTED, where=world.there)
    world.put("runs", "run", begun=True)
    world.run("queued", STATUS.NOT_STARTED, where=world.there, tags={DISPATCH_TAG: "ticket"})
    world.put("waits", "ticket", begun=False)
    world.pass_(60, "run")
    assert world.states() == {"runs": "running", "waits": "pending"}
    del world.instances[1:]
    world.pass_(world.log.leases.run + 11)
    assert world.states() == {"runs": "completed", "waits": "pending"}
    assert world.code("runs") == (RunGoneError.code, 1)
    world.pass_(world.log.leases.queued - world.log.leases.run)
    assert world.states() == {"runs": "completed", "waits": "completed"}
    assert world.code("waits") == (0, 0)


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        (STATUS.STARTING, STATUS.FAILURE),
        (STATUS.STARTED, STATUS.FAILURE),
        (STATUS.CANCELING, STATUS.CANCELED),
    ],
)
def test_a_run_with_nobody_behind_it_ends_and_gives_its_slot_back(world, status, ended):
    """It was killed before or after its process first reported itself alive."""
    world.run("never heard of", status)
    world.run("fell silent", status)
    world.run("lives", status)
    world.log.renew_leases(["fell silent"], world.log.leases.run)
    world.pass_(world.log.leases.run + 11, "lives")
    found = {run.run_id: run.status for run in world.here.get_runs()}
    assert found == {"never heard of": status, "fell silent": ended, "lives": status}
    world.pass_(world.log.leases.unseen, "lives")
    found = {run.run_id: run.status for run in world.here.get_runs()}
    assert found == {"never heard of": ended, "fell silent": ended, "lives": status}


def test_runs_of_other_jobs_and_runs_that_wait_are_left_alone(world):
    ours, theirs = AssetKey(["d", "t_mirror"]), AssetKey(["theirs"])
    runs = {
        "of ours": {"asset_selection": frozenset({ours})},
        "of both": {"asset_selection": frozenset({ours, theirs})},
        "of theirs": {"asset_selection": frozenset({theirs})},
        "of nobody": {},
    }
    for name, more in runs.items():
        world.run(name, STATUS.STARTED, job_name="__ASSET_JOB", **more)
    world.run("collects", STATUS.STARTED, job_name="iscp_collect_garbage")
    world.run("waits", STATUS.NOT_STARTED)
    world.pass_(600)
    left = {run.run_id for run in world.here.get_runs() if not run.is_finished}
    assert left == {"of both", "of theirs", "of nobody", "waits"}


def test_a_dispatch_whose_run_ended_is_planned_again_and_a_failure_is_counted(world):
    for status in (STATUS.FAILURE, STATUS.CANCELED, STATUS.SUCCESS):
        world.run(status.value, status, tags={DISPATCH_TAG: f"to {status.value}"})
        world.put(status.value, f"to {status.value}", begun=False)
    world.look()
    assert set(world.states().values()) == {"completed"}
    assert world.code("FAILURE") == (RunGoneError.code, 1)
    assert world.code("CANCELED") == world.code("SUCCESS") == (0, 0)


def test_an_upgrade_that_renames_dagster_jobs_leaves_no_run_and_no_job_behind(world):
    """The runs were queued, or had begun, under names that the location no longer has."""
    tags = {TABLE_TAG: SOURCE.name, DISPATCH_TAG: "to a job that is gone"}
    world.run("queued", STATUS.FAILURE, job_name="sync_tenants_d_t", tags=tags)
    world.put("waits", "to a job that is gone", begun=False)
    tags = {TABLE_TAG: SOURCE.name, DISPATCH_TAG: "to a run that was killed"}
    world.run("killed", STATUS.STARTED, job_name="sync_tenants_d_t", tags=tags)
    world.put("runs", "killed", begun=True)
    world.run("theirs", STATUS.STARTED, job_name="sync_tenants_d_u", tags={TABLE_TAG: "d.u"})
    world.look()
    assert world.code("waits") == (RunGoneError.code, 1)
    world.pass_(600)
    assert world.states() == {"waits": "completed", "runs": "completed"}
    left = {run.run_id for run in world.here.get_runs() if not run.is_finished}
    assert left == {"theirs"}


def test_a_log_that_was_away_lets_those_who_live_say_so_first(world):
    world.run("run", STATUS.STARTED)
    world.put("runs", "run", begun=True)
    world.pass_(60, "run")

    class Away:
        def __getattr__(self, name):
            raise UnavailableError("the log does not answer")

    instance, recovery = world.instances[0]
    recovery.deployment = replace(world.deployment, log=Away())
    with pytest.raises(UnavailableError):
        recovery.look(instance)
    world.now += 600
    recovery.deployment = world.deployment
    recovery.look(instance)
    assert world.states() == {"runs": "running"}
    del world.instances[1:]
    world.pass_(600, "run")
    assert world.states() == {"runs": "running"}
    assert world.here.get_run_by_id("run").status is STATUS.STARTED


def test_a_look_that_knows_little_yet_frees_what_its_dagster_knows_to_have_ended(world):
    """So a start frees jobs whose runs another process has reported to Dagster as ended."""
    for name, status in (("ended", STATUS.FAILURE), ("unsure", STATUS.STARTED)):
        world.run(name, status)
        world.put(name, name, begun=True)
    world.now += world.log.leases.run / 2
    world.look()
    assert world.states() == {"ended": "running", "unsure": "running"}, "it may still work"
    del world.instances[1:]
    instance, _ = world.instances.pop()
    ours = LocationRuns.from_sources([SOURCE])
    world.now += world.log.leases.run / 2 + 1
    Recovery(world.deployment, ours, monotonic=lambda: world.now).look(instance)
    assert world.states() == {"ended": "completed", "unsure": "running"}


def test_a_run_keeps_its_lease_while_it_works_whatever_the_log_does(world):
    beats = []

    class Failing:
        leases = world.log.leases

        def renew_leases(self, names, seconds):
            beats.append((tuple(names), seconds))
            raise UnavailableError("away")

    with renew_lease(Failing(), "run"):
        while not beats:
            pass
    assert beats[0] == (("run",), world.log.leases.run)


@pytest.mark.parametrize(
    ("error", "code", "state"),
    [
        (UnavailableError("no Spark"), UnavailableError.code, "completed"),
        (SourceError("no table"), SourceError.code, "error"),
        (RuntimeError("what?"), RunGoneError.code, "completed"),
    ],
)
def test_an_error_before_the_claim_is_told_and_counted(world, error, code, state):
    world.put("waits", "ticket", begun=False)
    world.put("waits for another", "ticket 2", begun=False)
    run = DagsterRun(job_name="j", run_id="run", tags={DISPATCH_TAG: "ticket"})
    with pytest.raises(type(error)), renew_run_lease(world.deployment, run):
        raise error
    assert world.states() == {"waits": state, "waits for another": "pending"}
    assert world.code("waits") == (code, 1)
    with pytest.raises(FenceError):
        world.log.begin(world.due("waits for another"), "run", {}, queued_as="ticket")


def test_a_dagster_is_told_from_others_by_its_storage(world):
    assert ensure_instance_name(world.here) == ensure_instance_name(world.here)
    assert ensure_instance_name(world.here) != ensure_instance_name(world.there)
