"""The table of message types for docs/invocation-protocol.md: `python -m` this module."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

from durable_invocations.protocol import kinds
from durable_invocations.protocol.kinds import KINDS, Kind
from durable_invocations.protocol.results import list_variants

DOES: Mapping[Kind, str] = MappingProxyType(
    {
        kinds.START: "begins a stream: the invocation's id, key, state, and how many entries come",
        kinds.COMPLETION: "the result of an entry, by its index",
        kinds.SUSPENSION: "ends a stream: continue once one of these entries is completed",
        kinds.ERROR: "ends a stream: the attempt failed",
        kinds.ENTRY_ACK: "an entry is stored, by its index",
        kinds.END: "ends a stream, and the invocation",
        kinds.INPUT: "what the handler is invoked with; always entry 0",
        kinds.OUTPUT: "what the handler returns, or its terminal failure",
        kinds.GET_STATE: "read a key of the object's state",
        kinds.SET_STATE: "write a key of the object's state",
        kinds.CLEAR_STATE: "remove a key of the object's state",
        kinds.CLEAR_ALL_STATE: "remove all of the object's state",
        kinds.GET_STATE_KEYS: "list the keys of the object's state",
        kinds.GET_PROMISE: "wait for a workflow's promise",
        kinds.PEEK_PROMISE: "read a workflow's promise, if it has a value",
        kinds.COMPLETE_PROMISE: "complete a workflow's promise; fails if it has a value",
        kinds.SLEEP: "wait until a time",
        kinds.CALL: "invoke another handler, and wait for its output",
        kinds.ONE_WAY_CALL: "invoke another handler, now or at a time, without waiting",
        kinds.AWAKEABLE: "wait for a value that others give by the awakeable's id",
        kinds.COMPLETE_AWAKEABLE: "give an awakeable its value",
        kinds.RUN: "the result of a side effect that the handler executed",
        kinds.CANCEL_INVOCATION: "cancel an invocation",
        kinds.GET_CALL_INVOCATION_ID: "the id of an invocation that this one called",
        kinds.ATTACH_INVOCATION: "wait for the output of an invocation that exists",
        kinds.GET_INVOCATION_OUTPUT: "the output of an invocation, if it has ended",
    }
)


def render_lines() -> list[str]:
    """The table in Markdown, a line each."""
    heading = "| type | message | entry | result | may be refused | since | what it says or does |"
    return [heading, "|---|---|---|---|---|---|---|", *map(_render_row, KINDS.values())]


def _render_row(kind: Kind) -> str:
    forms = [form for form in ("empty", "value", "failure") if form in list_variants(kind)]
    cells = (
        *(f"`0x{kind.code:04X}`", kind.name, "yes" if kind.entry else ""),
        ", ".join(forms) if kind.completable else "",
        *("yes" if kind.fallible else "", f"v{kind.since}", DOES[kind]),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join((*render_lines(), "")))
