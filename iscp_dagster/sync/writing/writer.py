"""Writes the rows of scans into index tables and hands them to consumers, and publishes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.commands import (
    Checked,
    Part,
    Placed,
    ScanFailed,
    Scanned,
    Served,
)
from iscp_dagster.sync.iteration.narrowing import Trial
from iscp_dagster.sync.iteration.outcomes import Delivery
from iscp_dagster.sync.reading.reader import Reader
from iscp_dagster.sync.writing.checking import checked
from iscp_dagster.sync.writing.placing import placed, serve
from iscp_dagster.sync.writing.scan import clear, scanned


@dataclass(frozen=True)
class IndexWriter:
    """The one that writes into index tables; in Dagster their IO manager.

    Each method may be called again with the same effect.
    """

    deployment: Deployment

    def write(self, reader: Reader, trial: Trial) -> Scanned | ScanFailed:
        """Read what the claims of a trial share, once, and write it for each of them.

        A snapshot is staged until `discard`.
        """
        return scanned(reader, trial)

    def check(self, reader: Reader, part: Part) -> Checked:
        """Compare what an index holds with what was sent; settle steps that write nothing."""
        return checked(reader, part)

    def place(self, deliveries: Sequence[Delivery]) -> Placed:
        """Put the rows of one index in place. A failure is its job's own."""
        return placed(self.deployment, deliveries)

    def serve(self, deliveries: Sequence[Delivery]) -> Served:
        """Have readers see the index's generation, if it is complete."""
        serve(self.deployment, deliveries[0])
        return Served(tuple(deliveries), self.deployment.clock())

    def discard(self, written: Scanned) -> None:
        """Drop what is still staged: it is in place, or never will be."""
        clear({part.job: part.written for part in written.parts})
