"""The ISCP log under several processes at once."""

from __future__ import annotations

import os

import pytest

from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.errors import FenceError
from iscp_dagster.model.states import JobState
from support.jobs.log_rows import key, name, over, spec
from support.workers.parallel_processes import at_once


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def url(request, tmp_path_factory) -> str:
    """Return the URL of a database without tables."""
    if request.param == "postgresql":
        return request.getfixturevalue("new_postgres")()
    return f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/log.db"


def contend(wait, number: int, url: str) -> tuple[bool, bool]:
    """Set up, register and begin, each step at the same moment as all others."""
    log = SqlLog(url)
    wait()
    log.ensure()
    wait()
    registered = log.register("acme", name(), "t-1", spec())
    wait()
    try:
        log.claim_jobs(over(key()), f"run-{number}", {})
    except FenceError:
        return registered, False
    return registered, True


def test_of_many_processes_one_registers_a_name_and_one_begins_its_iteration(url):
    answers = at_once(contend, url, preload=["iscp_dagster.joblog"], processes=4)
    registered, claimed = zip(*answers, strict=True)
    assert (registered.count(True), claimed.count(True)) == (1, 1)
    winner = claimed.index(True)
    (job,) = SqlLog(url).list_jobs()
    assert (job.state, job.run_id) == (JobState.RUNNING, f"run-{winner}")


def test_a_forked_child_has_connections_of_its_own(url):
    log = SqlLog(url)
    log.ensure()
    before = log.list_jobs()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            log.unregister("nobody", name())
            code = 0 if log.list_jobs() == before else 2
        finally:
            os._exit(code)
    assert log.list_jobs() == before
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert log.list_jobs() == before
