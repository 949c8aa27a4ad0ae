"""How a tick of the runner's sensor waits for something to do; only its pauses move the clock."""

from types import SimpleNamespace

import pytest

from iscp_dagster.location.sensor.preview import take_trial_look
from iscp_dagster.location.sensor.runner import COMMITS_SECONDS, EVENTS_SECONDS, Lookout
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.declared import make_job_spec
from iscp_dagster.planning.runner import Runner
from iscp_dagster.runs.shutdown import ENDING_VARIABLE
from support.jobs.log_rows import carry_out
from support.jobs.one_table import Clock, commit, in_memory, orders

TICK = 19.4


class Instance:
    """The part of a DagsterInstance that a look uses."""

    def __init__(self, threads=True):
        self.threads = threads
        self.off = False

    def get_settings(self, key):
        assert key == "sensors"
        return {"use_threads": self.threads}

    def all_instigator_state(self):
        name = SimpleNamespace(location_name="here")
        return [
            SimpleNamespace(instigator_name="iscp_runner", is_running=True, selector=name),
            SimpleNamespace(instigator_name="iscp_runner", is_running=not self.off, selector=name),
            SimpleNamespace(
                instigator_name="iscp_runner",
                is_running=False,
                selector=SimpleNamespace(location_name="elsewhere"),
            ),
            SimpleNamespace(instigator_name="other", is_running=False, selector=name),
        ]


class Ticking:
    def __init__(self, folder, monkeypatch):
        monkeypatch.setattr("iscp_dagster.location.sensor.recovery.Recovery.look", lambda *_: None)
        monkeypatch.setattr(
            "iscp_dagster.location.sensor.runner.ensure_instance_name", lambda _: "me"
        )
        self.clock, self.instance = Clock(), Instance()
        self.source, self.deployment = orders(folder), in_memory(self.clock)
        self.lookout = Lookout(
            [self.source], 10, pause=self.clock.sleep, monotonic=self.clock.monotonic
        )
        self.cursor = None

    def context(self):
        return SimpleNamespace(
            instance=self.instance,
            cursor=self.cursor,
            sensor_name="iscp_runner",
            code_location_origin=SimpleNamespace(location_name="here"),
            resources=SimpleNamespace(
                iscp=SimpleNamespace(create_deployment=lambda: self.deployment)
            ),
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

    def after(self, seconds, what):
        """Call `what` once the tick has waited for `seconds`."""
        self.clock.meanwhile += [lambda: None] * (round(seconds / COMMITS_SECONDS) - 1) + [what]


@pytest.fixture
def ticking(tmp_path, monkeypatch):
    found = Ticking(tmp_path, monkeypatch)
    commit(found.source, "eu")
    looks, seconds = found.tick()
    assert (len(looks[0].dispatches), seconds) == (1, 0)
    found.tick()
    return found


def test_a_tick_that_finds_nothing_waits_and_looks_again_now_and_then(ticking):
    looks, seconds = ticking.tick()
    assert seconds == pytest.approx(TICK, abs=2 * COMMITS_SECONDS)
    assert len(looks) == 2
    assert all(look.quiet for look in looks)


def test_a_commit_ends_the_waiting_at_once(ticking):
    ticking.after(3, lambda: commit(ticking.source, "us"))
    looks, seconds = ticking.tick()
    assert seconds == pytest.approx(3, abs=2 * COMMITS_SECONDS)
    assert [len(look.dispatches) for look in looks] == [0, 1]
    (found,) = looks[-1].dispatches
    assert found.iteration.tenants == {"us"}


def test_what_happens_to_a_job_is_looked_at_soon(ticking):
    ticking.after(3, ticking.pause_job)
    looks, seconds = ticking.tick()
    assert seconds == pytest.approx(TICK, abs=2 * COMMITS_SECONDS), "there is nothing to do"
    assert len(looks) == 3


def test_a_table_that_goes_is_told_of_at_once(ticking, tmp_path):
    ticking.after(3, lambda: (tmp_path / "orders").rename(tmp_path / "gone"))
    looks, seconds = ticking.tick()
    assert seconds == pytest.approx(3, abs=2 * COMMITS_SECONDS)
    assert looks[-1].new_problem_tables == {ticking.source.name}
    looks, seconds = ticking.tick()
    assert seconds == pytest.approx(TICK, abs=2 * COMMITS_SECONDS), "it was reported before"


def test_no_tick_waits_where_others_would_wait_with_it(ticking):
    ticking.instance.threads = False
    looks, seconds = ticking.tick()
    assert (len(looks), seconds) == (1, 0)


def test_a_sensor_that_is_switched_off_meanwhile_queues_nothing(ticking):
    def off():
        ticking.instance.off = True
        commit(ticking.source, "us")

    ticking.after(3, off)
    looks, seconds = ticking.tick()
    assert (len(looks), looks[0].dispatches) == (1, [])
    assert seconds == pytest.approx(3, abs=2 * COMMITS_SECONDS)


def test_a_newer_tick_ends_the_one_before(ticking):
    other = ticking.lookout.take_looks(ticking.context())
    ticking.after(3, lambda: next(other))
    ticking.after(2, lambda: commit(ticking.source, "us"))
    looks, seconds = ticking.tick()
    assert seconds == pytest.approx(3, abs=2 * COMMITS_SECONDS)
    assert len(looks) == 1


def test_a_code_server_that_ends_waits_for_no_tick(ticking, tmp_path, monkeypatch):
    sign = tmp_path / "ending"
    monkeypatch.setenv(ENDING_VARIABLE, str(sign))
    ticking.after(3, sign.touch)
    looks, seconds = ticking.tick()
    assert (len(looks), seconds) == (1, pytest.approx(3, abs=2 * COMMITS_SECONDS))


def test_a_code_server_that_ends_queues_nothing_more(ticking, tmp_path, monkeypatch):
    """The daemon ends without starting what is queued then."""
    sign = tmp_path / "ending"
    monkeypatch.setenv(ENDING_VARIABLE, str(sign))
    sign.touch()
    commit(ticking.source, "us")
    before = ticking.deployment.log.list_active_runs()
    looks, _ = ticking.tick()
    assert [each.dispatches for each in looks] == [[]]
    assert ticking.deployment.log.list_active_runs() == before
    sign.unlink()
    looks, _ = ticking.tick()
    assert [len(each.dispatches) for each in looks] == [1]


def test_a_slow_look_is_followed_by_a_rest(ticking, monkeypatch):
    """Even when thousands of jobs change each second, looks leave the machine to the runs."""
    runner = ticking.lookout._recovery_and_runner[1]
    look = runner.look

    def slow(cursor):
        ticking.clock.pass_(1.0)
        return look(cursor)

    monkeypatch.setattr(runner, "look", slow)
    monkeypatch.setattr(runner, "has_new_event", lambda: True)
    looks, _ = ticking.tick()
    assert len(looks) == pytest.approx(TICK / (1 + 5), abs=1)


def test_the_log_is_asked_now_and_then_only(ticking, monkeypatch):
    asked = []
    runner = ticking.lookout._recovery_and_runner[1]
    monkeypatch.setattr(runner, "has_new_event", lambda: bool(asked.append(1)))
    ticking.tick()
    assert len(asked) == pytest.approx(TICK / EVENTS_SECONDS, rel=0.2)


def test_a_table_in_an_object_store_is_asked_as_often_as_it_is_scanned(ticking, monkeypatch):
    delta_log = ticking.lookout._recovery_and_runner[1].watches[ticking.source.name].delta_log
    polled = []
    poll = delta_log.poll
    monkeypatch.setattr(type(delta_log.files), "local", False)
    monkeypatch.setattr(delta_log, "is_latest", lambda _: pytest.fail("that is a request"))
    monkeypatch.setattr(delta_log, "poll", lambda known: (polled.append(known), poll(known))[1])
    ticking.clock.pass_(10)
    ticking.after(3, ticking.pause_job)
    looks, _ = ticking.tick()
    assert (len(looks), len(polled)) == (3, 2)


def test_a_trial_finds_what_a_look_would_and_leaves_the_log_as_it_was(tmp_path):
    source, deployment = orders(tmp_path), in_memory(Clock())
    log, mirror = deployment.log, JobID(db="shop", table="orders", job="mirror")
    commit(source, "eu", "us", "gone")
    carry_out(deployment, Runner(deployment, [source]).look(None))
    log.unregister("gone", mirror)
    log.pause("us", mirror)
    log.register_standing(mirror, make_job_spec(source, source.get_index("mirror")))
    commit(source, "eu", "us", "gone", "new")
    before = log.list_jobs(include_dropped=True), log.read_history(), log.list_standing()
    tried = take_trial_look(deployment, [source], None)
    assert (log.list_jobs(include_dropped=True), log.read_history(), log.list_standing()) == before
    found = Runner(deployment, [source]).look(None)
    assert [each.iteration for each in tried.dispatches] == [
        each.iteration for each in found.dispatches
    ]
    assert {each.key for each in log.list_jobs(state=JobState.PENDING)} == {
        key for each in tried.dispatches for key in each.iteration.jobs
    }
