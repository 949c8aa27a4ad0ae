"""The demo's trigger: where its events are delivered, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from iscp_dagster.api.environment import parse_number

TRIGGER, RECEIVER = "deprecated", "receiver"
DEPRECATED = "rich.progress.track"
"""The symbol whose documentation the demo changes."""
HOST = "127.0.0.1"
PORT = 8754
PORT_VARIABLE = "ISCP_DEMO_PORT"
_PORTS = (1, 65_535)


def get_port(environ: Mapping[str, str]) -> int:
    """The port that the demo receives events at. Raises ConfigError for anything else."""
    return parse_number(environ, PORT_VARIABLE, int, _PORTS, unit="a port") or PORT


def get_address(environ: Mapping[str, str]) -> str:
    """The address that the events are posted to."""
    return f"http://{HOST}:{get_port(environ)}/"


def show(events: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the MATCH events, and how many others came."""
    title = "Webhooks, verified: symbols that became deprecated"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("event_id", "type", "qualified_name"):
        table.add_column(name, overflow="fold")
    matches = [event for event in events if event["event_type"] == "MATCH"]
    for event in matches[:5]:
        table.add_row(event["event_id"], event["event_type"], event["data"]["qualified_name"])
    console.print(table)
    unmatches = len(events) - len(matches)
    console.print(f"and {unmatches:,} UNMATCH, of symbols that no longer match.\n")
