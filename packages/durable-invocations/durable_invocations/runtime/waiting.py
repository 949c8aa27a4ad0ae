"""Who waits in this process for the end of an invocation."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

from durable_invocations.protocol.results import Result, Value

MOST_WATCHED = 1_000
"""Invocations that are looked for in the database at once."""
MOST_RECENT = 256
"""Results that are kept for who asks right after the end."""
_SMALL = 16_384


class Waiting:
    """Futures by invocation. All methods belong to one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[Result | None]]] = defaultdict(list)
        self._recent: OrderedDict[str, Result] = OrderedDict()

    @contextmanager
    def future(self, id_: str) -> Iterator[asyncio.Future[Result | None]]:
        """Gets the invocation's result when it is told, or was a moment ago; None if it is gone.

        Forgotten at the end of the block.
        """
        made: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()
        self._waiting[id_].append(made)
        if id_ in self._recent:
            made.set_result(self._recent[id_])
        try:
            yield made
        finally:
            self._forget(id_, made)

    def ended(self, results: Mapping[str, Result]) -> None:
        """Tell how invocations ended to those who wait for them."""
        for id_, result in results.items():
            self._keep(id_, result)
            for each in self._waiting.get(id_, ()):
                if not each.done():
                    each.set_result(result)

    def gone(self, ids: Collection[str]) -> None:
        """Tell those who wait for these invocations that they were forgotten."""
        for each in (each for id_ in ids for each in self._waiting.get(id_, ())):
            if not each.done():
                each.set_result(None)

    def watched(self) -> list[str]:
        """Invocations to look for, others at each call if there are too many for one."""
        chosen = list(islice(self._waiting, MOST_WATCHED))
        if len(self._waiting) > MOST_WATCHED:
            for each in chosen:
                self._waiting[each] = self._waiting.pop(each)
        return chosen

    def _keep(self, id_: str, result: Result) -> None:
        if isinstance(result, Value) and len(result.value) > _SMALL:
            return
        self._recent[id_] = result
        if len(self._recent) > MOST_RECENT:
            self._recent.popitem(last=False)

    def _forget(self, id_: str, made: asyncio.Future[Result | None]) -> None:
        held = self._waiting[id_]
        held.remove(made)
        if not held:
            del self._waiting[id_]
