"""`iscp verify`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

DISAGREES = 1


def verify(
    *,
    tenant: Annotated[
        str | None, typer.Option(help="One tenant; all when left out.", show_default=False)
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(
            help="index, database.table/index or database.table; repeatable.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare indexes with their sources: same keys, same values. Exit code 1 when one differs."""
    from iscp_dagster.commands import show
    from iscp_dagster.commands.tables import chosen, declared
    from iscp_dagster.core.errors import ConfigError
    from iscp_dagster.engine.environment import engine_of
    from iscp_dagster.engine.standing import standings
    from iscp_dagster.engine.verify import verify as compare
    from iscp_dagster.spark.session import disconnect
    from iscp_dagster.stack.environment import with_stack

    environ = with_stack(os.environ)
    wanted = chosen(index or [], declared(environ))
    engine = engine_of(environ)
    unbuilt = [
        f"{source.name}/{each.index}, {each.tenant}"
        for source, names in wanted
        for each in standings(engine, source, tenant=tenant, indexes=names)
        if not each.built
    ]
    verdicts = [
        (source, verdict)
        for source, names in wanted
        for verdict in compare(engine, source, tenant=tenant, indexes=names)
    ]
    if not verdicts and not unbuilt:
        raise ConfigError(
            f"There is nothing to verify for tenant {tenant or 'any'!r}: no job is registered. "
            "Check the name, or wait for the runner's next look."
        )
    disconnect()
    show.verdicts(verdicts, unbuilt, as_json=as_json)
    raise typer.Exit(DISAGREES if unbuilt or not all(v.agrees for _, v in verdicts) else 0)
