"""Writes the rows of scans into index tables and hands them to consumers, and publishes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration import commands
from iscp_dagster.sync.iteration.narrowing import Trial
from iscp_dagster.sync.iteration.outcomes import Delivery
from iscp_dagster.sync.reading.reader import Reader
from iscp_dagster.sync.writing.checking import checked
from iscp_dagster.sync.writing.scan import clear, scanned
from iscp_dagster.sync.writing.serving import serve_when_built
from iscp_dagster.sync.writing.sink import lost

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexWriter:
    """The one that writes into index tables; in Dagster their IO manager.

    Each method may be called again with the same effect.
    """

    deployment: Deployment

    def write(self, reader: Reader, trial: Trial) -> commands.Scanned | commands.ScanFailed:
        """Read what the claims of a trial share, once, and write it for each of them.

        A snapshot is staged until `discard`.
        """
        return scanned(reader, trial)

    def check(self, reader: Reader, part: commands.Part) -> commands.Checked:
        """Compare what an index holds with what was sent; settle steps that write nothing."""
        return checked(reader, part)

    def place(self, deliveries: Sequence[Delivery]) -> commands.Placed:
        """Put the rows of one index and one reading in place. Jobs are independent.

        A job that another writer took is left alone. Does nothing for what is published already.
        """
        wrong: dict[JobKey, IscpError] = {}
        left = [each for each in deliveries if each.published is None]
        try:
            wrong |= lost(self.deployment.log, [each.claim for each in left])
            wrong |= _put_in_place([each for each in left if each.claim.key not in wrong])
        except IscpError as error:
            wrong |= {each.claim.key: error for each in left if each.claim.key not in wrong}
        return commands.Placed(tuple(deliveries), wrong)

    def serve(self, deliveries: Sequence[Delivery]) -> commands.Served:
        """Have readers see the index's generation if it is complete; if not, a later one does."""
        first = deliveries[0]
        if first.store is not None:
            try:
                serve_when_built(self.deployment, first.claim.name, first.store)
            except IscpError as error:
                later = "will be served by a later iteration"
                LOGGER.warning("%s %s: %s", first.claim.name, later, error)
        return commands.Served(tuple(deliveries), self.deployment.clock())

    def discard(self, written: commands.Scanned) -> None:
        """Drop what is still staged: it is in place, or never will be."""
        clear({part.job: part.written for part in written.parts})


def _put_in_place(deliveries: Sequence[Delivery]) -> Mapping[JobKey, IscpError]:
    """Put the staged tenants in place; returns the errors."""
    staged = {each.tenant: each for each in deliveries if each.replaces}
    if not staged:
        return {}
    first = next(iter(staged.values()))
    assert first.store is not None
    if first.written.reading.transitions is not None:
        first.store.begin(staged, first.to, [first.gap] if first.gap else [])
    refused = first.store.replace(
        {tenant: each.inserted for tenant, each in staged.items()},
        version=first.to.version,
        registrations={tenant: each.claim.registration for tenant, each in staged.items()},
    )
    return {staged[tenant].claim.key: error for tenant, error in refused.items()}
