"""Collects timings and prints medians and ratios."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median


@dataclass
class BenchReport:
    """Seconds by measurement, and one line for each comparison."""

    title: str
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    lines: list[str] = field(default_factory=list)

    @contextmanager
    def measure_time(self, label: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[label].append(time.perf_counter() - started)

    def compute_median(self, label: str) -> float:
        return median(self.seconds[label])

    def add_rate(self, label: str, rows: int) -> None:
        """Add a line with a median and its rows a second."""
        seconds = self.compute_median(label)
        values = " ".join(f"{value:.2f}" for value in self.seconds[label])
        self.lines.append(
            f"{label:<52}{seconds:8.2f} s {rows / seconds:12,.0f} rows/s   [{values}]"
        )

    def add_time(self, label: str) -> None:
        """Add a line with a median and the times behind it."""
        values = " ".join(f"{value:.3f}" for value in self.seconds[label])
        self.lines.append(f"{label:<52}{self.compute_median(label):8.3f} s   [{values}]")

    def add_ratio(self, label: str, value: float, target: str) -> None:
        self.lines.append(f"  = {label:<48}{value:8.2f} x   target: {target}")

    def add_fact(self, label: str, value: str) -> None:
        self.lines.append(f"{label:<52}{value}")

    def render_text(self) -> str:
        return "\n".join([self.title, *self.lines])
