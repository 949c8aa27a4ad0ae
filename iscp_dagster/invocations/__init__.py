"""Durable, journaled invocations of handlers: the protocol, both of its sides, and the runtime.

Users write services with the names exported here; docs/services.md shows how.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iscp_dagster.invocations.serving.app import service_app
    from iscp_dagster.invocations.serving.attempts.running import RunRetry
    from iscp_dagster.invocations.serving.calls import KeyedRequest, WorkflowRun
    from iscp_dagster.invocations.serving.context import Context
    from iscp_dagster.invocations.serving.declared.serde import BYTES
    from iscp_dagster.invocations.serving.declared.services import Service, VirtualObject, Workflow
    from iscp_dagster.invocations.serving.errors import RetryableError, TerminalError

__all__ = [
    "BYTES",
    "Context",
    "KeyedRequest",
    "RetryableError",
    "RunRetry",
    "Service",
    "TerminalError",
    "VirtualObject",
    "Workflow",
    "WorkflowRun",
    "service_app",
]

# The rooms below import this package, and need none of these.
_PLACES = {
    "BYTES": "declared.serde",
    "Context": "context",
    "KeyedRequest": "calls",
    "RetryableError": "errors",
    "RunRetry": "attempts.running",
    "Service": "declared.services",
    "TerminalError": "errors",
    "VirtualObject": "declared.services",
    "Workflow": "declared.services",
    "WorkflowRun": "calls",
    "service_app": "app",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.serving.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
