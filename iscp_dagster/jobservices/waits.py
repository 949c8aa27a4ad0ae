"""A wait that outlives its process: looks are steps, and between two of them nothing runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from durable_invocations.serving.errors import TerminalError
from iscp_dagster.jobservices.arguments import WaitArgument
from iscp_dagster.jobservices.steps import TIMED_OUT, Steps

if TYPE_CHECKING:
    from durable_invocations.serving.context import Context

FIRST, MOST, GROWTH = 0.25, 60.0, 1.5
"""The seconds between the first looks and the last ones, and their growth: a look and a pause are
two entries."""


async def wait_for_commit(ctx: Context, steps: Steps, argument: WaitArgument) -> int:
    """The version once it is searchable.

    Raises TerminalError: 408 at the timeout, 409 if waiting cannot help.
    """
    version = argument.version
    if version is None:
        version = await ctx.run("latest commit", steps.get_latest_version, argument.table)
    goal, pause, deadline = replace(argument, version=version), FIRST, None
    while True:
        lag, now = await ctx.run("look", steps.find_lag, goal)
        if lag is None:
            return version
        deadline = now + argument.timeout if deadline is None else deadline
        if now >= deadline:
            raise TerminalError(lag, TIMED_OUT)
        await ctx.sleep(min(pause, deadline - now))
        pause = min(pause * GROWTH, MOST)
