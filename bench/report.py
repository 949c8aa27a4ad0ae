"""Collects timings and prints medians and ratios."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Report:
    """Seconds by measurement, and one line for each comparison."""

    title: str
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    lines: list[str] = field(default_factory=list)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[what].append(time.perf_counter() - started)

    def median(self, what: str) -> float:
        return median(self.seconds[what])

    def row(self, what: str, rows: int) -> None:
        """Add a line with a median and its rows a second."""
        taken = self.median(what)
        each = " ".join(f"{value:.2f}" for value in self.seconds[what])
        self.lines.append(f"{what:<52}{taken:8.2f} s {rows / taken:12,.0f} rows/s   [{each}]")

    def ratio(self, what: str, value: float, target: str) -> None:
        self.lines.append(f"  = {what:<48}{value:8.2f} x   target: {target}")

    def fact(self, what: str, value: str) -> None:
        self.lines.append(f"{what:<52}{value}")

    def text(self) -> str:
        return "\n".join([self.title, *self.lines])
