"""The demo's trigger: where its events are delivered, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from iscp_dagster.api.environment import number_of

TRIGGER, RECEIVER = "deprecated", "receiver"
DEPRECATED = "rich.progress.track"
"""The symbol whose documentation the demo changes."""
HOST = "127.0.0.1"
PORT = 8754
PORT_VARIABLE = "ISCP_DEMO_PORT"
_PORTS = (1, 65_535)


def port_of(environ: Mapping[str, str]) -> int:
    """The port that the demo receives events at. Raises ConfigError for anything else."""
    return number_of(environ, PORT_VARIABLE, int, _PORTS, unit="a port") or PORT


def address_of(environ: Mapping[str, str]) -> str:
    """The address that the events are posted to."""
    return f"http://{HOST}:{port_of(environ)}/"


def show(events: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the MATCH events, and how many others came."""
    title = "Webhooks, verified: symbols that became deprecated"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("event_id", "type", "qualified_name"):
        table.add_column(name, overflow="fold")
    began = [each for each in events if each["event_type"] == "MATCH"]
    for each in began[:5]:
        table.add_row(each["event_id"], each["event_type"], each["data"]["qualified_name"])
    console.print(table)
    ceased = len(events) - len(began)
    console.print(f"and {ceased:,} UNMATCH, of symbols that ceased to be.\n")
