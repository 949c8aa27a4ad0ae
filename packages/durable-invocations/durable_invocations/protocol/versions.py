"""Versions of the protocol in content types, and of manifests in Accept."""

from __future__ import annotations

import re
from collections.abc import Iterable

from durable_invocations.protocol import kinds
from durable_invocations.protocol.frames import Frame

LOWEST = 1
NEWEST = 3
MANIFESTS = (2, 1)
"""Versions of the manifest, the preferred one first."""
_INVOCATION = re.compile(r"application/vnd\.restate\.invocation\.v([1-9]\d{0,8})")


def format_content_type(version: int) -> str:
    """The content type of streams in this version of the protocol."""
    return f"application/vnd.restate.invocation.v{version}"


def parse_version(header: str | None) -> int | None:
    """The version that a content type names; None unless it is 1 to 3."""
    match = _INVOCATION.fullmatch(_strip_parameters(header or ""))
    version = int(match[1]) if match else 0
    return version if LOWEST <= version <= NEWEST else None


def format_manifest_type(version: int) -> str:
    """The content type of manifests in this version."""
    return f"application/vnd.restate.endpointmanifest.v{version}+json"


def choose_manifest_version(accept: str | None) -> int | None:
    """The manifest version to answer an Accept with; None if none is acceptable.

    A client without Accept gets version 1, which the oldest ones expect.
    """
    if not (accept or "").strip():
        return min(MANIFESTS)
    weight_by_type = dict(_parse_weights((accept or "").split(",")))
    ranked = [
        (weight_by_type.get(format_manifest_type(version), 0.0), version) for version in MANIFESTS
    ]
    if max(ranked)[0]:
        return max(ranked)[1]
    wildcard = max(weight_by_type.get("*/*", 0.0), weight_by_type.get("application/*", 0.0))
    return min(MANIFESTS) if wildcard else None


def _parse_weights(parts: Iterable[str]) -> Iterable[tuple[str, float]]:
    for part in parts:
        match = re.search(r";\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*(?:;|$)", part)
        yield _strip_parameters(part), float(match[1]) if match else 1.0


def _strip_parameters(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def get_needed_version(entry: Frame) -> int:
    """The first version of the protocol that has this entry with its fields."""
    if entry.code in kinds.CALLS:
        keyed = entry.message().HasField("idempotency_key")
        return kinds.CANCEL_INVOCATION.since if keyed else LOWEST
    return entry.kind.since
