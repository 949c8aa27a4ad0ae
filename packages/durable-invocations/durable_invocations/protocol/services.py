"""Kinds of services and handlers, as in the manifest."""

from __future__ import annotations

from enum import Enum


class ServiceKind(str, Enum):
    """Whether invocations have keys, and whether a key has a single run."""

    SERVICE = "SERVICE"
    OBJECT = "VIRTUAL_OBJECT"
    WORKFLOW = "WORKFLOW"

    @property
    def keyed(self) -> bool:
        return self is not ServiceKind.SERVICE


class HandlerKind(str, Enum):
    """Whether invocations of a key exclude each other; a plain service's are SHARED."""

    EXCLUSIVE = "EXCLUSIVE"
    SHARED = "SHARED"
    WORKFLOW = "WORKFLOW"

    @property
    def writes(self) -> bool:
        """Whether the handler may change the state of its key."""
        return self is not HandlerKind.SHARED


class Mode(str, Enum):
    """How messages flow."""

    FULL_DUPLEX = "BIDI_STREAM"
    REQUEST_RESPONSE = "REQUEST_RESPONSE"
