"""What the attempts of a runtime share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from durable_invocations.runtime.http.client import HttpClient
from durable_invocations.runtime.settings import RuntimeSettings
from durable_invocations.runtime.store.operations import StoreOperation
from durable_invocations.runtime.timers import Clock

T = TypeVar("T")


class Put(Protocol):
    """Queues an operation after earlier ones."""

    def __call__(self, operation: StoreOperation[T]) -> asyncio.Future[T]: ...


@dataclass(frozen=True, kw_only=True)
class AttemptContext:
    """What attempts share."""

    client: HttpClient
    put: Put
    settings: RuntimeSettings
    clock: Clock
    monotonic: Callable[[], float]
