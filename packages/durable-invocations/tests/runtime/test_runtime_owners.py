"""A runtime takes others for dead by its own clock."""

import pytest

from durable_invocations.runtime.owners import LivenessWatch


@pytest.fixture
def watch():
    return LivenessWatch(owner="me", silent=10)


def find_dead(watch, beats, *times):
    """The dead runtimes at the last of these times."""
    return [watch.find_dead(beats, at) for at in times][-1]


def test_a_runtime_without_beats_is_dead_after_a_while(watch):
    beats = {"me": 1, "other": 5}
    assert find_dead(watch, beats, 100.0, 102.0, 104.0, 106.0, 108.0, 109.75) == ()
    assert watch.find_dead(beats, 110.0) == (("other", 5),)


def test_another_beat_begins_the_wait_again(watch):
    assert find_dead(watch, {"other": 5}, *range(10)) == ()
    assert find_dead(watch, {"other": 6}, *range(10, 20)) == ()
    assert find_dead(watch, {"other": 6}, 20) == (("other", 6),)


def test_a_time_without_observation_makes_no_runtime_dead(watch):
    beats = {"other": 5, "third": 9}
    find_dead(watch, beats, 0.0, 2.0)
    # The database was away: no beat could move, and the others need a moment.
    assert find_dead(watch, beats, 600.0, 602.0) == ()
    beats = beats | {"other": 6}
    assert find_dead(watch, beats, 604.0, 606.0) == (("third", 9),)


def test_a_smaller_number_counts_as_another_beat(watch):
    find_dead(watch, {"other": 5}, *range(10))
    assert watch.find_dead({"other": 1}, 10.0) == ()


def test_a_runtime_that_comes_back_is_observed_anew(watch):
    find_dead(watch, {"other": 5}, *range(5))
    assert watch.find_dead({}, 5.0) == ()
    assert find_dead(watch, {"other": 5}, *range(6, 12)) == ()


def test_the_observer_is_never_dead(watch):
    assert find_dead(watch, {"me": 1}, *range(100)) == ()
