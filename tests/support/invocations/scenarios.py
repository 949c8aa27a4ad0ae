"""What callers of the test services may see, with any runtime and any SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from support.peers.fault_plans import FailedError

SEEN_SECONDS = 60.0


class Caller(Protocol):
    """Calls a handler, by a driver of the protocol or by a runtime's HTTP."""

    async def call(
        self,
        service: str,
        handler: str,
        argument: Any = None,
        *,
        key: str = "",
        headers: dict[str, str] | None = None,
    ) -> Any: ...

    async def send(
        self, service: str, handler: str, argument: Any = None, *, key: str = ""
    ) -> None: ...


Scenario = Callable[[Caller, Path], Awaitable[None]]


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds."""

    async def again() -> None:
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    await asyncio.wait_for(again(), SEEN_SECONDS)


async def greets(caller: Caller, _: Path) -> None:
    assert await caller.call("Steps", "greet", "you") == "hello you"


async def runs_steps(caller: Caller, file: Path) -> None:
    told = {"file": str(file), "count": 3}
    assert await caller.call("Steps", "runs", told) == ["run 0", "run 1", "run 2"]
    runs = [line for line in lines(file) if line.startswith("run")]
    assert runs == ["run 0", "run 1", "run 2"]


async def sleeps(caller: Caller, _: Path) -> None:
    assert await caller.call("Steps", "nap", 0.05) == "rested"


async def calls_in_turn(caller: Caller, _: Path) -> None:
    assert await caller.call("Steps", "chain", ["a", "b"]) == ["hello a", "hello b"]


async def calls_at_once(caller: Caller, _: Path) -> None:
    names = [f"n{number}" for number in range(5)]
    assert await caller.call("Steps", "many", names) == [f"hello {name}" for name in names]


async def sends_later(caller: Caller, _: Path) -> None:
    told = {"key": "later", "seconds": 0.1}
    assert await caller.call("Steps", "later", told) == "sent"

    async def both_came() -> bool:
        return await caller.call("Counter", "total", key="later") == 12

    await until(both_came)


async def awakeable_resolved(caller: Caller, _: Path) -> None:
    assert await caller.call("Steps", "waits", "resolve") == {"got": 42}


async def awakeable_rejected(caller: Caller, _: Path) -> None:
    with pytest.raises(FailedError, match="refused") as failed:
        await caller.call("Steps", "waits", "reject")
    assert failed.value.code == 418


async def fails_for_good(caller: Caller, _: Path) -> None:
    with pytest.raises(FailedError, match="no such order") as failed:
        await caller.call("Steps", "fails", {"code": 404, "message": "no such order"})
    assert failed.value.code == 404


async def hears_of_a_failure(caller: Caller, _: Path) -> None:
    told = {"code": 409, "message": "taken"}
    assert await caller.call("Steps", "calls_failing", told) == "409 taken"


async def tries_again(caller: Caller, file: Path) -> None:
    assert await caller.call("Steps", "flaky", {"file": str(file), "times": 2}) == 2
    assert lines(file).count("first") == 1


async def run_tried_again(caller: Caller, file: Path) -> None:
    told = {"file": str(file), "times": 2, "most": 5}
    assert await caller.call("Steps", "tries", told) == "done"
    assert lines(file) == ["try"] * 3


async def run_given_up(caller: Caller, file: Path) -> None:
    with pytest.raises(FailedError, match="not yet") as failed:
        await caller.call("Steps", "tries", {"file": str(file), "times": 9, "most": 2})
    assert failed.value.code == 500
    assert lines(file) == ["try"] * 2


async def run_refused(caller: Caller, file: Path) -> None:
    with pytest.raises(FailedError, match="refused") as failed:
        await caller.call("Steps", "refuses", {"file": str(file)})
    assert (failed.value.code, lines(file)) == (422, ["refused"])


async def keeps_state(caller: Caller, _: Path) -> None:
    one = "state"
    assert await caller.call("Counter", "total", key=one) is None
    assert await caller.call("Counter", "add", 3, key=one) == 3
    assert await caller.call("Counter", "add", 4, key=one) == 7
    assert await caller.call("Counter", "total", key="another") is None
    assert await caller.call("Counter", "keys", key=one) == ["last 3", "last 4", "total"]
    assert await caller.call("Counter", "forget", "last 3", key=one) is None
    assert await caller.call("Counter", "keys", key=one) == ["last 4", "total"]
    assert await caller.call("Counter", "forget_all", key=one) == [None, []]
    assert await caller.call("Counter", "total", key=one) is None


async def reads_what_is_too_much_to_be_sent_at_once(caller: Caller, _: Path) -> None:
    sizes = {"small": 10, "large": 60_000, "larger": 70_000}
    await caller.call("Counter", "hold", sizes, key="much")
    names = [*sizes, "none"]
    assert await caller.call("Counter", "held", names, key="much") == [10, 60_000, 70_000, None]
    assert await caller.call("Counter", "keys", key="much") == ["large", "larger", "small"]


async def passes_headers_on(caller: Caller, _: Path) -> None:
    got = await caller.call("Steps", "headed", "", headers={"x-told": "me"})
    assert got == {"x-told": "me"}


async def takes_turns(caller: Caller, _: Path) -> None:
    told = [{"item": number, "seconds": 0.02} for number in range(4)]
    every = [caller.call("Counter", "slowly", each, key="turns") for each in told]
    got = await asyncio.gather(*every)
    assert sorted(map(len, got)) == [1, 2, 3, 4]
    longest = max(got, key=len)
    assert all(each == longest[: len(each)] for each in got)


async def promise_kept(caller: Caller, _: Path) -> None:
    begun = asyncio.create_task(caller.call("Signup", "run", "ann", key="ann"))
    assert await caller.call("Signup", "look", key="ann") is None
    await caller.call("Signup", "confirm", "a@b.c", key="ann")
    assert await begun == "ann at a@b.c"
    assert await caller.call("Signup", "look", key="ann") == "a@b.c"
    with pytest.raises(FailedError):
        await caller.call("Signup", "confirm", "again", key="ann")


async def promise_broken(caller: Caller, _: Path) -> None:
    begun = asyncio.create_task(caller.call("Signup", "run", "bob", key="bob"))
    await caller.call("Signup", "refuse", "no mail", key="bob")
    with pytest.raises(FailedError, match="no mail") as failed:
        await begun
    assert failed.value.code == 410


SCENARIOS: tuple[Scenario, ...] = (
    greets,
    runs_steps,
    sleeps,
    calls_in_turn,
    calls_at_once,
    sends_later,
    awakeable_resolved,
    awakeable_rejected,
    fails_for_good,
    hears_of_a_failure,
    tries_again,
    run_tried_again,
    run_given_up,
    run_refused,
    keeps_state,
    reads_what_is_too_much_to_be_sent_at_once,
    passes_headers_on,
    takes_turns,
    promise_kept,
    promise_broken,
)
