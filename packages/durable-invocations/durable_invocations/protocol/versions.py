"""Versions: of the protocol in content types, of manifests in Accept, and what each has."""

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


def content_type(version: int) -> str:
    """The content type of streams in this version of the protocol."""
    return f"application/vnd.restate.invocation.v{version}"


def version_of(header: str | None) -> int | None:
    """The version that a content type names; None if it is none of 1 to 3."""
    found = _INVOCATION.fullmatch(_bare(header or ""))
    version = int(found[1]) if found else 0
    return version if LOWEST <= version <= NEWEST else None


def manifest_type(version: int) -> str:
    """The content type of manifests in this version."""
    return f"application/vnd.restate.endpointmanifest.v{version}+json"


def negotiated(accept: str | None) -> int | None:
    """The version of the manifest to answer an Accept with; None if there is none that suits.

    A client that says nothing gets version 1, as the oldest of them do.
    """
    if not (accept or "").strip():
        return min(MANIFESTS)
    wanted = dict(_weighed((accept or "").split(",")))
    weights = [(wanted.get(manifest_type(version), 0.0), version) for version in MANIFESTS]
    if max(weights)[0]:
        return max(weights)[1]
    anything = max(wanted.get("*/*", 0.0), wanted.get("application/*", 0.0))
    return min(MANIFESTS) if anything else None


def _weighed(parts: Iterable[str]) -> Iterable[tuple[str, float]]:
    for part in parts:
        said = re.search(r";\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*(?:;|$)", part)
        yield _bare(part), float(said[1]) if said else 1.0


def _bare(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def needed(entry: Frame) -> int:
    """The first version of the protocol that has this entry with the fields that it uses."""
    if entry.code in kinds.CALLS:
        keyed = entry.message().HasField("idempotency_key")
        return kinds.CANCEL_INVOCATION.since if keyed else LOWEST
    return entry.kind.since
