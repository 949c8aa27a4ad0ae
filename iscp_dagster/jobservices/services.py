"""The service `Iscp` and the virtual object `Index`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from durable_invocations.serving.context import Context
from durable_invocations.serving.declared.services import Service, VirtualObject
from durable_invocations.serving.errors import TerminalError
from iscp_dagster.api.names import EVERY
from iscp_dagster.jobservices.arguments import (
    Awaited,
    ChangeOfKey,
    Compared,
    Named,
    Specified,
    SpecOfKey,
    Updated,
    VersionOfKey,
)
from iscp_dagster.jobservices.steps import BAD, Steps
from iscp_dagster.jobservices.waits import waited

_PARTS = 3
JobArgument = TypeVar("JobArgument", bound=Named)


def iscp_service(steps: Steps) -> Service:
    """`Iscp`: the jobs of the deployment, each named in the argument."""
    iscp = Service("Iscp", documentation="The jobs of this deployment.")

    @iscp.handler
    async def register(ctx: Context, asked: Specified) -> dict[str, Any]:
        """Register a job, or those of every tenant."""
        return await _ran(ctx, steps.register, asked)

    @iscp.handler
    async def update(ctx: Context, asked: Updated) -> dict[str, Any]:
        """Change a job's spec."""
        return await _ran(ctx, steps.update, asked)

    @iscp.handler
    async def pause(ctx: Context, asked: Named) -> dict[str, Any]:
        """Plan no more iterations of a job."""
        return await _ran(ctx, steps.pause, asked)

    @iscp.handler
    async def resume(ctx: Context, asked: Named) -> dict[str, Any]:
        """Plan a paused job again."""
        return await _ran(ctx, steps.resume, asked)

    @iscp.handler
    async def status(ctx: Context, asked: Named) -> list[dict[str, Any]]:
        """Everything about a job, of one tenant or of each."""
        found: list[dict[str, Any]] = await ctx.run("status", steps.status, asked)
        return found

    @iscp.handler
    async def wait(ctx: Context, asked: Awaited) -> int:
        """The version once a commit is searchable in every index."""
        return await waited(ctx, steps, asked)

    @iscp.handler
    async def verify(ctx: Context, asked: Compared | None = None) -> dict[str, Any]:
        """Compare indexes with their sources."""
        return await _verified(ctx, steps, asked or Compared())

    return iscp


def index_object(steps: Steps) -> VirtualObject:
    """`Index`: one job, named by the key `database.table/job/tenant`."""
    index = VirtualObject("Index", documentation="One job; its key is database.table/job/tenant.")

    @index.handler
    async def register(ctx: Context, asked: SpecOfKey | None = None) -> dict[str, Any]:
        """Register the job."""
        return await _ran(ctx, steps.register, _of_key(ctx, Specified, asked))

    @index.handler
    async def update(ctx: Context, asked: ChangeOfKey) -> dict[str, Any]:
        """Change the job's spec."""
        return await _ran(ctx, steps.update, _of_key(ctx, Updated, asked))

    @index.handler
    async def pause(ctx: Context) -> dict[str, Any]:
        """Plan no more iterations of the job."""
        return await _ran(ctx, steps.pause, _of_key(ctx, Named))

    @index.handler
    async def resume(ctx: Context) -> dict[str, Any]:
        """Plan the paused job again."""
        return await _ran(ctx, steps.resume, _of_key(ctx, Named))

    @index.shared
    async def status(ctx: Context) -> dict[str, Any]:
        """Everything about the job."""
        found: list[dict[str, Any]] = await ctx.run("status", steps.status, _of_key(ctx, Named))
        return found[0]

    @index.shared
    async def wait(ctx: Context, asked: VersionOfKey | None = None) -> int:
        """The version once the tenant's commit is searchable in this index."""
        table, name, tenant = _parts(ctx.key)
        goal = Awaited(table=table, tenant=tenant, index=name, **vars(asked or VersionOfKey()))
        return await waited(ctx, steps, goal)

    @index.shared
    async def verify(ctx: Context) -> dict[str, Any]:
        """Compare the tenant's rows in the index with the source's."""
        named = _of_key(ctx, Named)
        return await _verified(ctx, steps, Compared(index=(named.job,), tenant=named.tenant))

    return index


async def _ran(ctx: Context, step: Callable[[Any], Any], asked: Any) -> dict[str, Any]:
    found: dict[str, Any] = await ctx.run(step.__name__, step, asked)
    return found


async def _verified(ctx: Context, steps: Steps, asked: Compared) -> dict[str, Any]:
    """A step for each table, so that what is compared is not compared again."""
    found: list[dict[str, Any]] = []
    for table, indexes in await ctx.run("tables", steps.verifiable, asked):
        name = f"verify {table}"
        found += await ctx.run(name, steps.verify, table, indexes, asked.tenant)
    return {"agrees": bool(found) and all(each["agrees"] for each in found), "indexes": found}


def _of_key(ctx: Context, kind: type[JobArgument], asked: SpecOfKey | None = None) -> JobArgument:
    """What `Iscp` is asked for the key's job."""
    table, name, tenant = _parts(ctx.key)
    return kind(job=f"{table}/{name}", tenant=tenant, **vars(asked) if asked else {})


def _parts(key: str) -> tuple[str, str, str]:
    """Table, job and tenant; a tenant may have any characters. Raises TerminalError (400)."""
    parts = key.split("/", _PARTS - 1)
    if len(parts) != _PARTS or not all(parts) or parts[-1] == EVERY:
        raise TerminalError(
            f"The key {key!r} names no job of a tenant; write database.table/job/tenant.", BAD
        )
    table, name, tenant = parts
    return table, name, tenant
