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
class _SpillFile:
    """Lines that were written to disk together, sorted within each tenant."""

    file: IO[bytes]
    places: Mapping[str, tuple[int, int]]
    """By tenant, where its lines begin and end."""

    def read_lines(self, tenant: str) -> Iterator[str]:
        at, end = self.places.get(tenant, (0, 0))
        rest = b""
        while at < end:
            # Several tenants are read at a time, so the file has no one position.
            block = os.pread(self.file.fileno(), min(_BLOCK, end - at), at)
            at += len(block)
            *lines, rest = (rest + block).split(b"\n")
            yield from (line.decode() for line in lines)


@dataclass
class Sorter:
    """Collects lines, which have no line break; the caller closes it."""

    memory: int = MEMORY
    _lines: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _size: int = 0
    _runs: list[_SpillFile] = field(default_factory=list)

    def close(self) -> None:
        """Free the disk."""
        for run in self._runs:
            run.file.close()

    def add(self, tenant: str, lines: Iterable[str]) -> None:
        """Take some lines of a tenant."""
        stored = self._lines[tenant]
        for line in lines:
            stored.append(line)
            self._size += len(line)
        if self._size > self.memory:
            self._spill_to_disk()

    def drop(self, tenant: str) -> None:
        """Forget a tenant's lines in memory; its others are never read."""
        self._size -= sum(map(len, self._lines.pop(tenant, ())))

    def read_sorted(self, tenant: str) -> Iterator[str]:
        """The tenant's lines in order; add no more."""
        in_memory = sorted(self._lines.get(tenant, ()))
        return heapq.merge(in_memory, *(run.read_lines(tenant) for run in self._runs))

    def _spill_to_disk(self) -> None:
        # It has no name, so that nothing is left of it after a crash.
        file = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - `close` closes it
        byte_ranges = {}
        for tenant in sorted(self._lines):
            begin = file.tell()
            file.writelines(f"{line}\n".encode() for line in sorted(self._lines[tenant]))
            byte_ranges[tenant] = begin, file.tell()
        file.flush()
        self._runs.append(_SpillFile(file, byte_ranges))
        self._lines.clear()
        self._size = 0
