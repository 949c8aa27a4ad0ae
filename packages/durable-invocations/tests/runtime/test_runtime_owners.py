"""Which runtimes are dead, by the observer's own clock."""

import pytest

from durable_invocations.runtime.owners import LivenessWatch


@pytest.fixture
def watch():
    return LivenessWatch(owner="me", silent=10)


def looks(watch, beats, *times):
    """What the last of several looks finds dead."""
    return [watch.find_dead(beats, at) for at in times][-1]


def test_a_runtime_whose_beat_stands_still_is_dead_after_a_while(watch):
    beats = {"me": 1, "other": 5}
    assert looks(watch, beats, 100.0, 102.0, 104.0, 106.0, 108.0, 109.75) == ()
    assert watch.find_dead(beats, 110.0) == (("other", 5),)


def test_a_beat_that_moves_begins_the_wait_again(watch):
    assert looks(watch, {"other": 5}, *range(10)) == ()
    assert looks(watch, {"other": 6}, *range(10, 20)) == ()
    assert looks(watch, {"other": 6}, 20) == (("other", 6),)


def test_a_time_in_which_nobody_could_look_makes_nobody_dead(watch):
    beats = {"other": 5, "third": 9}
    looks(watch, beats, 0.0, 2.0)
    # The database was away: no beat could move, and the others need a moment.
    assert looks(watch, beats, 600.0, 602.0) == ()
    beats = beats | {"other": 6}
    assert looks(watch, beats, 604.0, 606.0) == (("third", 9),)


def test_a_beat_that_was_set_back_counts_as_one_that_moved(watch):
    looks(watch, {"other": 5}, *range(10))
    assert watch.find_dead({"other": 1}, 10.0) == ()


def test_who_is_forgotten_and_comes_back_is_seen_anew(watch):
    looks(watch, {"other": 5}, *range(5))
    assert watch.find_dead({}, 5.0) == ()
    assert looks(watch, {"other": 5}, *range(6, 12)) == ()


def test_the_observer_is_never_dead(watch):
    assert looks(watch, {"me": 1}, *range(100)) == ()
