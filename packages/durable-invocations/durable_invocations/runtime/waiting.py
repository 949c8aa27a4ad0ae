"""Futures of this process that wait for invocations to end."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

from durable_invocations.protocol.results import Result, Value

MOST_WATCHED = 1_000
"""The most invocations that are looked up in the database at once."""
MOST_RECENT = 256
"""Results that are kept for requests right after the end."""
_SMALL = 16_384


class ResultFutures:
    """Futures by invocation. All methods belong to one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[Result | None]]] = defaultdict(list)
        self._recent: OrderedDict[str, Result] = OrderedDict()

    @contextmanager
    def open_future(self, id_: str) -> Iterator[asyncio.Future[Result | None]]:
        """A future of the invocation's result; None if the invocation was forgotten.

        The future is removed at the end of the block.
        """
        future: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()
        self._waiting[id_].append(future)
        if id_ in self._recent:
            future.set_result(self._recent[id_])
        try:
            yield future
        finally:
            self._remove_future(id_, future)

    def set_results(self, results: Mapping[str, Result]) -> None:
        """Resolve the futures of invocations that ended."""
        for id_, result in results.items():
            self._keep_recent(id_, result)
            for future in self._waiting.get(id_, ()):
                if not future.done():
                    future.set_result(result)

    def set_gone(self, ids: Collection[str]) -> None:
        """Resolve the futures of forgotten invocations with None."""
        for future in (future for id_ in ids for future in self._waiting.get(id_, ())):
            if not future.done():
                future.set_result(None)

    def list_watched(self) -> list[str]:
        """Invocations to look up; if there are too many, others at each call."""
        watched = list(islice(self._waiting, MOST_WATCHED))
        if len(self._waiting) > MOST_WATCHED:
            for id_ in watched:
                self._waiting[id_] = self._waiting.pop(id_)
        return watched

    def _keep_recent(self, id_: str, result: Result) -> None:
        if isinstance(result, Value) and len(result.value) > _SMALL:
            return
        self._recent[id_] = result
        if len(self._recent) > MOST_RECENT:
            self._recent.popitem(last=False)

    def _remove_future(self, id_: str, future: asyncio.Future[Result | None]) -> None:
        futures = self._waiting[id_]
        futures.remove(future)
        if not futures:
            del self._waiting[id_]
