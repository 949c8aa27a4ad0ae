"""Lines of many tenants, sorted tenant by tenant; what does not fit into memory is on disk."""

from __future__ import annotations

import heapq
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

MEMORY = 128 * 1024 * 1024
"""The characters that are held in memory."""
_BLOCK = 256 * 1024


@dataclass(frozen=True)
class _Run:
    """Lines that were written to disk together, sorted within each tenant."""

    file: IO[bytes]
    places: Mapping[str, tuple[int, int]]
    """By tenant, where its lines begin and end."""

    def lines(self, tenant: str) -> Iterator[str]:
        at, end = self.places.get(tenant, (0, 0))
        rest = b""
        while at < end:
            # Several tenants are read at a time, so the file has no one position.
            block = os.pread(self.file.fileno(), min(_BLOCK, end - at), at)
            at += len(block)
            *whole, rest = (rest + block).split(b"\n")
            yield from (each.decode() for each in whole)


@dataclass
class Sorter:
    """Collects lines, which have no line break; to be closed."""

    memory: int = MEMORY
    _held: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _size: int = 0
    _runs: list[_Run] = field(default_factory=list)

    def close(self) -> None:
        """Free the disk."""
        for run in self._runs:
            run.file.close()

    def add(self, tenant: str, lines: Iterable[str]) -> None:
        """Take some lines of a tenant."""
        held = self._held[tenant]
        for each in lines:
            held.append(each)
            self._size += len(each)
        if self._size > self.memory:
            self._spill()

    def drop(self, tenant: str) -> None:
        """Forget a tenant's lines that are in memory; nobody will ask for the others."""
        self._size -= sum(map(len, self._held.pop(tenant, ())))

    def sorted(self, tenant: str) -> Iterator[str]:
        """The tenant's lines in order; add no more."""
        held = sorted(self._held.get(tenant, ()))
        return heapq.merge(held, *(run.lines(tenant) for run in self._runs))

    def _spill(self) -> None:
        # It has no name, so that nothing is left of it after a crash.
        file = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - `close` closes it
        places = {}
        for tenant in sorted(self._held):
            begin = file.tell()
            file.writelines(f"{each}\n".encode() for each in sorted(self._held[tenant]))
            places[tenant] = begin, file.tell()
        file.flush()
        self._runs.append(_Run(file, places))
        self._held.clear()
        self._size = 0
