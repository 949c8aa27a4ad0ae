"""Who waits for the end of an invocation."""

import asyncio

import pytest

from durable_invocations.protocol.results import Value
from durable_invocations.runtime import waiting as module
from durable_invocations.runtime.waiting import ResultFutures

ONE, TWO = Value(value=b"1"), Value(value=b"2")


async def test_everyone_who_waits_for_an_invocation_is_told():
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


async def test_who_gives_up_is_forgotten():
    waiting = ResultFutures()
    with pytest.raises(asyncio.TimeoutError), waiting.open_future("a") as future:
        await asyncio.wait_for(future, 0)
    waiting.set_results({"a": ONE})
    assert waiting.list_watched() == []


async def test_more_than_one_look_asks_for_are_asked_for_in_turn(monkeypatch):
    monkeypatch.setattr(module, "MOST_WATCHED", 2)

    waiting = ResultFutures()
    with waiting.open_future("a"), waiting.open_future("b"), waiting.open_future("c"):
        assert [waiting.list_watched() for _ in range(3)] == [["a", "b"], ["c", "a"], ["b", "c"]]


async def test_who_asks_right_after_the_end_is_told_unless_it_is_long_ago_or_large(monkeypatch):
    monkeypatch.setattr(module, "MOST_RECENT", 2)

    waiting = ResultFutures()
    waiting.set_results({"a": ONE, "b": ONE, "c": TWO, "d": Value(value=b"x" * 100_000)})
    found = []
    for id_ in "abcd":
        with waiting.open_future(id_) as future:
            found.append(future.result() if future.done() else None)
    assert found == [None, ONE, TWO, None]
