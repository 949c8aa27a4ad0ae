"""What a deduplicator refuses, how it is bounded, and what subscribers take."""

import time
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idempotent_receiver import (
    Deduplicator,
    MemoryStore,
    NewestPositions,
    StoreFullError,
    retry_horizon,
)
from idempotent_receiver.receivers import HORIZON, WINDOW


def test_the_horizon_is_that_of_an_endpoint_that_fails_until_it_is_disabled():
    assert retry_horizon() == timedelta(days=5, hours=12, seconds=8 * 15) == HORIZON < WINDOW
    assert retry_horizon(failing_days=1) == timedelta(seconds=5 * 36_000 + 2 * 43_200 + 8 * 15)
    quick = retry_horizon(retries=[5, 60], jitter=0, longest_wait=10, failing_days=0.001, timeout=1)
    assert quick == timedelta(seconds=86.4 + 60 + 3)


@pytest.mark.parametrize("window", [timedelta(hours=24), HORIZON])
def test_a_window_within_the_horizon_is_refused(window):
    with pytest.raises(ValueError, match=f"{window}.*{HORIZON}"):
        Deduplicator(MemoryStore(), window=window)
    Deduplicator(MemoryStore(), window=window, horizon=timedelta(hours=1))


def test_a_full_memory_refuses_and_forgets_nothing():
    store = MemoryStore(most=2)
    deduplicator = Deduplicator(store)
    for event in ("a", "b"):
        with deduplicator.claim(event):
            pass
    with pytest.raises(StoreFullError, match=r"\b2\b.*most="):
        deduplicator.claim("c")
    assert deduplicator.claim("a").duplicate
    assert len(store) == 2


@pytest.mark.parametrize("lives", ["long", "shortly"])
def test_old_events_are_forgotten_as_new_ones_come(lives):
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])
    for day in range(20):
        now[0] = day * 86_400.0
        if day == 0 or lives == "shortly":
            # Each stands for a process that ends after one event.
            deduplicator = Deduplicator(store, clock=lambda: now[0])
        with deduplicator.claim(f"e{day}"):
            pass
    assert 7 <= len(store) <= 8


def test_memory_forgets_nothing_though_the_time_of_day_jumps():
    assert MemoryStore()._clock is time.monotonic


POSITIONS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 120)), max_size=20)


@given(POSITIONS, st.booleans())
def test_the_newest_position_of_a_key_wins(positions, as_text):
    newest, model = NewestPositions(), {}
    for key, position in positions:
        accepted = newest.accept(key, str(position) if as_text else position)
        assert accepted == (position > model.get(key, -1))
        model[key] = max(position, model.get(key, -1))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), max_size=12), st.data())
def test_connecting_again_at_an_older_cursor_takes_nothing_twice(steps, data):
    """Changes have growing timestamps, and some come again after each reconnection."""
    changes = [(key, at) for at, (key, _) in enumerate(steps, start=1)]
    newest, taken, start = NewestPositions(), [], 0
    while start < len(changes):
        end = data.draw(st.integers(start + 1, len(changes)))
        again = data.draw(st.integers(0, start))
        taken += [change for change in changes[again:end] if newest.accept(*change)]
        start = end
    assert taken == changes


def test_positions_are_compared_as_integers():
    newest = NewestPositions()
    assert newest.accept("a", "9")
    assert newest.accept("a", "10")
    assert not newest.accept("a", "9")


def test_a_snapshot_resets_what_is_known():
    newest = NewestPositions()
    assert newest.accept("a", 10)
    newest.reset()
    assert newest.accept("a", 7)
    assert not newest.accept("a", 7)


def test_positions_up_to_a_saved_cursor_are_forgotten():
    newest = NewestPositions()
    assert all(newest.accept(key, at) for key, at in {"a": 1, "b": 2, "c": 3}.items())
    assert newest.forget_upto("2") == 2
    assert (len(newest), newest.accept("c", 3), newest.accept("c", 4)) == (1, False, True)


@pytest.mark.parametrize("position", ["", "1.5", "-1", 1.5, None, True, "٣"])
def test_a_position_that_is_no_integer_is_refused(position):
    with pytest.raises(ValueError, match="ts_timestamp"):
        NewestPositions().accept("a", position)
