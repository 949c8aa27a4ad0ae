"""A service in a process that a test kills: its steps write a line each to a file, then wait.

The folder in MORTAL_FOLDER has `effects`, to which steps write their names, and `go`, for which
the step `wait` waits.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from durable_invocations import Context, Service, service_app

FOLDER = Path(os.environ.get("MORTAL_FOLDER", "."))
mortal = Service("Mortal")


def effect(name: str) -> str:
    with (FOLDER / "effects").open("a", encoding="utf-8") as file:
        file.write(f"{name}\n")
    return name


def wait() -> str:
    effect("wait")
    while not (FOLDER / "go").exists():
        time.sleep(0.005)
    return "waited"


@mortal.handler
async def steps(ctx: Context) -> list[str]:
    return [
        await ctx.run("one", effect, "one"),
        await ctx.run("wait", wait),
        await ctx.run("two", effect, "two"),
    ]


app = service_app(mortal)
