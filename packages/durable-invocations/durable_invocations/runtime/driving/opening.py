"""What an attempt's stream begins with: the Start, then the journal."""

from __future__ import annotations

from durable_invocations.protocol import ids
from durable_invocations.protocol.failures import WITH_DELAY, write_run_attempts
from durable_invocations.protocol.frames import Frame, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.runtime.store.outcomes import Claimed


def build_opening(claimed: Claimed, *, version: int, now: int) -> list[Frame]:
    """The frames of the Start and of the replay, in this version of the protocol."""
    start = pb.StartMessage(
        id=ids.parse_id(claimed.id),
        debug_id=claimed.id,
        known_entries=len(claimed.journal),
        partial_state=claimed.partial_state,
        key=claimed.key,
    )
    for key, value in claimed.state:
        start.state_map.add(key=key, value=value)
    if version >= WITH_DELAY:
        start.retry_count_since_last_stored_entry = claimed.retries
        start.duration_since_last_stored_entry = max(0, now - claimed.stored_at)
        start.MergeFromString(write_run_attempts(claimed.run_attempts))
    return [make_frame(start), *claimed.journal]
