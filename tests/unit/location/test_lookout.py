"""A tick of the runner's sensor waits for something to do; only its pauses move the clock."""

from types import SimpleNamespace

import pytest

from iscp_dagster.location.sensor.preview import take_trial_look
from iscp_dagster.location.sensor.runner import COMMITS_SECONDS, HISTORY_SECONDS, Lookout
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.job_specs import make_job_spec
from iscp_dagster.planning.runner import Runner
from iscp_dagster.runs.shutdown import ENDING_VARIABLE
from support.jobs.log_rows import carry_out
from support.jobs.one_table import Clock, commit, in_memory, orders

TICK = 19.4


def about(seconds):
    """Return the seconds that a tick may take, to within two of its pauses."""
    return pytest.approx(seconds, abs=2 * COMMITS_SECONDS)


class Instance:
    """The part of a DagsterInstance that a look uses."""

    threads = True
    off = False

    def get_settings(self, key):
        assert key == "sensors"
        return {"use_threads": self.threads}

    def all_instigator_state(self):
        runners = [("here", True), ("here", not self.off), ("elsewhere", False)]
        states = [*(("iscp_runner", *each) for each in runners), ("other", "here", False)]
        for name, location, is_running in states:
            selector = SimpleNamespace(location_name=location)
            yield SimpleNamespace(instigator_name=name, is_running=is_running, selector=selector)


class Ticking:
    def __init__(self, folder, monkeypatch):
        sensor = "iscp_dagster.location.sensor"
        monkeypatch.setattr(f"{sensor}.recovery.Recovery.clean_up_runs", lambda *_: None)
        monkeypatch.setattr(f"{sensor}.runner.ensure_instance_name", lambda _: "me")
        self.clock, self.instance = Clock(), Instance()
        self.source, self.deployment = orders(folder), in_memory(self.clock)
        time = {"pause": self.clock.sleep, "monotonic": self.clock.monotonic}
        self.lookout = Lookout([self.source], 10, **time)
        self.cursor = None

    def context(self):
        iscp = SimpleNamespace(create_deployment=lambda: self.deployment)
        return SimpleNamespace(
            instance=self.instance,
            cursor=self.cursor,
            sensor_name="iscp_runner",
            code_location_origin=SimpleNamespace(location_name="here"),
            resources=SimpleNamespace(iscp=iscp),
        )

    def tick(self):
        """Run one tick; return its looks and the seconds that it took."""
        began = self.clock.monotonic()
        looks = list(self.lookout.take_looks(self.context()))
        self.cursor = looks[-1].cursor
        return looks, self.clock.monotonic() - began

    def pause_job(self):
        job = self.deployment.log.list_jobs()[0]
        assert self.deployment.log.pause(job.key.tenant, job.name)

    def after(self, seconds, call):
        """Call this once the tick has waited for `seconds`."""
        self.clock.meanwhile += [lambda: None] * (round(seconds / COMMITS_SECONDS) - 1) + [call]


@pytest.fixture
def ticking(tmp_path, monkeypatch):
    ticking = Ticking(tmp_path, monkeypatch)
    commit(ticking.source, "eu")
    looks, seconds = ticking.tick()
    assert (len(looks[0].dispatches), seconds) == (1, 0)
    ticking.tick()
    return ticking


def test_a_tick_that_finds_nothing_waits_for_changes_of_jobs_and_a_commit(ticking):
    looks, seconds = ticking.tick()
    assert (len(looks), seconds) == (2, about(TICK))
    assert all(look.quiet for look in looks)
    ticking.after(3, ticking.pause_job)
    looks, seconds = ticking.tick()
    assert (len(looks), seconds) == (3, about(TICK)), "there is nothing to do"
    ticking.after(3, lambda: commit(ticking.source, "us"))
    looks, seconds = ticking.tick()
    assert seconds == about(3), "a commit ends the waiting at once"
    assert [len(look.dispatches) for look in looks] == [0, 1]
    (dispatch,) = looks[-1].dispatches
    assert dispatch.iteration.tenants == {"us"}


def test_a_missing_table_is_reported_at_once(ticking, tmp_path):
    ticking.after(3, lambda: (tmp_path / "orders").rename(tmp_path / "gone"))
    looks, seconds = ticking.tick()
    assert seconds == about(3)
    assert looks[-1].new_problem_tables == {ticking.source.name}
    looks, seconds = ticking.tick()
    assert seconds == about(TICK), "it was reported before"


def test_a_tick_that_would_hold_up_other_sensors_does_not_wait(ticking):
    ticking.instance.threads = False
    looks, seconds = ticking.tick()
    assert (len(looks), seconds) == (1, 0)


def test_a_sensor_that_is_switched_off_meanwhile_queues_nothing(ticking):
    def switch_off():
        ticking.instance.off = True
        commit(ticking.source, "us")

    ticking.after(3, switch_off)
    looks, seconds = ticking.tick()
    assert (len(looks), looks[0].dispatches) == (1, [])
    assert seconds == about(3)


def test_a_newer_tick_ends_the_one_before(ticking):
    other = ticking.lookout.take_looks(ticking.context())
    ticking.after(3, lambda: next(other))
    ticking.after(2, lambda: commit(ticking.source, "us"))
    looks, seconds = ticking.tick()
    assert seconds == about(3)
    assert len(looks) == 1


def test_a_code_server_that_ends_waits_for_no_tick_and_queues_nothing_more(
    ticking, tmp_path, monkeypatch
):
    """The daemon ends without starting what is queued then."""
    ending = tmp_path / "ending"
    monkeypatch.setenv(ENDING_VARIABLE, str(ending))
    ticking.after(3, ending.touch)
    looks, seconds = ticking.tick()
    assert (len(looks), seconds) == (1, about(3))
    commit(ticking.source, "us")
    before = ticking.deployment.log.list_active_runs()
    looks, _ = ticking.tick()
    assert [look.dispatches for look in looks] == [[]]
    assert ticking.deployment.log.list_active_runs() == before
    ending.unlink()
    looks, _ = ticking.tick()
    assert [len(look.dispatches) for look in looks] == [1]


def test_a_slow_look_is_followed_by_a_rest(ticking, monkeypatch):
    """Even when thousands of jobs change each second, looks leave the machine to the runs."""
    runner = ticking.lookout._recovery_and_runner[1]
    look = runner.look

    def slow(cursor):
        ticking.clock.pass_(1.0)
        return look(cursor)

    monkeypatch.setattr(runner, "look", slow)
    monkeypatch.setattr(runner, "has_new_history", lambda: True)
    looks, _ = ticking.tick()
    assert len(looks) == pytest.approx(TICK / (1 + 5), abs=1)


def test_the_log_is_read_twice_a_second_at_most(ticking, monkeypatch):
    reads = []
    runner = ticking.lookout._recovery_and_runner[1]
    monkeypatch.setattr(runner, "has_new_history", lambda: bool(reads.append(1)))
    ticking.tick()
    assert len(reads) == pytest.approx(TICK / HISTORY_SECONDS, rel=0.2)


def test_a_table_in_an_object_store_is_polled_only_by_each_scan(ticking, monkeypatch):
    delta_log = ticking.lookout._recovery_and_runner[1].watches[ticking.source.name].delta_log
    polls = []
    poll = delta_log.poll
    monkeypatch.setattr(type(delta_log.files), "local", False)
    monkeypatch.setattr(delta_log, "is_latest", lambda _: pytest.fail("that is a request"))
    monkeypatch.setattr(delta_log, "poll", lambda known: (polls.append(known), poll(known))[1])
    ticking.clock.pass_(10)
    ticking.after(3, ticking.pause_job)
    looks, _ = ticking.tick()
    assert (len(looks), len(polls)) == (3, 2)


def test_a_trial_finds_what_a_look_finds_and_leaves_the_log_unchanged(tmp_path):
    source, deployment = orders(tmp_path), in_memory(Clock())
    log, mirror = deployment.log, JobID(db="shop", table="orders", job="mirror")
    commit(source, "eu", "us", "gone")
    carry_out(deployment, Runner(deployment, [source]).look(None))
    log.unregister("gone", mirror)
    log.pause("us", mirror)
    log.register_standing(mirror, make_job_spec(source, source.get_index("mirror")))
    commit(source, "eu", "us", "gone", "new")
    before = log.list_jobs(include_dropped=True), log.read_history(), log.list_standing()
    trial = take_trial_look(deployment, [source], None)
    assert (log.list_jobs(include_dropped=True), log.read_history(), log.list_standing()) == before
    look = Runner(deployment, [source]).look(None)
    iterations = [dispatch.iteration for dispatch in trial.dispatches]
    assert iterations == [dispatch.iteration for dispatch in look.dispatches]
    pending = {job.key for job in log.list_jobs(state=JobState.PENDING)}
    assert pending == {key for iteration in iterations for key in iteration.jobs}
