"""Which runtimes are dead, by the observer's own clock."""

from __future__ import annotations

from iscp_dagster.invocations.runtime.owners import Watch


def test_a_runtime_whose_beat_stands_still_is_dead_after_a_while():
    watch = Watch(owner="me", silent=10)
    assert watch.dead({"me": 1, "other": 5}, 100.0) == ()
    assert watch.dead({"me": 1, "other": 5}, 109.9) == ()
    assert watch.dead({"me": 1, "other": 5}, 110.0) == (("other", 5),)


def test_a_beat_that_moves_begins_the_wait_again():
    watch = Watch(owner="me", silent=10)
    watch.dead({"other": 5}, 0.0)
    assert watch.dead({"other": 6}, 9.0) == ()
    assert watch.dead({"other": 6}, 18.0) == ()
    assert watch.dead({"other": 6}, 19.0) == (("other", 6),)


def test_a_beat_that_was_set_back_counts_as_one_that_moved():
    watch = Watch(owner="me", silent=10)
    watch.dead({"other": 5}, 0.0)
    assert watch.dead({"other": 1}, 10.0) == ()


def test_who_is_forgotten_and_comes_back_is_seen_anew():
    watch = Watch(owner="me", silent=10)
    watch.dead({"other": 5}, 0.0)
    assert watch.dead({}, 5.0) == ()
    assert watch.dead({"other": 5}, 11.0) == ()


def test_the_observer_is_never_dead():
    watch = Watch(owner="me", silent=10)
    watch.dead({"me": 1}, 0.0)
    assert watch.dead({"me": 1}, 1_000.0) == ()
