"""Runtimes that are killed with kill -9 around a commit; the next one ends what they began."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from durable_invocations import Context, Service, service_app
from durable_invocations.protocol import ids
from durable_invocations.runtime.store.operations import Submit
from runtime_support.endpoints.asgi_servers import hypercorn_of, run, uvicorn_of
from runtime_support.runtimes import killable_runtime
from runtime_support.runtimes.sqlite_runtime import running, store_at

steps = Service("Steps")
PLACE = Path(killable_runtime.__file__)
NAP, LATER = 3_600.0, 7_200.0
"""The handler sleeps for an hour, and the clocks of the later runtimes are ahead."""
DEATHS = [
    ("after", "Claim", 1, 0),  # begun, and nothing sent
    ("before", "CommitEntry", 1, 0),  # the first effect was done, and its entry is lost
    ("after", "CommitEntry", 1, 0),  # between its entry and the ack
    ("after", "CommitEntry", 1, 0),  # in the sleep
    ("after", "Fire", 1, LATER),  # between the commit of the sleep's end and its completion
    ("after", "Finish", 1, LATER),  # the child has ended, and its parent was not told
]


@steps.handler
async def work(ctx: Context, folder: str) -> list[str]:
    first = await ctx.run("first", effect, folder, "first")
    await ctx.sleep(NAP)
    second = await ctx.call("Steps", "child", folder)
    return [first, second, await ctx.run("third", effect, folder, "third")]


@steps.handler
async def child(ctx: Context, folder: str) -> str:
    return await ctx.run("second", effect, folder, "second")


def effect(folder: str, name: str) -> str:
    with Path(folder, "effects").open("a", encoding="utf-8") as file:
        file.write(f"{name}\n")
    return name


async def killed(folder, moment, operation, number, ahead):
    """Run a runtime until it has killed itself."""
    paths = os.pathsep.join([str(PLACE.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, PLACE, folder, moment, operation, str(number), str(ahead)),
        env=os.environ | {"PYTHONPATH": paths},
    )
    try:
        assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGKILL
    except asyncio.TimeoutError:
        store = store_at(folder)
        told = [(each, store.read_journal(each.id)) for each in store.invocations()]
        pytest.fail(f"it lives on after {moment} {operation} {number}: {told}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("server", [hypercorn_of, uvicorn_of], ids=["http2", "http1"])
def test_an_invocation_ends_once_whatever_runtimes_die(tmp_path, server):
    """Six runtimes die, each at another moment; what was stored is not done again."""

    async def inside(url):
        async with running(tmp_path, url, most=0) as driven:
            argument = json.dumps(str(tmp_path)).encode()
            id_ = ids.format_id(ids.make_id())
            asked = Submit(id=id_, service="Steps", handler="work", argument=argument)
            await driven.runtime.do(asked)
        for each in DEATHS:
            await killed(tmp_path, *each)
        clock = killable_runtime.clock_ahead(LATER)
        async with running(tmp_path, silent=0.2, clock=clock) as driven:
            return await driven.end(id_), driven.journal(id_)

    with server(service_app(steps)) as served:
        result, journal = run(inside(served.url), 120)
    counts = collections.Counter((tmp_path / "effects").read_text().split())
    sys.stdout.write(f"{len(DEATHS)} runtimes killed; effects: {dict(counts)}\n")
    assert json.loads(result.value) == ["first", "second", "third"]
    kinds = [each.frame.kind.name for each in journal]
    assert kinds == ["Input", "Run", "Sleep", "Call", "Run", "Output"]
    # The entry of the first was lost with its runtime once, so that nobody had acknowledged it.
    assert counts == {"first": 2, "second": 1, "third": 1}
