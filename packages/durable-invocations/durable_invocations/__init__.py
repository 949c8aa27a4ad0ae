"""Durable, journaled invocations of handlers: the protocol, both of its sides, and the runtime.

Users write services, serve a runtime, and invoke handlers with the names exported here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durable_invocations.app import runtime_app
    from durable_invocations.client.client import Client
    from durable_invocations.client.errors import InvocationFailedError, InvocationRefusedError
    from durable_invocations.serving.app import service_app
    from durable_invocations.serving.attempts.running import RunRetry
    from durable_invocations.serving.calls import IdempotentRequest, WorkflowRun
    from durable_invocations.serving.context import Context
    from durable_invocations.serving.declarations.serde import BYTES
    from durable_invocations.serving.declarations.services import Service, VirtualObject, Workflow
    from durable_invocations.serving.errors import RetryableError, TerminalError

__all__ = [
    "BYTES",
    "Client",
    "Context",
    "IdempotentRequest",
    "InvocationFailedError",
    "InvocationRefusedError",
    "RetryableError",
    "RunRetry",
    "Service",
    "TerminalError",
    "VirtualObject",
    "Workflow",
    "WorkflowRun",
    "runtime_app",
    "service_app",
]

# The rooms below import this package, and need none of these.
_PLACES = {
    "BYTES": "serving.declarations.serde",
    "Client": "client.client",
    "Context": "serving.context",
    "IdempotentRequest": "serving.calls",
    "InvocationFailedError": "client.errors",
    "InvocationRefusedError": "client.errors",
    "RetryableError": "serving.errors",
    "RunRetry": "serving.attempts.running",
    "Service": "serving.declarations.services",
    "TerminalError": "serving.errors",
    "VirtualObject": "serving.declarations.services",
    "Workflow": "serving.declarations.services",
    "WorkflowRun": "serving.calls",
    "runtime_app": "app",
    "service_app": "serving.app",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
