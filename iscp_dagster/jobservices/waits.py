"""A wait that outlives its process: looks are steps, and between two of them nothing runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from iscp_dagster.invocations.serving.errors import TerminalError
from iscp_dagster.jobservices.arguments import Awaited
from iscp_dagster.jobservices.steps import TIMED_OUT, Steps

if TYPE_CHECKING:
    from iscp_dagster.invocations.serving.context import Context

FIRST, MOST, GROWTH = 0.25, 30.0, 1.5
"""The seconds between the first looks, the last ones, and how they grow."""


async def waited(ctx: Context, steps: Steps, asked: Awaited) -> int:
    """The version once it is where it is waited for. TerminalError: 408 when it is late, 409."""
    version = asked.version
    if version is None:
        version = await ctx.run("latest commit", steps.version, asked.table)
    goal, pause = replace(asked, version=version), FIRST
    until = await ctx.time() + asked.timeout
    while (lacks := await ctx.run("look", steps.reached, goal)) is not None:
        left = until - await ctx.time()
        if left <= 0:
            raise TerminalError(lacks, TIMED_OUT)
        await ctx.sleep(min(pause, left))
        pause = min(pause * GROWTH, MOST)
    return version
