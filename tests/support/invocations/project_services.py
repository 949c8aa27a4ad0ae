"""The same services as sdk_services.py, written with this project's own names, and newer ones."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from durable_invocations import (
    Context,
    IdempotentRequest,
    RunRetry,
    Service,
    TerminalError,
    VirtualObject,
    Workflow,
    service_app,
)
from durable_invocations.serving.stream import Stream
from support.invocations.effects import count, note

steps, counter, signup = Service("Steps"), VirtualObject("Counter"), Workflow("Signup")
newer = Service("Newer")


@steps.handler
async def greet(_: Context, name: str) -> str:
    return f"hello {name}"


@steps.handler
async def headed(ctx: Context, _: Any) -> dict[str, str]:
    return {name: value for name, value in ctx.headers.items() if name == "x-told"}


@steps.handler
async def runs(ctx: Context, argument: dict[str, Any]) -> list[str]:
    done = []
    for step in range(argument["count"]):
        done.append(await ctx.run(f"step {step}", note, argument["file"], f"run {step}"))
        note(argument["file"], f"past {step}")
    return done


@steps.handler
async def nap(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "rested"


@steps.handler
async def chain(ctx: Context, names: list[str]) -> list[str]:
    return [await ctx.call("Steps", "greet", name) for name in names]


@steps.handler
async def many(ctx: Context, names: list[str]) -> list[str]:
    calls = [ctx.call("Steps", "greet", name) for name in names]
    return await ctx.gather(*calls)


@steps.handler
async def later(ctx: Context, argument: dict[str, Any]) -> str:
    ctx.send("Counter", "add", 5, key=argument["key"], delay=argument["seconds"])
    ctx.send("Counter", "add", 7, key=argument["key"])
    return "sent"


@steps.handler
async def waits(ctx: Context, way: str) -> Any:
    name, value = ctx.awakeable()
    ctx.send("Steps", "settle", {"id": name, "way": way})
    return await value


@steps.handler
async def settle(ctx: Context, argument: dict[str, Any]) -> None:
    if argument["way"] == "resolve":
        ctx.resolve_awakeable(argument["id"], {"got": 42})
    else:
        ctx.reject_awakeable(argument["id"], "refused", 418)


@steps.handler
async def fails(_: Context, argument: dict[str, Any]) -> None:
    raise TerminalError(argument["message"], argument["code"])


@steps.handler
async def calls_failing(ctx: Context, argument: dict[str, Any]) -> str:
    try:
        await ctx.call("Steps", "fails", argument)
    except TerminalError as error:
        return f"{error.status} {error}"
    return "nothing failed"


@steps.handler
async def flaky(ctx: Context, argument: dict[str, Any]) -> int:
    await ctx.run("first", note, argument["file"], "first")
    if count(argument["file"], "try") < argument["times"]:
        note(argument["file"], "try")
        raise RuntimeError("not yet")
    return count(argument["file"], "try")


@steps.handler
async def tries(ctx: Context, argument: dict[str, Any]) -> str:
    def once() -> str:
        note(argument["file"], "try")
        if count(argument["file"], "try") <= argument["times"]:
            raise RuntimeError("not yet")
        return "done"

    return await ctx.run("tries", once, retry=RunRetry(initial=0.01, attempts=argument["most"]))


@steps.handler
async def refuses(ctx: Context, argument: dict[str, Any]) -> str:
    def once() -> str:
        note(argument["file"], "refused")
        raise TerminalError("refused", 422)

    return await ctx.run("refuses", once)


@counter.handler
async def add(ctx: Context, number: int) -> int:
    total = (await ctx.state.get("total") or 0) + number
    ctx.state.set("total", total)
    ctx.state.set(f"last {number}", number)
    return total


@counter.shared
async def total(ctx: Context, _: Any) -> Any:
    return await ctx.state.get("total")


@counter.shared
async def keys(ctx: Context, _: Any) -> list[str]:
    return await ctx.state.keys()


@counter.handler
async def forget(ctx: Context, name: str) -> Any:
    ctx.state.clear(name)
    return await ctx.state.get(name)


@counter.handler
async def forget_all(ctx: Context, _: Any) -> list[Any]:
    ctx.state.clear_all()
    return [await ctx.state.get("total"), await ctx.state.keys()]


@counter.handler
async def slowly(ctx: Context, argument: dict[str, Any]) -> list[Any]:
    items = await ctx.state.get("items") or []
    await ctx.sleep(argument["seconds"])
    ctx.state.set("items", [*items, argument["item"]])
    return [*items, argument["item"]]


@counter.handler
async def hold(ctx: Context, sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        ctx.state.set(name, "x" * size)


@counter.shared
async def held(ctx: Context, names: list[str]) -> list[Any]:
    values = [await ctx.state.get(name) for name in names]
    return [None if value is None else len(value) for value in values]


@counter.handler
async def journey(ctx: Context, file: str) -> dict[str, Any]:
    first = await ctx.run("step 0", note, file, "run 0")
    note(file, "past 0")
    before = await ctx.state.get("total")
    ctx.state.set("total", 1)
    ctx.state.set("other", 2)
    known = await ctx.state.keys()
    await ctx.sleep(0.01)
    hello = await ctx.call("Steps", "greet", "you")
    name, value = ctx.awakeable()
    ctx.send("Steps", "settle", {"id": name, "way": "resolve"})
    got = await value
    second = await ctx.run("step 1", note, file, "run 1")
    note(file, "past 1")
    ctx.state.clear("other")
    after = [await ctx.state.get("total"), await ctx.state.get("other")]
    ctx.state.clear_all()
    return {
        "runs": [first, second],
        "state": [before, known, after, await ctx.state.get("total")],
        "heard": [hello, got],
    }


@signup.run
async def run(ctx: Context, name: str) -> str:
    ctx.state.set("name", name)
    return f"{name} at {await ctx.promise('mail').value()}"


@signup.shared
async def confirm(ctx: Context, mail: str) -> None:
    await ctx.promise("mail").resolve(mail)


@signup.shared
async def refuse(ctx: Context, why: str) -> None:
    await ctx.promise("mail").reject(why, 410)


@signup.shared
async def look(ctx: Context, _: Any) -> Any:
    return await ctx.promise("mail").peek()


@newer.handler
async def stuck(ctx: Context) -> Any:
    return await ctx.awakeable()[1]


@newer.handler
async def errand(ctx: Context, name: str) -> dict[str, Any]:
    """Use each entry of version 3, and the choice among several."""
    call = ctx.call("Steps", "greet", name, idempotency_key=name)
    called = await call.invocation_id()
    hello = await call
    request = IdempotentRequest(service="Steps", handler="greet", idempotency_key=name)
    attached = await ctx.gather(ctx.attach(called), ctx.attach(call), ctx.attach(request))
    ended = await ctx.output(called)
    stuck_call = ctx.call("Newer", "stuck")
    unended = await ctx.output(stuck_call, default="not yet")
    stuck_call.cancel()
    try:
        await stuck_call
    except TerminalError as error:
        canceled = error.status
    picked = await ctx.select(never=ctx.awakeable()[1], soon=ctx.sleep(0.01))
    return {
        "greetings": [hello, *attached, ended],
        "canceled": [unended, canceled],
        "picked": picked[0],
    }


@newer.handler
async def left(_: Context) -> dict[str, int]:
    """Count the streams and tasks of this attempt, and those that ended attempts left behind."""
    gc.collect()
    streams = sum(isinstance(item, Stream) for item in gc.get_objects())
    files = [task.get_coro().cr_code.co_filename for task in asyncio.all_tasks()]
    return {"streams": streams, "tasks": sum("durable_invocations" in file for file in files)}


@newer.handler
async def parallel(ctx: Context, file: str) -> list[Any]:
    """Run several things at once, beside entries that wait."""
    steps = [ctx.run(f"step {step}", note, file, f"run {step}") for step in range(3)]
    call, sleep = ctx.call("Steps", "greet", "you"), ctx.sleep(0.01)
    last = ctx.run("step 3", note, file, "run 3")
    done = await ctx.gather(*steps, call, last, sleep)
    for step in range(4):
        note(file, f"past {step}")
    return [*done, (await ctx.select(again=call, never=ctx.awakeable()[1]))[0]]


app = service_app(steps, counter, signup, newer)
