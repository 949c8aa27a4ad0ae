"""What `iscp invocations` prints, within 80 columns, from the facts of ingress/facts.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from iscp_dagster.cli.jobs.show import line
from iscp_dagster.cli.parts.counting import print_counts
from iscp_dagster.cli.parts.tables import Listing, is_terminal, print_facts, print_listing

_FULL, _SHORT, _FINE = "%Y-%m-%d %H:%M:%S UTC", "%m-%d %H:%M:%S", "%m-%d %H:%M:%S.%f"
_ENTRY_CHARACTERS = 160
"""Characters of an entry's description; --json prints more."""
_TROUBLE_CHARACTERS = 50
"""Characters of what went wrong, in a list."""
_TROUBLED_STATUSES = {"backing off", "paused"}
_AWAKEABLE = "Awakeable"

Facts = Mapping[str, Any]


def print_invocations(records: Sequence[Facts], limit: int, counts: Mapping[str, int]) -> None:
    """Print counts by status, then a line per invocation.

    A terminal gets two lines, and a third for an error, in 80 columns.
    """
    if records:
        print_counts(sum(counts.values()), "invocation", counts)
    heads = ("invocation\ntarget", "status\nattempts", "created\nended or next")
    rows = [
        (
            (invocation["id"], invocation["target"]),
            (_get_status(invocation), str(invocation["attempts"] or "")),
            (
                _format_time(invocation["created"], _SHORT),
                _format_time(invocation["ended"] or invocation["next_at"], _SHORT),
            ),
            _format_trouble(invocation),
        )
        for invocation in records
    ]
    if is_terminal():
        stacked = [(tuple(filter(None, (*row[0], row[3]))), *row[1:3]) for row in rows]
        print_listing(Listing(heads=heads, rows=stacked))
    else:
        print_listing(Listing(heads=(*heads, "what went wrong"), rows=rows))
    hint = f", the latest; --limit shows more than {limit:,}" if len(records) == limit else ""
    line(f"{len(records):,} invocation{'s' * (len(records) != 1)}{hint}")


def print_invocation(invocation: Facts) -> None:
    """Print an invocation's facts, then its journal, entry by entry."""
    facts = {
        "invocation": invocation["id"],
        "target": invocation["target"],
        "status": _get_status(invocation) + (", canceled" if invocation["canceled"] else ""),
        "attempts": f"{invocation['attempts']:,}",
        "created": _format_time(invocation["created"], _FULL),
        "begins" if invocation["status"] == "scheduled" else "next try": _format_time(
            invocation["next_at"], _FULL
        ),
        "ended": _format_time(invocation["ended"], _FULL),
        "called by": invocation["called_by"],
        "idempotency": invocation["idempotency_key"],
        "waits for": ", ".join(map(str, invocation["waits_for"])),
        "deployment": invocation["deployment"],
        "driven by": invocation["driven_by"],
        "last error": _format_error(invocation["error"]),
        "in detail": (invocation["error"] or {}).get("description"),
        "result": _format_result(invocation["result"]),
    }
    print_facts({name: str(value) for name, value in facts.items() if value})
    line("")
    _print_journal(invocation["journal"])
    for entry in invocation["journal"]:
        if entry["type"] == _AWAKEABLE and entry["state"] == "waiting":
            # An id in the table would be cut in two.
            line(f"{entry['index']} waits: iscp invocations resolve {entry['detail']['id']}")


def print_deployments(records: Sequence[Facts]) -> None:
    """Print the registered addresses, each with the services whose new invocations go there."""
    for deployment in records:
        since = _format_time(deployment["registered"], _FULL)
        line(f"{deployment['uri']} ({deployment['id']}), since {since}")
        for service in deployment["services"]:
            handlers = ", ".join(handler["name"] for handler in service["handlers"])
            line(f"  {service['name']} ({service['ty']}): {handlers}")
        if not deployment["services"]:
            line("  no service: new invocations go elsewhere")
    if not records:
        line("no deployments; register one with `iscp invocations deploy http://…`")


def _get_status(invocation: Facts) -> str:
    return "failed" if _get_failure(invocation) else str(invocation["status"])


def _get_failure(invocation: Facts) -> Any:
    return (invocation["result"] or {}).get("failure")


def _format_trouble(invocation: Facts) -> str:
    """Why it failed, or is tried again, in one line."""
    failure = _get_failure(invocation) or (
        invocation["error"] if invocation["status"] in _TROUBLED_STATUSES else None
    )
    if failure is None:
        return ""
    text = " ".join(f"{failure['code']}: {failure['message']}".split())
    return text if len(text) <= _TROUBLE_CHARACTERS else f"{text[: _TROUBLE_CHARACTERS - 1]}…"


def _print_journal(entries: Sequence[Facts]) -> None:
    rows = [
        (
            str(entry["index"]),
            _drop_empty_lines(entry["type"], entry["name"] or ""),
            entry["state"],
            _drop_empty_lines(
                _format_time(entry["stored"], _FINE), _format_time(entry["completed"], _FINE)
            ),
            _truncate_text(_describe_entry(entry)),
        )
        for entry in entries
    ]
    print_listing(
        Listing(heads=("#", "entry\nname", "state", "stored\ncompleted", "what"), rows=rows)
    )


def _drop_empty_lines(*lines: str) -> tuple[str, ...]:
    """The lines of a cell; an entry without a second line takes one."""
    return tuple(filter(None, lines))


def _describe_entry(entry: Facts) -> str:
    detail = {} if entry["type"] == _AWAKEABLE else dict(entry["detail"])
    target = [
        detail.pop(name) for name in ("service_name", "key", "handler_name") if name in detail
    ]
    parts = [
        "/".join(target),
        *(f"{name}: {_format_value(value)}" for name, value in detail.items()),
    ]
    return "; ".join(filter(None, (*parts, _format_result(entry["result"]))))


def _format_result(result: Facts | None) -> str:
    if result is None or result.get("empty"):
        return ""
    if failure := result.get("failure"):
        return f"failed with {failure['code']}: {failure['message']}"
    return f"keys: {', '.join(result['keys'])}" if "keys" in result else str(result["value"])


def _format_error(error: Facts | None) -> str:
    if error is None:
        return ""
    entry = ", ".join(filter(None, (error.get("type"), error.get("name"))))
    place = "" if error.get("index") is None else f" at entry {error['index']}"
    place += f" ({entry})" if entry else ""
    return f"{_format_time(error['at'], _FULL)}, {error['code']}{place}: {error['message']}"


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _truncate_text(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= _ENTRY_CHARACTERS else f"{one_line[:_ENTRY_CHARACTERS]}…"


def _format_time(at: str | None, form: str) -> str:
    if at is None:
        return ""
    try:
        formatted = datetime.fromisoformat(at).strftime(form)
    except ValueError:
        # The runtime sent no valid time; print what it sent.
        return at
    return formatted[:-3] if form == _FINE else formatted
