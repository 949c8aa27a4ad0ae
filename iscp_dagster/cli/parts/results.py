"""What a command found or did, as JSON or in a line."""

from __future__ import annotations

import json
from typing import Any

from iscp_dagster.cli.parts.tables import print_line


def print_result(fact: Any, text: str, *, as_json: bool) -> None:
    """Print the fact as JSON, or the text, which says the same to people, in a line."""
    if as_json:
        print_json(fact)
    else:
        print_line(text)


def print_json(value: Any) -> None:
    """Print JSON without wrapping long lines."""
    print(json.dumps(value, indent=2))  # noqa: T201
