"""Tenants whose watermarks lie at different commits: what one look and one run ask of the log."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from iscp_dagster import Mirror
from iscp_dagster.joblog.iterations import WrittenStep
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.batch import Range
from iscp_dagster.model.states import JobState
from iscp_dagster.planning.runner import Runner
from iscp_dagster.upkeep.maintenance import flush_watermarks
from support.jobs.one_table import write_commit


@contextmanager
def counted(log):
    """Count what the driver sends; a statement with many rows of parameters counts for each."""
    sent = []

    def executed(connection, cursor, statement, parameters, context, many):
        # A list is of rows; a tuple has the parameters of one statement, also of many VALUES.
        sent.append(len(parameters) if isinstance(parameters, list) else 1)

    sa.event.listen(log.engine, "before_cursor_execute", executed)
    try:
        yield sent
    finally:
        sa.event.remove(log.engine, "before_cursor_execute", executed)


def complete_at_once(log, dispatch):
    """Do to the log what the dispatch's run would, all jobs at once."""
    claims = log.begin(dispatch.iteration, "run", {}, queued_as=dispatch.name)
    assert not log.complete([WrittenStep(claim=claim, to=claim.range.to) for claim in claims])


@pytest.fixture
def scattered(deployment, source, tmp_path, clock):
    """Give a function that makes a table of tenants, each brought in step by a separate commit.

    Returns the deployment, the table, its runner and the cursor.
    """

    def make(number):
        folder = tmp_path / str(number)
        table = replace(
            source,
            path=str(folder / "orders"),
            tenant="tenant",
            indexes=[Mirror(), Mirror(name="two")],
        )
        log = SqlLog(f"sqlite:///{folder / 'log.sqlite'}", clock=clock)
        folder.mkdir()
        log.ensure()
        here = replace(deployment, log=log)
        tenants = [f"{n:04}" for n in range(number)]
        write_commit(folder / "orders", 0, tenants, 0)
        runner = Runner(here, [table])
        look = runner.look(None)
        for dispatch in look.dispatches:
            complete_at_once(log, dispatch)
        for version, tenant in enumerate(tenants, start=1):
            write_commit(folder / "orders", version, [tenant], version)
        delta_log = here.make_delta_log(table)
        log.flush(
            {
                job.key: Range(
                    from_=job.watermark, to=delta_log.get_moment(int(job.key.tenant) + 1)
                )
                for job in log.list_jobs()
            }
        )
        look = Runner(here, [table]).look(None)
        assert not look.dispatches
        return here, table, runner, tenants

    return make


def asked(scattered, number):
    """Return the statements of the look after a commit to all tenants, and of its run."""
    deployment, table, runner, tenants = scattered(number)
    log, counts = deployment.log, []
    cursor = runner.look(runner.latest.cursor).cursor
    write_commit(Path(table.path), number + 1, tenants, number + 1)
    with counted(log) as sent:
        (dispatch,) = runner.look(cursor).dispatches
    counts.append(sum(sent))
    assert len(dispatch.iteration.jobs) == 2 * number
    with counted(log) as sent:
        complete_at_once(log, dispatch)
    counts.append(sum(sent))
    assert {(job.watermark.version, job.state) for job in log.list_jobs()} == {
        (number + 1, JobState.COMPLETED)
    }
    return counts


def test_the_statements_of_a_look_and_its_run_do_not_depend_on_tenants(scattered):
    assert asked(scattered, 40) == asked(scattered, 400)


def test_the_statements_of_a_flush_do_not_depend_on_tenants(scattered):
    counts = []
    for number in (40, 400):
        deployment, table, _, _ = scattered(number)
        with counted(deployment.log) as sent:
            assert flush_watermarks(deployment, [table]).moved_jobs == {table.name: 2 * number - 2}
        counts.append(sum(sent))
    assert counts[0] == counts[1]
