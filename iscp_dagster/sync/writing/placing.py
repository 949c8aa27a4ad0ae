"""Puts the rows that a scan staged in place, and has readers see them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from iscp_dagster.model.errors import IscpError
from iscp_dagster.model.jobs import JobKey
from iscp_dagster.sync.deployment import Deployment
from iscp_dagster.sync.iteration.commands import Placed
from iscp_dagster.sync.iteration.outcomes import Delivery
from iscp_dagster.sync.writing.serving import serve_when_built
from iscp_dagster.sync.writing.sink import lost

LOGGER = logging.getLogger(__name__)


def placed(deployment: Deployment, deliveries: Sequence[Delivery]) -> Placed:
    """Put rows in place, of one index and one reading. Jobs are independent.

    A job that another writer took is left alone. Does nothing for what is published already.
    """
    wrong: dict[JobKey, IscpError] = {}
    left = [each for each in deliveries if each.published is None]
    try:
        wrong |= lost(deployment.log, [each.claim for each in left])
        wrong |= _put_in_place([each for each in left if each.claim.key not in wrong])
    except IscpError as error:
        wrong |= {each.claim.key: error for each in left if each.claim.key not in wrong}
    return Placed(tuple(deliveries), wrong)


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


def serve(deployment: Deployment, delivery: Delivery) -> None:
    """Have readers see the index's generation if it is complete; a later iteration does, if not."""
    if delivery.store is None:
        return
    try:
        serve_when_built(deployment, delivery.claim.name, delivery.store)
    except IscpError as error:
        LOGGER.warning("%s will be served by a later iteration: %s", delivery.claim.name, error)
