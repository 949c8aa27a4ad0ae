"""Where the history of a changes index or a trigger begins, and the versions that it lacks."""

from __future__ import annotations

from iscp_dagster.model.consumers.kinds import consumer_kind
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import Beginning
from iscp_dagster.sync.deployment import Deployment


def history(deployment: Deployment, source: SourceTable, job: Job) -> Beginning | None:
    """Where the tenant's history begins; None for a job that keeps none, or one not built."""
    return consumer_kind(job.spec.detail.consumer.type).history(source, job, deployment)
