"""Requests that wait for the end of an invocation."""

import asyncio

import pytest

from durable_invocations.protocol.results import Value
from durable_invocations.runtime import waiting as module
from durable_invocations.runtime.waiting import ResultFutures

ONE, TWO = Value(value=b"1"), Value(value=b"2")


async def test_all_who_wait_for_an_invocation_get_its_result():
    waiting = ResultFutures()
    with (
        waiting.open_future("a") as one,
        waiting.open_future("a") as two,
        waiting.open_future("b") as three,
    ):
        assert sorted(waiting.list_watched()) == ["a", "b"]
        waiting.set_results({"a": ONE, "unknown": TWO})
        waiting.set_results({"a": TWO})
        assert (await one, await two, three.done()) == (ONE, ONE, False)
    assert waiting.list_watched() == []


async def test_a_request_that_stops_waiting_is_forgotten():
    waiting = ResultFutures()
    with pytest.raises(asyncio.TimeoutError), waiting.open_future("a") as future:
        await asyncio.wait_for(future, 0)
    waiting.set_results({"a": ONE})
    assert waiting.list_watched() == []


async def test_more_invocations_than_a_read_asks_for_are_watched_in_turn(monkeypatch):
    monkeypatch.setattr(module, "MOST_WATCHED", 2)

    waiting = ResultFutures()
    with waiting.open_future("a"), waiting.open_future("b"), waiting.open_future("c"):
        assert [waiting.list_watched() for _ in range(3)] == [["a", "b"], ["c", "a"], ["b", "c"]]


async def test_recent_results_are_kept_unless_they_are_large(monkeypatch):
    monkeypatch.setattr(module, "MOST_RECENT", 2)

    waiting = ResultFutures()
    waiting.set_results({"a": ONE, "b": ONE, "c": TWO, "d": Value(value=b"x" * 100_000)})
    results = []
    for id_ in "abcd":
        with waiting.open_future(id_) as future:
            results.append(future.result() if future.done() else None)
    assert results == [None, ONE, TWO, None]
