"""The service `Iscp` and the virtual object `Index`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from durable_invocations.serving.context import Context
from durable_invocations.serving.declarations.services import Service, VirtualObject
from durable_invocations.serving.errors import TerminalError
from iscp_dagster.api.names import ALL_TENANTS
from iscp_dagster.jobservices.arguments import (
    ChangeOfKey,
    JobReference,
    RegisterArgument,
    SpecOfKey,
    UpdateArgument,
    VerifyArgument,
    VersionOfKey,
    WaitArgument,
)
from iscp_dagster.jobservices.steps import BAD, Steps
from iscp_dagster.jobservices.waits import wait_for_commit

_PARTS = 3
JobArgument = TypeVar("JobArgument", bound=JobReference)


def build_iscp_service(steps: Steps) -> Service:
    """`Iscp`: the jobs of the deployment, each named in the argument."""
    iscp = Service("Iscp", documentation="The jobs of this deployment.")

    @iscp.handler
    async def register(ctx: Context, argument: RegisterArgument) -> dict[str, Any]:
        """Register a job, or those of every tenant."""
        return await _run_step(ctx, steps.register, argument)

    @iscp.handler
    async def update(ctx: Context, argument: UpdateArgument) -> dict[str, Any]:
        """Change a job's spec."""
        return await _run_step(ctx, steps.update, argument)

    @iscp.handler
    async def pause(ctx: Context, argument: JobReference) -> dict[str, Any]:
        """Plan no more iterations of a job."""
        return await _run_step(ctx, steps.pause, argument)

    @iscp.handler
    async def resume(ctx: Context, argument: JobReference) -> dict[str, Any]:
        """Plan a paused job again."""
        return await _run_step(ctx, steps.resume, argument)

    @iscp.handler
    async def status(ctx: Context, argument: JobReference) -> list[dict[str, Any]]:
        """Everything about a job, of one tenant or of each."""
        jobs: list[dict[str, Any]] = await ctx.run("status", steps.describe_jobs, argument)
        return jobs

    @iscp.handler
    async def wait(ctx: Context, argument: WaitArgument) -> int:
        """The version once a commit is searchable in every index."""
        return await wait_for_commit(ctx, steps, argument)

    @iscp.handler
    async def verify(ctx: Context, argument: VerifyArgument | None = None) -> dict[str, Any]:
        """Compare indexes with their sources."""
        return await _verify_tables(ctx, steps, argument or VerifyArgument())

    return iscp


def build_index_object(steps: Steps) -> VirtualObject:
    """`Index`: one job, named by the key `database.table/job/tenant`."""
    index = VirtualObject("Index", documentation="One job; its key is database.table/job/tenant.")

    @index.handler
    async def register(ctx: Context, argument: SpecOfKey | None = None) -> dict[str, Any]:
        """Register the job."""
        return await _run_step(
            ctx, steps.register, _build_argument(ctx, RegisterArgument, argument)
        )

    @index.handler
    async def update(ctx: Context, argument: ChangeOfKey) -> dict[str, Any]:
        """Change the job's spec."""
        return await _run_step(ctx, steps.update, _build_argument(ctx, UpdateArgument, argument))

    @index.handler
    async def pause(ctx: Context) -> dict[str, Any]:
        """Plan no more iterations of the job."""
        return await _run_step(ctx, steps.pause, _build_argument(ctx, JobReference))

    @index.handler
    async def resume(ctx: Context) -> dict[str, Any]:
        """Plan the paused job again."""
        return await _run_step(ctx, steps.resume, _build_argument(ctx, JobReference))

    @index.shared
    async def status(ctx: Context) -> dict[str, Any]:
        """Everything about the job."""
        jobs: list[dict[str, Any]] = await ctx.run(
            "status", steps.describe_jobs, _build_argument(ctx, JobReference)
        )
        return jobs[0]

    @index.shared
    async def wait(ctx: Context, argument: VersionOfKey | None = None) -> int:
        """The version once the tenant's commit is searchable in this index."""
        table, name, tenant = _parse_key(ctx.key)
        goal = WaitArgument(
            table=table, tenant=tenant, index=name, **vars(argument or VersionOfKey())
        )
        return await wait_for_commit(ctx, steps, goal)

    @index.shared
    async def verify(ctx: Context) -> dict[str, Any]:
        """Compare the tenant's rows in the index with the source's."""
        reference = _build_argument(ctx, JobReference)
        return await _verify_tables(
            ctx, steps, VerifyArgument(index=(reference.job,), tenant=reference.tenant)
        )

    return index


async def _run_step(ctx: Context, step: Callable[[Any], Any], argument: Any) -> dict[str, Any]:
    result: dict[str, Any] = await ctx.run(step.__name__, step, argument)
    return result


async def _verify_tables(ctx: Context, steps: Steps, argument: VerifyArgument) -> dict[str, Any]:
    """A step for each table, so that a retry does not compare it again."""
    verdicts: list[dict[str, Any]] = []
    for table, indexes in await ctx.run("tables", steps.list_verifiable, argument):
        name = f"verify {table}"
        verdicts += await ctx.run(name, steps.verify, table, indexes, argument.tenant)
    return {
        "agrees": bool(verdicts) and all(verdict["agrees"] for verdict in verdicts),
        "indexes": verdicts,
    }


def _build_argument(
    ctx: Context, kind: type[JobArgument], argument: SpecOfKey | None = None
) -> JobArgument:
    """The argument of `Iscp`'s handler for the key's job."""
    table, name, tenant = _parse_key(ctx.key)
    return kind(job=f"{table}/{name}", tenant=tenant, **vars(argument) if argument else {})


def _parse_key(key: str) -> tuple[str, str, str]:
    """Table, job and tenant; a tenant may have any characters. Raises TerminalError (400)."""
    parts = key.split("/", _PARTS - 1)
    if len(parts) != _PARTS or not all(parts) or parts[-1] == ALL_TENANTS:
        raise TerminalError(
            f"The key {key!r} names no job of a tenant; write database.table/job/tenant.", BAD
        )
    table, name, tenant = parts
    return table, name, tenant
