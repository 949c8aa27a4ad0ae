"""The comparison of compare-and-set: a write's outcome, from the state stored under its key.

States are compared as text, since moments are equal if only their versions are.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection
from typing import Any

from iscp_dagster.batchstates.protocol import StateKey, StateWrite, StoredState
from iscp_dagster.model.batch import BatchRecord, Layout, Phase, Range
from iscp_dagster.model.errors import ConfigError, FenceError
from iscp_dagster.model.moment import Moment


def compute_state_id(key: StateKey) -> str:
    """The key as 64 characters, however long its names are."""
    parts = [key.tenant, key.table_id, key.job_name, key.registration]
    return hashlib.sha256(_to_json(parts).encode()).hexdigest()


def map_by_id(keys: Collection[StateKey]) -> dict[str, StateKey]:
    """The keys by their ids, in the ids' order."""
    return dict(sorted((compute_state_id(key), key) for key in keys))


def to_text(state: StoredState) -> str:
    """The state as JSON; equal states have equal texts."""
    return _to_json(
        {
            "fence": state.fence,
            "holder": state.holder,
            "from": str(state.record.range.from_),
            "to": str(state.record.range.to),
            "phase": state.record.phase.value,
            "layout": dict(state.record.layout),
        }
    )


def from_text(text: str) -> StoredState:
    """The state that `to_text` wrote."""
    value = json.loads(text)
    return StoredState(
        record=BatchRecord(
            range=Range(from_=Moment.parse(value["from"]), to=Moment.parse(value["to"])),
            phase=Phase(value["phase"]),
            layout=value["layout"],
        ),
        fence=value["fence"],
        holder=value["holder"],
    )


def format_layout(layout: Layout) -> str:
    """The layout as JSON."""
    return _to_json(dict(layout))


def find_settled_outcome(
    write: StateWrite, stored: StoredState | None
) -> StoredState | FenceError | None:
    """Return the outcome of a write that is applied or came too late; None if it may be applied."""
    if stored is not None and to_text(stored) == to_text(write.new_state):
        return stored
    return None if is_same(stored, write.expected) else make_lost_error(write, stored)


def is_same(state: StoredState | None, other: StoredState | None) -> bool:
    """Whether both are None, or equal down to the microsecond and the layout."""
    if state is None or other is None:
        return state is other
    return to_text(state) == to_text(other)


def make_lost_error(write: StateWrite, stored: StoredState | None) -> FenceError:
    """The error for a write that came too late."""
    return FenceError(
        f"State of job {write.key}: run {write.holder} saw {_describe_state(write.expected)}, but "
        f"found {_describe_state(stored)}; another run has taken the state, so this run must stop "
        "here."
    )


def check_and_sort_writes(writes: Collection[StateWrite]) -> list[StateWrite]:
    """The writes in the order of their ids. Raises ConfigError for an invalid write."""
    (key, times), *_ = [*Counter(write.key for write in writes).most_common(1), (None, 0)]
    if times > 1:
        raise ConfigError(f"State of job {key}: written {times} times in one call; write it once.")
    for write in writes:
        _check_layout(write)
    return sorted(writes, key=lambda write: compute_state_id(write.key))


def _check_layout(write: StateWrite) -> None:
    try:
        text = format_layout(write.record.layout)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"State of job {write.key}: its layout is not JSON ({error}).") from None
    if json.loads(text) != write.record.layout:
        raise ConfigError(
            f"State of job {write.key}: its layout {write.record.layout} would change "
            "when stored as JSON; use JSON's types, and text as names."
        )


def _describe_state(state: StoredState | None) -> str:
    return "nothing" if state is None else f"fence {state.fence} of run {state.holder}"


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
