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
_SAID = 160
"""Characters of what an entry says; --json prints more."""
_TOLD = 50
"""Characters of what went wrong, in a list."""
_TROUBLED = {"backing off", "paused"}
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
            (_status(each), str(each["attempts"] or "")),
            (_time(each["created"], _SHORT), _time(each["ended"] or each["next_at"], _SHORT)),
            _trouble(each),
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


def whole(each: Facts) -> None:
    """Print an invocation's facts, then its journal, entry by entry."""
    facts = {
        "invocation": each["id"],
        "target": each["target"],
        "status": _status(each) + (", canceled" if each["canceled"] else ""),
        "attempts": f"{each['attempts']:,}",
        "created": _time(each["created"], _FULL),
        "begins" if each["status"] == "scheduled" else "next try": _time(each["next_at"], _FULL),
        "ended": _time(each["ended"], _FULL),
        "called by": each["called_by"],
        "idempotency": each["idempotency_key"],
        "waits for": ", ".join(map(str, each["waits_for"])),
        "deployment": each["deployment"],
        "driven by": each["driven_by"],
        "last error": _error(each["error"]),
        "in detail": (each["error"] or {}).get("description"),
        "result": _result(each["result"]),
    }
    print_facts({name: str(value) for name, value in facts.items() if value})
    line("")
    _journal(each["journal"])
    for entry in each["journal"]:
        if entry["type"] == _AWAKEABLE and entry["state"] == "waiting":
            # An id in the table would be cut in two.
            line(f"{entry['index']} waits: iscp invocations resolve {entry['detail']['id']}")


def deployments(found: Sequence[Facts]) -> None:
    """Print the registered addresses, each with the services whose new invocations go there."""
    for each in found:
        line(f"{each['uri']} ({each['id']}), since {_time(each['registered'], _FULL)}")
        for service in each["services"]:
            handlers = ", ".join(handler["name"] for handler in service["handlers"])
            line(f"  {service['name']} ({service['ty']}): {handlers}")
        if not each["services"]:
            line("  no service: new invocations go elsewhere")
    if not found:
        line("no deployments; register one with `iscp invocations deploy http://…`")


def _status(each: Facts) -> str:
    return "failed" if _failure(each) else str(each["status"])


def _failure(each: Facts) -> Any:
    return (each["result"] or {}).get("failure")


def _trouble(each: Facts) -> str:
    """Why it failed, or is tried again, in one line."""
    found = _failure(each) or (each["error"] if each["status"] in _TROUBLED else None)
    if found is None:
        return ""
    said = " ".join(f"{found['code']}: {found['message']}".split())
    return said if len(said) <= _TOLD else f"{said[: _TOLD - 1]}…"


def _journal(entries: Sequence[Facts]) -> None:
    rows = [
        (
            str(each["index"]),
            _lines(each["type"], each["name"] or ""),
            each["state"],
            _lines(_time(each["stored"], _FINE), _time(each["completed"], _FINE)),
            _short(_what(each)),
        )
        for each in entries
    ]
    print_listing(
        Listing(heads=("#", "entry\nname", "state", "stored\ncompleted", "what"), rows=rows)
    )


def _lines(*said: str) -> tuple[str, ...]:
    """One below the other; an entry without a second line takes one."""
    return tuple(filter(None, said))


def _what(entry: Facts) -> str:
    detail = {} if entry["type"] == _AWAKEABLE else dict(entry["detail"])
    place = [detail.pop(name) for name in ("service_name", "key", "handler_name") if name in detail]
    said = ["/".join(place), *(f"{name}: {_plain(value)}" for name, value in detail.items())]
    return "; ".join(filter(None, (*said, _result(entry["result"]))))


def _result(result: Facts | None) -> str:
    if result is None or result.get("empty"):
        return ""
    if failure := result.get("failure"):
        return f"failed with {failure['code']}: {failure['message']}"
    return f"keys: {', '.join(result['keys'])}" if "keys" in result else str(result["value"])


def _error(error: Facts | None) -> str:
    if error is None:
        return ""
    entry = ", ".join(filter(None, (error.get("type"), error.get("name"))))
    of = "" if error.get("index") is None else f" at entry {error['index']}"
    of += f" ({entry})" if entry else ""
    return f"{_time(error['at'], _FULL)}, {error['code']}{of}: {error['message']}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(text: str) -> str:
    told = " ".join(text.split())
    return told if len(told) <= _SAID else f"{told[:_SAID]}…"


def _time(at: str | None, form: str) -> str:
    if at is None:
        return ""
    try:
        shown = datetime.fromisoformat(at).strftime(form)
    except ValueError:
        # Of a runtime that is none; it is printed as it is told.
        return at
    return shown[:-3] if form == _FINE else shown
