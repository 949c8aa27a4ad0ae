"""A look frees the jobs of dead runs, and leaves live runs of any Dagster alone."""

from dataclasses import replace

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus

from iscp_dagster import Mirror, SourceTable
from iscp_dagster.joblog.renewal import renew_lease
from iscp_dagster.location.names import TABLE_TAG
from iscp_dagster.location.run_context import hold_run_lease
from iscp_dagster.location.sensor.recovery import LocationRuns, Recovery
from iscp_dagster.model.errors import FenceError, RunGoneError, SourceError, UnavailableError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.runs.run_names import DISPATCH_TAG, ensure_instance_name
from support.jobs.log_rows import key, log_in_memory, make_plain_spec, over
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
        self.recoveries = [(self.here, self.make_recovery()), (self.there, self.make_recovery())]

    def make_recovery(self):
        ours = LocationRuns.from_sources([SOURCE])
        return Recovery(self.deployment, ours, monotonic=lambda: self.now)

    def look(self):
        for instance, recovery in self.recoveries:
            recovery.clean_up_runs(instance)

    def pass_(self, seconds, *kept_runs):
        """Let time pass, with looks, and with renewals by live runs."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1
            self.log.renew_leases(kept_runs, self.log.leases.run)
            if self.now % 10 == 0:
                self.look()

    def add_run(self, run_id, status, *, instance=None, job_name="sync_d_t", tags=None, **more):
        run = DagsterRun(job_name=job_name, run_id=run_id, status=status, tags=tags or {}, **more)
        (instance or self.here).add_run(run)

    def queue_job(self, job, run):
        name = JobID(db="d", table="t", job=job)
        assert self.log.register("a", name, "t", make_plain_spec(name))
        self.log.enqueue(make_iteration(job), run)

    def begin_job(self, job, run):
        self.queue_job(job, run)
        self.log.claim_jobs(make_iteration(job), run, {})

    def states(self):
        return {job.key.job_name: job.state.label for job in self.log.list_jobs()}

    def failure(self, job):
        """Return the code of the job's status and the number of its attempts."""
        status = self.log.find_job(make_iteration(job).jobs[0]).status
        return status.code, status.attempts

    def statuses(self):
        return {run.run_id: run.status for run in self.here.get_runs()}

    def unfinished_runs(self):
        return {run.run_id for run in self.here.get_runs() if not run.is_finished}


def make_iteration(job):
    return over(key(job, "a", "t"))


@pytest.fixture
def world():
    world = TwoInstances()
    yield world
    world.here.dispose()
    world.there.dispose()


def test_jobs_that_run_or_wait_in_another_dagster_are_freed_within_its_leases_once_it_is_killed(
    world,
):
    for name, instance in (("here", world.here), ("there", world.there)):
        world.add_run(f"run {name}", STATUS.STARTED, instance=instance)
        world.begin_job(f"runs {name}", f"run {name}")
        tags = {DISPATCH_TAG: f"to {name}"}
        world.add_run(f"queued {name}", STATUS.NOT_STARTED, instance=instance, tags=tags)
        world.queue_job(f"waits {name}", f"to {name}")
    world.pass_(600, "run here", "run there")
    states = {"runs here": "running", "runs there": "running"}
    states |= {"waits here": "pending", "waits there": "pending"}
    assert world.states() == states
    del world.recoveries[1:]
    world.pass_(world.log.leases.run + 11, "run here")
    states["runs there"] = "completed"
    assert world.states() == states
    assert world.failure("runs there") == (RunGoneError.code, 1)
    world.pass_(world.log.leases.queued - world.log.leases.run, "run here")
    states["waits there"] = "completed"
    assert world.states() == states
    assert world.failure("waits there") == (0, 0)
    assert world.here.get_run_by_id("run here").status is STATUS.STARTED


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        (STATUS.STARTING, STATUS.FAILURE),
        (STATUS.STARTED, STATUS.FAILURE),
        (STATUS.CANCELING, STATUS.CANCELED),
    ],
)
def test_a_run_without_a_process_ends_and_frees_its_slot(world, status, ended):
    """It was killed before or after its process first reported itself alive."""
    for run in ("never heard of", "fell silent", "lives"):
        world.add_run(run, status)
    world.log.renew_leases(["fell silent"], world.log.leases.run)
    world.pass_(world.log.leases.run + 11, "lives")
    assert world.statuses() == {"never heard of": status, "fell silent": ended, "lives": status}
    world.pass_(world.log.leases.unseen, "lives")
    assert world.statuses() == {"never heard of": ended, "fell silent": ended, "lives": status}


def test_runs_of_other_jobs_and_runs_that_wait_are_left_alone(world):
    ours, theirs = AssetKey(["d", "t_mirror"]), AssetKey(["theirs"])
    selections = {"of ours": {ours}, "of both": {ours, theirs}, "of theirs": {theirs}}
    for name, keys in (selections | {"of nobody": None}).items():
        selection = None if keys is None else frozenset(keys)
        world.add_run(name, STATUS.STARTED, job_name="__ASSET_JOB", asset_selection=selection)
    world.add_run("collects", STATUS.STARTED, job_name="iscp_collect_garbage")
    world.add_run("waits", STATUS.NOT_STARTED)
    world.pass_(600)
    assert world.unfinished_runs() == {"of both", "of theirs", "of nobody", "waits"}


def test_a_dispatch_whose_run_ended_is_planned_again_and_a_failure_is_counted(world):
    for status in (STATUS.FAILURE, STATUS.CANCELED, STATUS.SUCCESS):
        world.add_run(status.value, status, tags={DISPATCH_TAG: f"to {status.value}"})
        world.queue_job(status.value, f"to {status.value}")
    world.look()
    assert set(world.states().values()) == {"completed"}
    assert world.failure("FAILURE") == (RunGoneError.code, 1)
    assert world.failure("CANCELED") == world.failure("SUCCESS") == (0, 0)


def test_an_upgrade_that_renames_dagster_jobs_leaves_no_run_and_no_job_behind(world):
    """The runs were queued, or had begun, under names that the location no longer has."""
    name, tags = "sync_tenants_d_t", {TABLE_TAG: SOURCE.name}
    missed, killed = "to a job that is gone", "to a run that was killed"
    world.add_run("queued", STATUS.FAILURE, job_name=name, tags=tags | {DISPATCH_TAG: missed})
    world.queue_job("waits", missed)
    world.add_run("killed", STATUS.STARTED, job_name=name, tags=tags | {DISPATCH_TAG: killed})
    world.begin_job("runs", "killed")
    world.add_run("theirs", STATUS.STARTED, job_name="sync_tenants_d_u", tags={TABLE_TAG: "d.u"})
    world.look()
    assert world.failure("waits") == (RunGoneError.code, 1)
    world.pass_(600)
    assert world.states() == {"waits": "completed", "runs": "completed"}
    assert world.unfinished_runs() == {"theirs"}


class Away:
    """An ISCP log whose database does not answer."""

    def __getattr__(self, name):
        raise UnavailableError("the log does not answer")


def test_after_an_outage_of_the_log_live_runs_may_renew_their_leases_first(world):
    world.add_run("run", STATUS.STARTED)
    world.begin_job("runs", "run")
    world.pass_(60, "run")
    instance, recovery = world.recoveries[0]
    recovery.deployment = replace(world.deployment, log=Away())
    with pytest.raises(UnavailableError):
        recovery.clean_up_runs(instance)
    world.now += 600
    recovery.deployment = world.deployment
    recovery.clean_up_runs(instance)
    assert world.states() == {"runs": "running"}
    del world.recoveries[1:]
    world.pass_(600, "run")
    assert world.states() == {"runs": "running"}
    assert world.here.get_run_by_id("run").status is STATUS.STARTED


def test_a_first_look_frees_only_jobs_whose_runs_ended_in_its_dagster(world):
    """So a start frees jobs whose runs another process has reported to Dagster as ended."""
    for name, status in (("ended", STATUS.FAILURE), ("unsure", STATUS.STARTED)):
        world.add_run(name, status)
        world.begin_job(name, name)
    world.now += world.log.leases.run / 2
    world.look()
    assert world.states() == {"ended": "running", "unsure": "running"}, "it may still work"
    del world.recoveries[1:]
    instance, _ = world.recoveries.pop()
    world.now += world.log.leases.run / 2 + 1
    world.make_recovery().clean_up_runs(instance)
    assert world.states() == {"ended": "completed", "unsure": "running"}


def test_a_run_keeps_renewing_its_lease_though_the_log_fails(world):
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
def test_an_error_before_the_claim_is_recorded_and_counted(world, error, code, state):
    world.queue_job("waits", "ticket")
    world.queue_job("waits for another", "ticket 2")
    run = DagsterRun(job_name="j", run_id="run", tags={DISPATCH_TAG: "ticket"})
    with pytest.raises(type(error)), hold_run_lease(world.deployment, run):
        raise error
    assert world.states() == {"waits": state, "waits for another": "pending"}
    assert world.failure("waits") == (code, 1)
    with pytest.raises(FenceError):
        world.log.claim_jobs(make_iteration("waits for another"), "run", {}, queued_as="ticket")


def test_each_dagster_s_storage_gives_it_a_name(world):
    assert ensure_instance_name(world.here) == ensure_instance_name(world.here)
    assert ensure_instance_name(world.here) != ensure_instance_name(world.there)
