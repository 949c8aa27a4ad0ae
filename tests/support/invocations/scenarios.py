"""Scenes that any caller of the test services may see, with any runtime and any SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.errors import raises_naming
from support.invocations.project_runtime import HttpCaller
from support.peers.fault_plans import FailedError
from support.peers.protocol_peer import Peer

SEEN_SECONDS = 60.0


Caller = Peer | HttpCaller
"""Calls a handler, by a driver of the protocol or by a runtime's HTTP."""
Scenario = Callable[[Caller, Path], Awaitable[None]]
NAMES = [f"n{number}" for number in range(5)]


def read_lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition holds."""

    async def wait() -> None:
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    await asyncio.wait_for(wait(), SEEN_SECONDS)


def returns(handler: str, argument: Any, result: Any) -> Scenario:
    """Return a scene of one call of a handler of `Steps`."""

    async def scenario(caller: Caller, _: Path) -> None:
        assert await caller.call("Steps", handler, argument) == result

    return scenario


def fails(handler: str, code: int, message: str, argument: Any) -> Scenario:
    """Return a scene of one call of a handler of `Steps` that ends with this failure."""

    async def scenario(caller: Caller, _: Path) -> None:
        with raises_naming(FailedError, code, message):
            await caller.call("Steps", handler, argument)

    return scenario


async def runs_steps(caller: Caller, file: Path) -> None:
    argument = {"file": str(file), "count": 3}
    assert await caller.call("Steps", "runs", argument) == ["run 0", "run 1", "run 2"]
    runs = [line for line in read_lines(file) if line.startswith("run")]
    assert runs == ["run 0", "run 1", "run 2"]


async def sends_later(caller: Caller, _: Path) -> None:
    argument = {"key": "later", "seconds": 0.1}
    assert await caller.call("Steps", "later", argument) == "sent"

    async def both_came() -> bool:
        return await caller.call("Counter", "total", key="later") == 12

    await until(both_came)


async def retries_an_attempt(caller: Caller, file: Path) -> None:
    assert await caller.call("Steps", "flaky", {"file": str(file), "times": 2}) == 2
    assert read_lines(file).count("first") == 1


async def retries_a_run(caller: Caller, file: Path) -> None:
    argument = {"file": str(file), "times": 2, "most": 5}
    assert await caller.call("Steps", "tries", argument) == "done"
    assert read_lines(file) == ["try"] * 3


async def gives_a_run_up(caller: Caller, file: Path) -> None:
    argument = {"file": str(file), "times": 9, "most": 2}
    await fails("tries", 500, "not yet", argument)(caller, file)
    assert read_lines(file) == ["try"] * 2


async def fails_in_a_run(caller: Caller, file: Path) -> None:
    await fails("refuses", 422, "refused", {"file": str(file)})(caller, file)
    assert read_lines(file) == ["refused"]


async def keeps_state(caller: Caller, _: Path) -> None:
    key = "state"
    assert await caller.call("Counter", "total", key=key) is None
    assert await caller.call("Counter", "add", 3, key=key) == 3
    assert await caller.call("Counter", "add", 4, key=key) == 7
    assert await caller.call("Counter", "total", key="another") is None
    assert await caller.call("Counter", "keys", key=key) == ["last 3", "last 4", "total"]
    assert await caller.call("Counter", "forget", "last 3", key=key) is None
    assert await caller.call("Counter", "keys", key=key) == ["last 4", "total"]
    assert await caller.call("Counter", "forget_all", key=key) == [None, []]
    assert await caller.call("Counter", "total", key=key) is None


async def reads_state_too_large_to_be_sent_at_once(caller: Caller, _: Path) -> None:
    sizes = {"small": 10, "large": 60_000, "larger": 70_000}
    await caller.call("Counter", "hold", sizes, key="much")
    names = [*sizes, "none"]
    assert await caller.call("Counter", "held", names, key="much") == [10, 60_000, 70_000, None]
    assert await caller.call("Counter", "keys", key="much") == ["large", "larger", "small"]


async def passes_headers_on(caller: Caller, _: Path) -> None:
    headers = {"x-told": "me"}
    assert await caller.call("Steps", "headed", "", headers=headers) == headers


async def takes_turns(caller: Caller, _: Path) -> None:
    items = [{"item": number, "seconds": 0.02} for number in range(4)]
    calls = [caller.call("Counter", "slowly", item, key="turns") for item in items]
    results = sorted(await asyncio.gather(*calls), key=len)
    assert [len(result) for result in results] == [1, 2, 3, 4]
    assert all(result == results[-1][: len(result)] for result in results)


async def keeps_a_promise(caller: Caller, _: Path) -> None:
    signup = asyncio.create_task(caller.call("Signup", "run", "ann", key="ann"))
    assert await caller.call("Signup", "look", key="ann") is None
    await caller.call("Signup", "confirm", "a@b.c", key="ann")
    assert await signup == "ann at a@b.c"
    assert await caller.call("Signup", "look", key="ann") == "a@b.c"
    with pytest.raises(FailedError):
        await caller.call("Signup", "confirm", "again", key="ann")


async def breaks_a_promise(caller: Caller, _: Path) -> None:
    signup = asyncio.create_task(caller.call("Signup", "run", "bob", key="bob"))
    await caller.call("Signup", "refuse", "no mail", key="bob")
    with raises_naming(FailedError, 410, "no mail"):
        await signup


SCENARIOS: tuple[Scenario, ...] = (
    returns("greet", "you", "hello you"),
    returns("nap", 0.05, "rested"),
    returns("chain", ["a", "b"], ["hello a", "hello b"]),
    returns("many", NAMES, [f"hello {name}" for name in NAMES]),
    returns("waits", "resolve", {"got": 42}),
    returns("calls_failing", {"code": 409, "message": "taken"}, "409 taken"),
    fails("waits", 418, "refused", "reject"),
    fails("fails", 404, "no such order", {"code": 404, "message": "no such order"}),
    *(runs_steps, sends_later, retries_an_attempt, retries_a_run, gives_a_run_up, fails_in_a_run),
    *(keeps_state, reads_state_too_large_to_be_sent_at_once, passes_headers_on, takes_turns),
    *(keeps_a_promise, breaks_a_promise),
)


async def play_all(caller: Caller, folder: Path) -> None:
    """Play every scene, one after the other."""
    for number, scenario in enumerate(SCENARIOS):
        await scenario(caller, folder / f"effects {number}")
