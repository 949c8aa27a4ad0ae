"""The arguments and options of the commands on jobs."""

from pathlib import Path
from typing import Annotated

import typer

from iscp_dagster.model.clock import DURATION
from iscp_dagster.model.declared.kinds import BUILT_IN
from iscp_dagster.model.specs import MOST_PRIORITY
from iscp_dagster.model.states import JobState

BUILDING = "building"
"""Shown instead of the state of a job that is building."""
STATES = (*(state.label for state in JobState), BUILDING)
"""The states that `--state` takes."""

Name = Annotated[str, typer.Argument(metavar="JOB", help="database.table/job", show_default=False)]
NameOrFile = Annotated[
    str | None, typer.Argument(metavar="JOB", help="database.table/job", show_default=False)
]
NameOrAll = Annotated[
    str | None,
    typer.Argument(metavar="JOB", help="database.table/job; default: all.", show_default=False),
]
Tenant = Annotated[str, typer.Option(help="The tenant; * for all.")]
TenantOrAll = Annotated[
    str | None, typer.Option(help="One tenant; default: all.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
State = Annotated[str | None, typer.Option(help=f"One of {', '.join(STATES)}.", show_default=False)]
Type = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(BUILT_IN)}, a name that a package offers, or a consumer's import path.",
        show_default=False,
    ),
]
Columns = Annotated[
    str | None, typer.Option(help="Columns for the job, as a,b.", show_default=False)
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
    str | None,
    typer.Option(
        help=f"How often a periodic job is due: {DURATION}. Needs --trigger periodic, unless the "
        "job is already periodic.",
        show_default=False,
    ),
]
Share = Annotated[
    bool | None,
    typer.Option(
        help="Share iterations with periodic jobs of the same interval.", show_default=False
    ),
]
Independent = Annotated[
    bool | None, typer.Option(help="Run apart from the other default jobs.", show_default=False)
]
Priority = Annotated[
    int | None,
    typer.Option(
        min=-MOST_PRIORITY, max=MOST_PRIORITY, help="Higher runs first.", show_default=False
    ),
]
MaxVersions = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Most commits in one iteration; 0: ISCP_MAX_VERSIONS applies.",
        show_default=False,
    ),
]
MaxBytes = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Most bytes in one iteration; 0: ISCP_MAX_BYTES applies.",
        show_default=False,
    ),
]
File = Annotated[
    Path | None, typer.Option(help="A YAML list of {tenant, job, spec}.", show_default=False)
]
Table = Annotated[str | None, typer.Option(help="One table, database.table.", show_default=False)]
TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="database.table", show_default=False)
]
Since = Annotated[
    str | None,
    typer.Option(
        help=f"From this time on: how long ago ({DURATION}), or an ISO time.",
        show_default=False,
    ),
]
