"""The comparison of compare-and-set: a write's outcome, by what is found under its key.

States are compared as text, since moments are equal if only their versions are.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection
from typing import Any

from iscp_dagster.batches.protocol import Held, StateKey, StateWrite
from iscp_dagster.model.batch import BatchRecord, Layout, Phase, Range
from iscp_dagster.model.errors import ConfigError, FenceError
from iscp_dagster.model.moment import Moment


def state_id(key: StateKey) -> str:
    """The key as 64 characters, however long its names are."""
    parts = [key.tenant, key.table_id, key.job_name, key.registration]
    return hashlib.sha256(_json(parts).encode()).hexdigest()


def by_id(keys: Collection[StateKey]) -> dict[str, StateKey]:
    """The keys by their ids, in the ids' order."""
    return dict(sorted((state_id(key), key) for key in keys))


def to_text(held: Held) -> str:
    """The held state as JSON; equal states have equal texts."""
    return _json(
        {
            "fence": held.fence,
            "holder": held.holder,
            "from": str(held.record.range.from_),
            "to": str(held.record.range.to),
            "phase": held.record.phase.value,
            "layout": dict(held.record.layout),
        }
    )


def from_text(text: str) -> Held:
    """The held state that `to_text` gave."""
    value = json.loads(text)
    return Held(
        record=BatchRecord(
            range=Range(from_=Moment.parse(value["from"]), to=Moment.parse(value["to"])),
            phase=Phase(value["phase"]),
            layout=value["layout"],
        ),
        fence=value["fence"],
        holder=value["holder"],
    )


def layout_text(layout: Layout) -> str:
    """The layout as JSON."""
    return _json(dict(layout))


def settled(write: StateWrite, found: Held | None) -> Held | FenceError | None:
    """The outcome of the write if it is done or lost; None while it is pending."""
    if found is not None and to_text(found) == to_text(write.held):
        return found
    return None if same(found, write.seen) else lost(write, found)


def same(one: Held | None, other: Held | None) -> bool:
    """Whether both are None, or equal down to the microsecond and the layout."""
    if one is None or other is None:
        return one is other
    return to_text(one) == to_text(other)


def lost(write: StateWrite, found: Held | None) -> FenceError:
    """The error for a write that came too late."""
    return FenceError(
        f"State of job {write.key}: run {write.holder} saw {_named(write.seen)}, but found "
        f"{_named(found)}; another run has taken the state, so this run must stop here."
    )


def checked(writes: Collection[StateWrite]) -> list[StateWrite]:
    """The writes in the order of their ids. Raises ConfigError for one that no store takes."""
    (key, times), *_ = [*Counter(write.key for write in writes).most_common(1), (None, 0)]
    if times > 1:
        raise ConfigError(f"State of job {key}: written {times} times in one call; write it once.")
    for write in writes:
        _check_layout(write)
    return sorted(writes, key=lambda write: state_id(write.key))


def _check_layout(write: StateWrite) -> None:
    try:
        text = layout_text(write.record.layout)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"State of job {write.key}: its layout is not JSON ({error}).") from None
    if json.loads(text) != write.record.layout:
        raise ConfigError(
            f"State of job {write.key}: its layout {write.record.layout} would change "
            "when stored as JSON; use JSON's types, and text as names."
        )


def _named(held: Held | None) -> str:
    return "nothing" if held is None else f"fence {held.fence} of run {held.holder}"


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
