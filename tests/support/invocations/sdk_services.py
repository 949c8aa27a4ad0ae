"""The services of the tests, written with restate-sdk; served by hypercorn in its own process."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import restate
from restate import Context, ObjectContext, Service, VirtualObject, Workflow, WorkflowContext
from restate.exceptions import TerminalError

from support.invocations.effects import count, note

steps, counter, signup = Service("Steps"), VirtualObject("Counter"), Workflow("Signup")


@steps.handler()
async def greet(_: Context, name: str) -> str:
    return f"hello {name}"


@steps.handler()
async def headed(ctx: Context, _: Any) -> dict[str, str]:
    return {name: value for name, value in ctx.request().headers.items() if name == "x-told"}


@steps.handler()
async def runs(ctx: Context, argument: dict[str, Any]) -> list[str]:
    done = []
    for step in range(argument["count"]):
        done.append(
            await ctx.run(f"step {step}", lambda n=step: note(argument["file"], f"run {n}"))
        )
        note(argument["file"], f"past {step}")
    return done


@steps.handler()
async def nap(ctx: Context, seconds: float) -> str:
    await ctx.sleep(timedelta(seconds=seconds))
    return "rested"


@steps.handler()
async def chain(ctx: Context, names: list[str]) -> list[str]:
    return [await ctx.service_call(greet, name) for name in names]


@steps.handler()
async def many(ctx: Context, names: list[str]) -> list[str]:
    calls = [ctx.service_call(greet, name) for name in names]
    return [await call for call in calls]


@steps.handler()
async def later(ctx: Context, argument: dict[str, Any]) -> str:
    ctx.object_send(add, argument["key"], 5, send_delay=timedelta(seconds=argument["seconds"]))
    ctx.object_send(add, argument["key"], 7)
    return "sent"


@steps.handler()
async def waits(ctx: Context, way: str) -> Any:
    name, value = ctx.awakeable()
    ctx.service_send(settle, {"id": name, "way": way})
    return await value


@steps.handler()
async def settle(ctx: Context, argument: dict[str, Any]) -> None:
    if argument["way"] == "resolve":
        ctx.resolve_awakeable(argument["id"], {"got": 42})
    else:
        ctx.reject_awakeable(argument["id"], "refused", 418)


@steps.handler()
async def fails(_: Context, argument: dict[str, Any]) -> None:
    raise TerminalError(argument["message"], argument["code"])


@steps.handler()
async def calls_failing(ctx: Context, argument: dict[str, Any]) -> str:
    try:
        await ctx.service_call(fails, argument)
    except TerminalError as error:
        return f"{error.status_code} {error.message}"
    return "nothing failed"


@steps.handler()
async def flaky(ctx: Context, argument: dict[str, Any]) -> int:
    await ctx.run("first", lambda: note(argument["file"], "first"))
    if count(argument["file"], "try") < argument["times"]:
        note(argument["file"], "try")
        raise RuntimeError("not yet")
    return count(argument["file"], "try")


@steps.handler()
async def tries(ctx: Context, argument: dict[str, Any]) -> str:
    def once() -> str:
        note(argument["file"], "try")
        if count(argument["file"], "try") <= argument["times"]:
            raise RuntimeError("not yet")
        return "done"

    return await ctx.run("tries", once, max_attempts=argument["most"])


@steps.handler()
async def refuses(ctx: Context, argument: dict[str, Any]) -> str:
    def once() -> str:
        note(argument["file"], "refused")
        raise TerminalError("refused", 422)

    return await ctx.run("refuses", once)


@counter.handler()
async def add(ctx: ObjectContext, number: int) -> int:
    total = (await ctx.get("total") or 0) + number
    ctx.set("total", total)
    ctx.set(f"last {number}", number)
    return total


@counter.handler(kind="shared")
async def total(ctx: ObjectContext, _: Any) -> Any:
    return await ctx.get("total")


@counter.handler(kind="shared")
async def keys(ctx: ObjectContext, _: Any) -> list[str]:
    return sorted(await ctx.state_keys())


@counter.handler()
async def forget(ctx: ObjectContext, name: str) -> Any:
    ctx.clear(name)
    return await ctx.get(name)


@counter.handler()
async def forget_all(ctx: ObjectContext, _: Any) -> list[Any]:
    ctx.clear_all()
    return [await ctx.get("total"), await ctx.state_keys()]


@counter.handler()
async def slowly(ctx: ObjectContext, argument: dict[str, Any]) -> list[str]:
    items = await ctx.get("items") or []
    await ctx.sleep(timedelta(seconds=argument["seconds"]))
    ctx.set("items", [*items, argument["item"]])
    return [*items, argument["item"]]


@counter.handler()
async def hold(ctx: ObjectContext, sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        ctx.set(name, "x" * size)


@counter.handler(kind="shared")
async def held(ctx: ObjectContext, names: list[str]) -> list[Any]:
    values = [await ctx.get(name) for name in names]
    return [None if value is None else len(value) for value in values]


@counter.handler()
async def journey(ctx: ObjectContext, file: str) -> dict[str, Any]:
    first = await ctx.run("step 0", lambda: note(file, "run 0"))
    note(file, "past 0")
    before = await ctx.get("total")
    ctx.set("total", 1)
    ctx.set("other", 2)
    known = sorted(await ctx.state_keys())
    await ctx.sleep(timedelta(seconds=0.01))
    hello = await ctx.service_call(greet, "you")
    name, value = ctx.awakeable()
    ctx.service_send(settle, {"id": name, "way": "resolve"})
    got = await value
    second = await ctx.run("step 1", lambda: note(file, "run 1"))
    note(file, "past 1")
    ctx.clear("other")
    after = [await ctx.get("total"), await ctx.get("other")]
    ctx.clear_all()
    return {
        "runs": [first, second],
        "state": [before, known, after, await ctx.get("total")],
        "heard": [hello, got],
    }


@signup.main()
async def run(ctx: WorkflowContext, name: str) -> str:
    ctx.set("name", name)
    mail = await ctx.promise("mail").value()
    return f"{name} at {mail}"


@signup.handler()
async def confirm(ctx: WorkflowContext, mail: str) -> None:
    await ctx.promise("mail").resolve(mail)


@signup.handler()
async def refuse(ctx: WorkflowContext, why: str) -> None:
    await ctx.promise("mail").reject(why, 410)


@signup.handler()
async def look(ctx: WorkflowContext, _: Any) -> Any:
    return await ctx.promise("mail").peek()


app = restate.app([steps, counter, signup])
