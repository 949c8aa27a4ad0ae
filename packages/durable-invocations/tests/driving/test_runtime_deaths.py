"""Runtimes that are killed with kill -9 around a commit; the next one completes the invocation."""

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
from runtime_support.endpoints.asgi_servers import hypercorn_of, run, uvicorn_of
from runtime_support.runtimes import killable_runtime
from runtime_support.runtimes.sqlite_runtime import running, store_at

steps = Service("Steps")
PROGRAM = Path(killable_runtime.__file__)
NAP, LATER = 3_600.0, 7_200.0
"""The handler sleeps for an hour, and the clocks of the later runtimes are ahead."""
DEATHS = [
    ("after", "Claim", 1, 0),  # before it sends anything
    ("before", "CommitEntry", 1, 0),  # the first effect was done, and its entry is lost
    ("after", "CommitEntry", 1, 0),  # between its entry and the ack
    ("after", "CommitEntry", 1, 0),  # in the sleep
    ("after", "Fire", 1, LATER),  # between the commit of the sleep's end and its completion
    ("after", "Finish", 1, LATER),  # the child has ended, and its parent does not know
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


async def run_until_killed(folder, moment, operation, number, ahead):
    """Run a runtime until it has killed itself."""
    paths = [str(PROGRAM.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, PROGRAM, folder, moment, operation, str(number), str(ahead)),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGKILL
    except asyncio.TimeoutError:
        store = store_at(folder)
        journals = [(shown, store.read_journal(shown.id)) for shown in store.invocations()]
        pytest.fail(f"it lives on after {moment} {operation} {number}: {journals}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("server", [hypercorn_of, uvicorn_of], ids=["http2", "http1"])
def test_an_invocation_ends_once_whatever_runtimes_die(tmp_path, server):
    """Six runtimes die, each at another moment; stored steps are not executed again."""

    async def drive(url):
        async with running(tmp_path, url, most=0) as driver:
            id_ = await driver.submit("Steps/work", str(tmp_path))
        for death in DEATHS:
            await run_until_killed(tmp_path, *death)
        clock = killable_runtime.clock_ahead(LATER)
        async with running(tmp_path, silent=0.2, clock=clock) as driver:
            return await driver.end(id_), driver.journal(id_)

    with server(service_app(steps)) as served:
        result, journal = run(drive(served.url), 120)
    counts = collections.Counter((tmp_path / "effects").read_text().split())
    sys.stdout.write(f"{len(DEATHS)} runtimes killed; effects: {dict(counts)}\n")
    assert json.loads(result.value) == ["first", "second", "third"]
    kinds = [entry.frame.kind.name for entry in journal]
    assert kinds == ["Input", "Run", "Sleep", "Call", "Run", "Output"]
    # The entry of the first step was lost once, with its runtime, before it was acknowledged.
    assert counts == {"first": 2, "second": 1, "third": 1}
