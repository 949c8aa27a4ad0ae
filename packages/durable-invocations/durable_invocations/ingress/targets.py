"""Parses the handler in a path: `/{service}/{handler}` or `/{object}/{key}/{handler}`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from durable_invocations.ingress.refusals import BAD, NOT_FOUND, RefusedError

SEND = "send"
LONGEST = 4_096
"""Characters of a segment, such as a key."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A handler, and the key if its service is an object or a workflow."""

    service: str
    handler: str
    key: str | None = None


def split_path(path: str | bytes) -> tuple[str, ...]:
    """The path's segments, each decoded by itself: a key may contain `/`, as `%2F`.

    Raises RefusedError (400) if it is not UTF-8, for a NUL, which PostgreSQL cannot store, and for
    an empty or overlong segment.
    """
    raw = path.encode() if isinstance(path, str) else path
    try:
        segments = tuple(
            unquote_to_bytes(segment).decode() for segment in raw.lstrip(b"/").split(b"/")
        )
    except UnicodeDecodeError as error:
        raise RefusedError(BAD, "The path is not UTF-8; encode it as %XX of UTF-8.") from error
    if any(not segment or "\0" in segment or len(segment) > LONGEST for segment in segments):
        raise RefusedError(
            BAD, f"A segment of the path is empty, longer than {LONGEST:,}, or contains a NUL."
        )
    return segments


def match_target(parts: tuple[str, ...], *, keyed: bool) -> Target | None:
    """The target that exactly these segments name; `keyed` if the service has keys."""
    if keyed and len(parts) == _WITH_KEY:
        return Target(service=parts[0], key=parts[1], handler=parts[2])
    if not keyed and len(parts) == _WITH_KEY - 1:
        return Target(service=parts[0], handler=parts[1])
    return None


def parse_call(parts: tuple[str, ...], *, keyed: bool) -> tuple[Target, bool]:
    """The target of a request to invoke, and whether its path ends in `/send`.

    Raises RefusedError (404) with the expected form.
    """
    if resolved := match_target(parts, keyed=keyed):
        return resolved, False
    if parts[-1] == SEND and (resolved := match_target(parts[:-1], keyed=keyed)):
        return resolved, True
    form = f"/{parts[0]}/{{key}}/{{handler}}" if keyed else f"/{parts[0]}/{{handler}}"
    rule = "has a key" if keyed else "has no key"
    raise RefusedError(NOT_FOUND, f"{parts[0]} {rule}: call {form}, or {form}/{SEND}.")


_WITH_KEY = 3
