"""What `iscp invocations` prints, within 80 columns, from what ingress/facts.py tells."""

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
"""Characters of what an entry says; --json prints more."""
_TROUBLE_CHARACTERS = 50
"""Characters of what went wrong, in a list."""
_TROUBLED_STATUSES = {"backing off", "paused"}
_AWAKEABLE = "Awakeable"

Facts = Mapping[str, Any]


def invocations(found: Sequence[Facts], limit: int, counts: Mapping[str, int]) -> None:
    """Print counts by status, then a line per invocation.

    A terminal gets two lines, and a third of what went wrong, in 80 columns.
    """
    if found:
        print_counts(sum(counts.values()), "invocation", counts)
    heads = ("invocation\ntarget", "status\nattempts", "created\nended or next")
    rows = [
        (
            (each["id"], each["target"]),
            (_get_status(each), str(each["attempts"] or "")),
            (
                _format_time(each["created"], _SHORT),
                _format_time(each["ended"] or each["next_at"], _SHORT),
            ),
            _format_trouble(each),
        )
        for each in found
    ]
    if is_terminal():
        stacked = [(tuple(filter(None, (*row[0], row[3]))), *row[1:3]) for row in rows]
        print_listing(Listing(heads=heads, rows=stacked))
    else:
        print_listing(Listing(heads=(*heads, "what went wrong"), rows=rows))
    more = f", the latest; --limit shows more than {limit:,}" if len(found) == limit else ""
    line(f"{len(found):,} invocation{'s' * (len(found) != 1)}{more}")


def print_invocation(each: Facts) -> None:
    """Print an invocation's facts, then its journal, entry by entry."""
    facts = {
        "invocation": each["id"],
        "target": each["target"],
        "status": _get_status(each) + (", canceled" if each["canceled"] else ""),
        "attempts": f"{each['attempts']:,}",
        "created": _format_time(each["created"], _FULL),
        "begins" if each["status"] == "scheduled" else "next try": _format_time(
            each["next_at"], _FULL
        ),
        "ended": _format_time(each["ended"], _FULL),
        "called by": each["called_by"],
        "idempotency": each["idempotency_key"],
        "waits for": ", ".join(map(str, each["waits_for"])),
        "deployment": each["deployment"],
        "driven by": each["driven_by"],
        "last error": _format_error(each["error"]),
        "in detail": (each["error"] or {}).get("description"),
        "result": _format_result(each["result"]),
    }
    print_facts({name: str(value) for name, value in facts.items() if value})
    line("")
    _print_journal(each["journal"])
    for entry in each["journal"]:
        if entry["type"] == _AWAKEABLE and entry["state"] == "waiting":
            # An id in the table would be cut in two.
            line(f"{entry['index']} waits: iscp invocations resolve {entry['detail']['id']}")


def deployments(found: Sequence[Facts]) -> None:
    """Print the registered addresses, each with the services whose new invocations go there."""
    for each in found:
        line(f"{each['uri']} ({each['id']}), since {_format_time(each['registered'], _FULL)}")
        for service in each["services"]:
            handlers = ", ".join(handler["name"] for handler in service["handlers"])
            line(f"  {service['name']} ({service['ty']}): {handlers}")
        if not each["services"]:
            line("  no service: new invocations go elsewhere")
    if not found:
        line("no deployments; register one with `iscp invocations deploy http://…`")


def _get_status(each: Facts) -> str:
    return "failed" if _get_failure(each) else str(each["status"])


def _get_failure(each: Facts) -> Any:
    return (each["result"] or {}).get("failure")


def _format_trouble(each: Facts) -> str:
    """Why it failed, or is tried again, in one line."""
    found = _get_failure(each) or (each["error"] if each["status"] in _TROUBLED_STATUSES else None)
    if found is None:
        return ""
    said = " ".join(f"{found['code']}: {found['message']}".split())
    return said if len(said) <= _TROUBLE_CHARACTERS else f"{said[: _TROUBLE_CHARACTERS - 1]}…"


def _print_journal(entries: Sequence[Facts]) -> None:
    rows = [
        (
            str(each["index"]),
            _drop_empty_lines(each["type"], each["name"] or ""),
            each["state"],
            _drop_empty_lines(
                _format_time(each["stored"], _FINE), _format_time(each["completed"], _FINE)
            ),
            _truncate_text(_describe_entry(each)),
        )
        for each in entries
    ]
    print_listing(
        Listing(heads=("#", "entry\nname", "state", "stored\ncompleted", "what"), rows=rows)
    )


def _drop_empty_lines(*said: str) -> tuple[str, ...]:
    """One below the other; an entry without a second line takes one."""
    return tuple(filter(None, said))


def _describe_entry(entry: Facts) -> str:
    detail = {} if entry["type"] == _AWAKEABLE else dict(entry["detail"])
    place = [detail.pop(name) for name in ("service_name", "key", "handler_name") if name in detail]
    said = ["/".join(place), *(f"{name}: {_format_value(value)}" for name, value in detail.items())]
    return "; ".join(filter(None, (*said, _format_result(entry["result"]))))


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
    of = "" if error.get("index") is None else f" at entry {error['index']}"
    of += f" ({entry})" if entry else ""
    return f"{_format_time(error['at'], _FULL)}, {error['code']}{of}: {error['message']}"


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _truncate_text(text: str) -> str:
    told = " ".join(text.split())
    return told if len(told) <= _ENTRY_CHARACTERS else f"{told[:_ENTRY_CHARACTERS]}…"


def _format_time(at: str | None, form: str) -> str:
    if at is None:
        return ""
    try:
        shown = datetime.fromisoformat(at).strftime(form)
    except ValueError:
        # Of a runtime that is none; it is printed as it is told.
        return at
    return shown[:-3] if form == _FINE else shown
