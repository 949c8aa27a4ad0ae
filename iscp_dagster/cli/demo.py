"""`iscp demo`."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the stack up and print its addresses.")
    ] = False,
) -> None:
    """Index, change, search and verify the documentation of the installed Python packages."""
    from iscp_dagster.model.imports import require_extra

    require_extra("demo", "`iscp demo`")
    from iscp_dagster.demo.run import run

    raise typer.Exit(run(keep=keep))
