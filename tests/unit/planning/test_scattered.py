"""Tenants whose watermarks lie at different commits: what one look and one run ask of the log."""

import sqlite3
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from iscp_dagster import Mirror
from iscp_dagster.joblog.iterations import WrittenStep
from iscp_dagster.model.batch import Range
from iscp_dagster.model.states import JobState
from iscp_dagster.upkeep.maintenance import flush_watermarks
from support.jobs.log_rows import log_in_memory
from support.jobs.one_table import write_commit


@contextmanager
def count_statements(log, counts):
    """Add the number of statements that the driver sends in the block.

    A statement with many rows of parameters counts for each.
    """
    sent = []

    def record(connection, cursor, statement, parameters, context, many):
        # A list is of rows; a tuple has the parameters of one statement, also of many VALUES.
        sent.append(len(parameters) if isinstance(parameters, list) else 1)

    sa.event.listen(log.engine, "before_cursor_execute", record)
    try:
        yield
    finally:
        sa.event.remove(log.engine, "before_cursor_execute", record)
    counts.append(sum(sent))


def complete_at_once(log, dispatch):
    """Do to the log what the dispatch's run would, all jobs at once."""
    claims = log.claim_jobs(dispatch.iteration, "run", {}, queued_as=dispatch.name)
    assert not log.complete([WrittenStep(claim=claim, to=claim.range.to) for claim in claims])


@pytest.fixture
def scatter(deployment, source, start, clock):
    def scatter_tenants(number):
        """Return tenants, each brought in step by a separate commit, and a sensor."""
        path = f"{source.path}-{number}"
        indexes = [Mirror(), Mirror(name="two")]
        table = replace(source, path=path, tenant="tenant", indexes=indexes)
        log = log_in_memory(clock=clock)
        tenants = [f"{n:04}" for n in range(number)]
        write_commit(Path(path), 0, tenants, 0)
        sensor = start(table, deployment=replace(deployment, log=log))
        for dispatch in sensor.look().dispatches:
            complete_at_once(log, dispatch)
        for version, tenant in enumerate(tenants, start=1):
            write_commit(Path(path), version, [tenant], version)
        delta_log, moves = sensor.deployment.make_delta_log(table), {}
        for job in log.list_jobs():
            own_commit = delta_log.get_moment(int(job.key.tenant) + 1)
            moves[job.key] = Range(from_=job.watermark, to=own_commit)
        log.flush(moves)
        assert not sensor.look().dispatches
        return tenants, sensor

    return scatter_tenants


def test_the_number_of_statements_does_not_depend_on_tenants(scatter):
    """Neither a flush's, nor those of the look after a commit to all tenants, and of its run."""
    small, large = [], []
    for number, counts in ((20, small), (200, large)):
        tenants, sensor = scatter(number)
        (table,), log = sensor.runner.sources, sensor.deployment.log
        with log.engine.connect() as connection:
            database = connection.connection.driver_connection
        scattered = sqlite3.connect(":memory:")
        database.backup(scattered)
        with count_statements(log, counts):
            flushed = flush_watermarks(sensor.deployment, [table])
        assert flushed.moved_jobs == {table.name: 2 * number - 2}
        scattered.backup(database)
        scattered.close()
        write_commit(Path(table.path), number + 1, tenants, number + 1)
        with count_statements(log, counts):
            (dispatch,) = sensor.look().dispatches
        assert len(dispatch.iteration.jobs) == 2 * number
        with count_statements(log, counts):
            complete_at_once(log, dispatch)
        ((version, state),) = {(job.watermark.version, job.state) for job in log.list_jobs()}
        assert (version, state) == (number + 1, JobState.COMPLETED)
    assert small == large
