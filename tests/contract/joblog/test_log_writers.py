"""Several writers of one ISCP log, and features of the SQL log alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from iscp_dagster.joblog import lifecycle
from iscp_dagster.joblog.sql import statements
from iscp_dagster.joblog.sql.flush import flush
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.errors import ConfigError, UnavailableError
from sql_transactions.engine import begin_transaction
from support.errors import raises_naming
from support.jobs.log_rows import LAYOUT, T0, add, at, complete, key, moment, name, over, span, spec

# --- the flush, while others write


def start_and_wait(call: Callable[[], object]) -> Future[object]:
    """Start a call in a thread, which waits for a transaction that is open in this one."""
    answer: Future[object] = Future()
    threading.Thread(target=lambda: answer.set_result(call()), daemon=True).start()
    # Long enough for the call to ask for the lock; less would only weaken the test.
    wait([answer], timeout=0.3)
    assert not answer.done()
    return answer


def test_a_flush_that_waits_for_an_unregistration_leaves_the_row_dropped(log):
    at(log, 5, key("a"), key("b"))
    with begin_transaction(log.engine, writes=True) as connection:
        rows = statements.lock_jobs(connection, [key("a")])
        gone = lifecycle.unregister_job(rows[key("a")], T0)
        statements.write_back(connection, rows, [gone], entry_of=lambda *_: None)
        flushed = start_and_wait(lambda: log.flush({key(job): span(5, 9) for job in "ab"}))
    assert flushed.result(60) == 1
    (dropped, kept) = log.list_jobs(include_dropped=True)
    assert (dropped.drop_at, dropped.watermark) == (T0, moment(5))
    assert (kept.drop_at, kept.watermark) == (None, moment(9))


@pytest.mark.parametrize(
    ("act", "state"),
    [
        (lambda log: log.unregister("acme", name("a")), "dropped"),
        (lambda log: log.pause("acme", name("a")), "paused"),
        (lambda log: len(log.claim_jobs(over(key("a"), start=9, to=11), "r", {})), "running"),
        (lambda log: not log.register("acme", name("a"), "t-1", spec("a")), "completed"),
    ],
)
def test_who_waits_for_a_flush_finds_the_row_that_it_wrote(log, act, state):
    at(log, 5, key("a"), key("b"))
    with begin_transaction(log.engine, writes=True) as connection:
        assert flush(connection, [(key(job), span(5, 9)) for job in "ab"]) == 2
        answer = start_and_wait(lambda: act(log))
    assert answer.result(60)
    job = log.list_jobs(include_dropped=True)[0]
    assert job.watermark == moment(9)
    assert state == ("dropped" if job.drop_at else "paused" if job.paused_at else job.state.label)


def test_a_flush_is_split_into_delete_and_insert_in_one_transaction(log):
    at(log, 5, key("a"), key("b"))
    executed = []

    def record(connection, cursor, statement, parameters, context, executemany):
        executed.append(statement)

    sa.event.listen(log.engine, "after_cursor_execute", record)
    sa.event.listen(log.engine, "commit", lambda connection: executed.append("COMMIT"))
    assert log.flush({key("a"): span(5, 9), key("b"): span(5, 9)}) == 2
    text = " ; ".join(each for each in executed if "iscp_log" in each or each == "COMMIT")
    delete, insert = text.index("DELETE FROM iscp_log"), text.index("INSERT INTO iscp_log")
    assert "iscp_log.drop_at IS NULL" in text[delete:insert]
    assert text.index("COMMIT") > insert > delete


def test_a_flush_changes_the_watermark_and_nothing_else(log):
    at(log, 5, key())
    for claim in log.claim_jobs(over(key(), start=5, to=7), "run-2", LAYOUT):
        complete(log, claim, moment(7), {"inserted": 4})
    log.pause("acme", name())
    before = log.find_job(key())
    history = log.read_history()
    assert log.flush({key(): span(7, 9)}) == 1
    assert log.find_job(key()) == replace(before, watermark=moment(9), seq=before.seq + 1)
    assert log.read_history() == history


# --- what only the SQL log has


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("sqlite://", ["file"]),
        ("mysql://u:hush@host/db", ["mysql://u:***@host/db", "sqlite", "postgresql"]),
        ("not a url hush", []),
        ("postgresql://u:hush/db", []),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url, named):
    with raises_naming(ConfigError, *named) as caught:
        SqlLog(url)
    assert "hush" not in str(caught.value)


def test_an_unreachable_database_is_unavailable_and_its_password_hidden():
    log = SqlLog("postgresql://me:hush%21@127.0.0.1:1/db?password=hush%21&connect_timeout=2")
    with raises_naming(UnavailableError, "127.0.0.1") as caught:
        log.ensure()
    assert "hush" not in str(caught.value)


def test_a_log_that_was_never_set_up_is_unavailable(tmp_path):
    with raises_naming(UnavailableError, f"sqlite:///{tmp_path}/empty.db", "iscp_log"):
        SqlLog(f"sqlite:///{tmp_path}/empty.db").list_jobs()


def test_sqlite_readers_and_the_writer_work_side_by_side(tmp_path):
    log = SqlLog(sa.create_engine(f"sqlite:///{tmp_path}/log.db"))
    log.ensure()
    log.ensure()
    add(log, key())
    with log.engine.begin() as writer:
        writer.exec_driver_sql("UPDATE iscp_log SET seq = 99")
        assert log.find_job(key()).seq == 0
    assert log.find_job(key()).seq == 99
    with log.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


# --- what happened since, and the caller's transaction


def test_what_a_skewed_clock_wrote_is_touched(log):
    start = log.read_changed_tenants(None)
    late = SqlLog(log.engine, clock=lambda: T0 - timedelta(days=1))
    add(late, key())
    assert [entry.at for entry in late.read_history()] == [T0 - timedelta(days=1)]
    assert log.read_changed_tenants(start.upto).tenants == {("t-1", "acme")}


def test_what_commits_late_is_touched(log):
    """A transaction that takes the first number commits after the one that takes the next."""
    if log.engine.dialect.name == "sqlite":
        pytest.skip("one writes at a time")
    since = log.read_changed_tenants(None).upto
    with begin_transaction(log.engine, writes=True) as connection:
        add(log.bind(connection), key("a", "late"))
        add(log, key("b", "early"))
        changed = log.read_changed_tenants(since)
        assert changed.tenants == {("t-1", "early")}
        changed = log.read_changed_tenants(changed.upto)
    numbers = {entry.key.tenant: entry.number for entry in log.read_history()}
    assert numbers["late"] < numbers["early"]
    changed = log.read_changed_tenants(changed.upto)
    assert ("t-1", "late") in changed.tenants
    assert log.read_changed_tenants(changed.upto).tenants == frozenset()


def test_what_is_done_within_a_callers_transaction_is_all_or_nothing(log):
    add(log, key("old"), key("other"))
    before = log.list_jobs(include_dropped=True)

    def change(connection: sa.Connection) -> None:
        joined = log.bind(connection)
        assert joined.register("acme", name("new"), "t-1", spec("new"))
        assert joined.unregister("acme", name("old"))
        assert joined.update("acme", name("other"), SpecUpdate(priority=7)).changed
        assert [job.key.job_name for job in joined.list_jobs()] == ["new", "other"]

    def change_and_fail() -> None:
        with begin_transaction(log.engine, writes=True) as connection:
            change(connection)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_fail()
    assert log.list_jobs(include_dropped=True) == before
    with begin_transaction(log.engine, writes=True) as connection:
        change(connection)
        assert log.list_jobs(include_dropped=True) == before
    assert {job.key.job_name: job.priority for job in log.list_jobs()} == {"new": 0, "other": 7}
