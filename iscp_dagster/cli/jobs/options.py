"""The arguments and options of the commands on jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iscp_dagster.model.declared.kinds import BUILT_IN

Name = Annotated[str, typer.Argument(metavar="JOB", help="database.table/job", show_default=False)]
MaybeName = Annotated[
    str | None, typer.Argument(metavar="JOB", help="database.table/job", show_default=False)
]
Tenant = Annotated[str, typer.Option(help="The tenant; * for all.")]
MaybeTenant = Annotated[str | None, typer.Option(help="One tenant.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
State = Annotated[
    str | None,
    typer.Option(help="pending, running, canceled, error or completed.", show_default=False),
]
Shown = Annotated[
    str | None,
    typer.Option(
        "--state",
        help="pending, running, canceled, error, completed or building.",
        show_default=False,
    ),
]
Type = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(BUILT_IN)}, a name that a package offers, or a consumer's import path.",
        show_default=False,
    ),
]
Columns = Annotated[
    str | None, typer.Option(help="Columns that the job gets, as a,b.", show_default=False)
]
Option = Annotated[
    list[str] | None,
    typer.Option(help="An option of the consumer: name=value, JSON or text; repeatable."),
]
Trigger = Annotated[
    str | None,
    typer.Option(
        help="default, greedy, periodic, a name that a package offers, or an import path.",
        show_default=False,
    ),
]
Interval = Annotated[
    str | None, typer.Option(help="How often the job is due: 10s, 1h.", show_default=False)
]
Share = Annotated[
    bool | None,
    typer.Option(help="Share iterations with jobs of the same interval.", show_default=False),
]
Independent = Annotated[
    bool | None, typer.Option(help="Run apart from the other default jobs.", show_default=False)
]
Priority = Annotated[int | None, typer.Option(help="Higher runs first.", show_default=False)]
MaxVersions = Annotated[
    int | None, typer.Option(min=0, help="Most commits in one iteration.", show_default=False)
]
MaxBytes = Annotated[
    int | None, typer.Option(min=0, help="Most bytes in one iteration.", show_default=False)
]
File = Annotated[
    Path | None, typer.Option(help="A YAML list of {tenant, job, spec}.", show_default=False)
]
Table = Annotated[str | None, typer.Option(help="One table, database.table.", show_default=False)]
Since = Annotated[
    str | None, typer.Option(help="A duration (12h, 1d) or an ISO time.", show_default=False)
]
