"""A wait that outlives its process: looks are steps, and between two of them nothing runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from durable_invocations.serving.errors import TerminalError
from iscp_dagster.jobservices.arguments import Awaited
from iscp_dagster.jobservices.steps import TIMED_OUT, Steps

if TYPE_CHECKING:
    from durable_invocations.serving.context import Context

FIRST, MOST, GROWTH = 0.25, 60.0, 1.5
"""The seconds between the first looks, the last ones, and how they grow: a look and a pause are two
entries."""


async def waited(ctx: Context, steps: Steps, asked: Awaited) -> int:
    """The version once it is where it is waited for. TerminalError: 408 when it is late, 409."""
    version = asked.version
    if version is None:
        version = await ctx.run("latest commit", steps.version, asked.table)
    goal, pause, until = replace(asked, version=version), FIRST, None
    while True:
        lacks, now = await ctx.run("look", steps.lacking, goal)
        if lacks is None:
            return version
        until = now + asked.timeout if until is None else until
        if now >= until:
            raise TerminalError(lacks, TIMED_OUT)
        await ctx.sleep(min(pause, until - now))
        pause = min(pause * GROWTH, MOST)
