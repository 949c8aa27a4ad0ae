"""`iscp dlq`: the dead letters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from iscp_dagster.cli.jobs.options import AsJson, TenantOrAll
from iscp_dagster.cli.parts.counting import Limit
from iscp_dagster.cli.parts.group import Group

if TYPE_CHECKING:
    from iscp_dagster.api.jobs import Jobs
    from iscp_dagster.clickhouse.write.letters import DeadLetter

dlq = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    cls=Group,
    help="List, show, replay or drop dead letters.",
)
Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        help="IDs or prefixes; default: all matching the options.",
        show_default=False,
    ),
]
IndexName = Annotated[
    str | None,
    typer.Option("--index", help="One index, database.table/index.", show_default=False),
]


@dlq.command("list")
def list_letters(
    *,
    index: IndexName = None,
    tenant: TenantOrAll = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Count dead letters by index, and list them: the rows that indexes could not take."""
    from iscp_dagster.cli.dlq import show as dlq_show

    _, letters = _find_letters(None, index, tenant)
    dlq_show.print_letters(letters, as_json=as_json, limit=limit)


@dlq.command()
def show(
    id_: Annotated[
        str,
        typer.Argument(metavar="ID", help="An ID or its prefix.", show_default=False),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Show a dead letter: its row and why it was refused."""
    from iscp_dagster.cli.dlq import show as dlq_show

    _, letters = _find_letters([id_], None, None)
    dlq_show.print_letter_facts(letters, as_json=as_json)


@dlq.command()
def replay(
    ids: Ids = None,
    *,
    index: IndexName = None,
    tenant: TenantOrAll = None,
    as_json: AsJson = False,
) -> None:
    """Write dead letters' rows to their indexes again. Exit code 1 if one is refused again."""
    from iscp_dagster.cli.dlq import show as dlq_show
    from iscp_dagster.upkeep.dead_letters import replay_letters

    jobs, letters = _find_letters(ids, index, tenant)
    results = replay_letters(jobs.deployment, jobs.sources, letters)
    dlq_show.print_replay_results(results, as_json=as_json)
    raise typer.Exit(1 if any(result.error for result in results) else 0)


@dlq.command()
def drop(
    ids: Ids = None,
    *,
    index: IndexName = None,
    tenant: TenantOrAll = None,
    every: Annotated[
        bool, typer.Option("--all", help="Delete all dead letters of all indexes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters: by ID, by the options, or --all.

    Their rows are not written: each stays out of its index until the source changes it.
    """
    from iscp_dagster.cli.dlq import show as dlq_show
    from iscp_dagster.model.errors import ConfigError
    from iscp_dagster.upkeep.dead_letters import drop_letters

    if not (ids or index or tenant or every):
        raise ConfigError("Say which letters to delete: by ID, --index or --tenant, or --all.")
    jobs, letters = _find_letters(ids, index, tenant)
    drop_letters(jobs.deployment, jobs.sources, letters)
    dlq_show.print_drop_count(letters, as_json=as_json)


def _find_letters(
    ids: list[str] | None, index: str | None, tenant: str | None
) -> tuple[Jobs, list[DeadLetter]]:
    from iscp_dagster.api import jobs as api
    from iscp_dagster.api.names import to_tenant_filter
    from iscp_dagster.cli.parts.name_checks import check_known
    from iscp_dagster.upkeep.dead_letters import find_letters

    jobs = api.open_jobs(os.environ)
    tenant_filter = to_tenant_filter(tenant)
    letters = find_letters(
        jobs.deployment, jobs.sources, index=index, tenant=tenant_filter, ids=ids or ()
    )
    if not letters:
        check_known(jobs, tenant=tenant, name=index, what="index")
    return jobs, letters
