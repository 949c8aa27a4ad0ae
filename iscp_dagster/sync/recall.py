"""What an iteration's claims go by of the batches before."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from iscp_dagster.joblog.iterations import Iteration, Recall
from iscp_dagster.model.batch import BatchRecord
from iscp_dagster.model.errors import IscpError, UnavailableError
from iscp_dagster.model.jobs import Job, JobKey
from iscp_dagster.sync.consumers import index_of, is_index
from iscp_dagster.sync.ledger import Ledger
from iscp_dagster.sync.source import Source


def recalled(
    source: Source, iteration: Iteration
) -> tuple[Ledger, Recall, UnavailableError | None]:
    """The iteration's states, what claims go by, and why the state store cannot be read.

    In the last case the jobs are to be claimed and to fail, temporarily whatever it is: none of
    them is the cause.
    """
    engine, ledger, unread = source.engine, Ledger(None), None
    previous: Mapping[JobKey, BatchRecord] = {}
    try:
        ledger = Ledger(engine.states() if engine.states else None)
        previous = ledger.previous(engine.log, iteration)
    except IscpError as error:
        unread = UnavailableError(str(error))
    recall = Recall(
        previous=previous,
        unrepeatable=_unrepeatable(source, iteration, previous),
        tolerate_state_mismatch=engine.tolerate_state_mismatch,
        unread=unread is not None,
    )
    return ledger, recall, unread


def _unrepeatable(
    source: Source, iteration: Iteration, previous: Mapping[JobKey, BatchRecord]
) -> frozenset[JobKey]:
    """The jobs with a batch that may be written in part, and that nobody can read again.

    Of an index with a key a snapshot replaces every row of it; so it does of one without, unless
    that is to set aside what cannot be delivered.
    """
    if source.table.keys:
        return frozenset()
    jobs = source.engine.log.jobs(table_id=iteration.table_id, accounts=iteration.tenants)
    found = set()
    for job in jobs:
        if job.key in iteration.jobs and job.batch is not None and _buries(source, job):
            # A source that cannot be read fails its jobs later, where they are claimed.
            with suppress(IscpError):
                if source.unrepeatable(previous.get(job.key, job.batch), iteration.to):
                    found.add(job.key)
    return frozenset(found)


def _buries(source: Source, job: Job) -> bool:
    info = job.spec.detail.consumer
    with suppress(IscpError):
        return is_index(info) and index_of(source.table, info).errors == "dead_letter"
    return False
