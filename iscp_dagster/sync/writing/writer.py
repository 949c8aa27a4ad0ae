"""Writes the rows of scans into index tables and hands them to consumers, and publishes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration import commands
from iscp_dagster.sync.iteration.narrowing import ScanGroup
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from iscp_dagster.sync.reading.reader import SourceReader
from iscp_dagster.sync.writing.consumer_claims import find_lost_claims
from iscp_dagster.sync.writing.scan import drop_staging_tables, scan_group
from iscp_dagster.sync.writing.serving import serve_when_built
from iscp_dagster.sync.writing.settling import settle_scan

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexWriter:
    """Writes into index tables; in Dagster, the indexes' IO manager uses it.

    Each method may be called again with the same effect.
    """

    deployment: Deployment

    def write(
        self, reader: SourceReader, group: ScanGroup
    ) -> commands.ScanFinished | commands.ScanFailed:
        """Read what the claims of a group share, once, and write it for each of them.

        A snapshot is staged until `discard`.
        """
        return scan_group(reader, group)

    def settle(self, reader: SourceReader, result: commands.ScanResult) -> commands.ScanSettled:
        """Compare what an index holds with what was sent; settle steps that write nothing."""
        return settle_scan(reader, result)

    def place(self, deliveries: Sequence[RowDelivery]) -> commands.RowsPlaced:
        """Put the rows of one index and one reading in place. Jobs are independent.

        A job that another writer took gets a FenceError; a published delivery is skipped.
        """
        errors: dict[JobKey, IscpError] = {}
        remaining = [delivery for delivery in deliveries if delivery.published is None]
        try:
            errors |= find_lost_claims(
                self.deployment.log, [delivery.claim for delivery in remaining]
            )
            errors |= _replace_partitions(
                [delivery for delivery in remaining if delivery.claim.key not in errors]
            )
        except IscpError as error:
            errors |= {
                delivery.claim.key: error
                for delivery in remaining
                if delivery.claim.key not in errors
            }
        return commands.RowsPlaced(tuple(deliveries), errors)

    def serve(self, deliveries: Sequence[RowDelivery]) -> commands.IndexServed:
        """Have readers see the index's generation if it is complete; if not, a later one does."""
        first = deliveries[0]
        if first.store is not None:
            try:
                serve_when_built(self.deployment, first.claim.name, first.store)
            except IscpError as error:
                later = "will be served by a later iteration"
                LOGGER.warning("%s %s: %s", first.claim.name, later, error)
        return commands.IndexServed(tuple(deliveries), self.deployment.clock())

    def discard(self, written: commands.ScanFinished) -> None:
        """Drop what is still staged: it is in place, or never will be."""
        drop_staging_tables({result.job: result.written for result in written.results})


def _replace_partitions(deliveries: Sequence[RowDelivery]) -> Mapping[JobKey, IscpError]:
    """Put the staged tenants in place and return the errors."""
    staged = {delivery.tenant: delivery for delivery in deliveries if delivery.replaces}
    if not staged:
        return {}
    first = next(iter(staged.values()))
    assert first.store is not None
    if first.written.request.image_source is not None:
        first.store.stage_history_starts(staged, first.to, [first.gap] if first.gap else [])
    errors = first.store.publish_tenants(
        {tenant: delivery.inserted for tenant, delivery in staged.items()},
        version=first.to.version,
        registrations={tenant: delivery.claim.registration for tenant, delivery in staged.items()},
    )
    return {staged[tenant].claim.key: error for tenant, error in errors.items()}
