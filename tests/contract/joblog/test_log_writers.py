"""Several writers of one ISCP log, and features of the SQL log alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from iscp_dagster.joblog import lifecycle
from iscp_dagster.joblog.sql import statements
from iscp_dagster.joblog.sql.flush import flush
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.errors import (
    ConfigError,
    FenceError,
    UnavailableError,
)
from sql_transactions.engine import begin_transaction
from support.jobs.log_rows import LAYOUT, T0, add, at, complete, key, moment, name, over, span, spec

# --- the flush, while others write


class Meanwhile:
    """A call in a separate thread, which waits for a transaction that is open in this one."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.found: list[object] = []
        self.thread = threading.Thread(target=lambda: self.found.append(call()), daemon=True)

    def starts(self) -> None:
        self.thread.start()
        # Long enough for the call to ask for the lock; less would only weaken the test.
        self.thread.join(0.3)
        assert not self.found

    def result(self) -> object:
        self.thread.join(60)
        (found,) = self.found
        return found


def test_a_flush_that_waits_for_an_unregistration_leaves_the_row_dropped(log):
    at(log, 5, key("a"), key("b"))
    meanwhile = Meanwhile(lambda: log.flush({key("a"): span(5, 9), key("b"): span(5, 9)}))
    with begin_transaction(log.engine, writes=True) as connection:
        rows = statements.lock_jobs(connection, [key("a")])
        gone = lifecycle.unregister_job(rows[key("a")], T0)
        statements.write_back(connection, rows, [gone], entry_of=lambda *_: None)
        meanwhile.starts()
    assert meanwhile.result() == 1
    (dropped, kept) = log.list_jobs(include_dropped=True)
    assert (dropped.drop_at, dropped.watermark) == (T0, moment(5))
    assert (kept.drop_at, kept.watermark) == (None, moment(9))


@pytest.mark.parametrize(
    ("act", "state"),
    [
        (lambda log: log.unregister("acme", name("a")), "dropped"),
        (lambda log: log.pause("acme", name("a")), "paused"),
        (lambda log: len(log.begin(over(key("a"), start=9, to=11), "r", {})), "running"),
        (lambda log: not log.register("acme", name("a"), "t-1", spec("a")), "completed"),
    ],
)
def test_who_waits_for_a_flush_finds_the_row_that_it_wrote(log, act, state):
    at(log, 5, key("a"), key("b"))
    meanwhile = Meanwhile(lambda: act(log))
    with begin_transaction(log.engine, writes=True) as connection:
        assert flush(connection, [(key(job), span(5, 9)) for job in "ab"]) == 2
        meanwhile.starts()
    assert meanwhile.result()
    job = log.list_jobs(include_dropped=True)[0]
    assert job.watermark == moment(9)
    found = "dropped" if job.drop_at else "paused" if job.paused_at else job.state.label
    assert found == state


def test_a_flush_is_split_into_delete_and_insert_in_one_transaction(log):
    at(log, 5, key("a"), key("b"))
    said = []

    def hear(connection, cursor, statement, parameters, context, executemany):
        said.append(statement)

    sa.event.listen(log.engine, "after_cursor_execute", hear)
    sa.event.listen(log.engine, "commit", lambda connection: said.append("COMMIT"))
    assert log.flush({key("a"): span(5, 9), key("b"): span(5, 9)}) == 2
    changed = [each for each in said if "iscp_log" in each or each == "COMMIT"]
    text = " ; ".join(changed)
    delete, insert = text.index("DELETE FROM iscp_log"), text.index("INSERT INTO iscp_log")
    assert "iscp_log.drop_at IS NULL" in text[delete:insert]
    assert text.index("COMMIT") > insert > delete


def test_a_flush_changes_the_watermark_and_nothing_else(log):
    at(log, 5, key())
    for claim in log.begin(over(key(), start=5, to=7), "run-2", LAYOUT):
        complete(log, claim, moment(7), {"inserted": 4})
    log.pause("acme", name())
    before = log.find_job(key())
    history = log.read_history()
    assert log.flush({key(): span(7, 9)}) == 1
    assert log.find_job(key()) == replace(before, watermark=moment(9), seq=before.seq + 1)
    assert log.read_history() == history


# --- several openers of one store


def test_a_second_opener_sees_committed_rows(make_log):
    one, two = make_log(), make_log()
    add(one, key())
    assert two.list_jobs() == one.list_jobs()
    assert not two.register("acme", name(), "t-1", spec())


def test_threads_that_begin_the_same_iteration_get_one_claim(make_log):
    logs = [make_log() for _ in range(6)]
    add(logs[0], key("a"), key("b"))
    gate, claims, refused = threading.Barrier(len(logs)), [], []

    def begin(log: SqlLog, run: str) -> None:
        gate.wait(timeout=30)
        try:
            claims.append(log.begin(over(key("a"), key("b")), run, LAYOUT))
        except FenceError as error:
            refused.append(error)

    threads = [threading.Thread(target=begin, args=(log, f"r{i}")) for i, log in enumerate(logs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert (len(claims), len(refused)) == (1, 5)
    assert {claim.run_id for claim in claims[0]} == logs[0].list_active_runs()


# --- what only the SQL log has


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("mysql://u:hush@host/db", r"mysql://u:\*\*\*@host/db: .* sqlite or postgresql"),
        ("not a url hush", "is not a database URL"),
        ("postgresql://u:hush@host:port/db", "is not a database URL"),
        ("postgresql://u:hush/db", "is not a database URL"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url, message):
    with pytest.raises(ConfigError, match=message) as caught:
        SqlLog(url)
    assert "hush" not in str(caught.value)


def test_an_unreachable_database_is_unavailable_and_its_password_hidden():
    log = SqlLog("postgresql://me:hush%21@127.0.0.1:1/db?password=hush%21&connect_timeout=2")
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1") as caught:
        log.ensure()
    assert "hush" not in str(caught.value)


def test_a_log_that_was_never_set_up_says_so(tmp_path):
    with pytest.raises(UnavailableError, match="no such table"):
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
        found = log.read_changed_tenants(since)
        assert found.tenants == {("t-1", "early")}
        found = log.read_changed_tenants(found.upto)
    numbers = {entry.key.tenant: entry.number for entry in log.read_history()}
    assert numbers["late"] < numbers["early"]
    found = log.read_changed_tenants(found.upto)
    assert ("t-1", "late") in found.tenants
    assert log.read_changed_tenants(found.upto).tenants == frozenset()


def test_what_is_done_within_a_callers_transaction_is_all_or_nothing(log):
    add(log, key("old"), key("other"))
    before = log.list_jobs(include_dropped=True)

    def change(connection: sa.Connection) -> None:
        joined = log.bind(connection)
        assert joined.register("acme", name("new"), "t-1", spec("new"))
        assert joined.unregister("acme", name("old"))
        done = joined.update("acme", name("other"), SpecUpdate(priority=7))
        assert done is not None
        assert done.changed
        assert [job.key.job_name for job in joined.list_jobs()] == ["new", "other"]

    class ChangedMindError(Exception):
        pass

    def think_better() -> None:
        with begin_transaction(log.engine, writes=True) as connection:
            change(connection)
            raise ChangedMindError

    with pytest.raises(ChangedMindError):
        think_better()
    assert log.list_jobs(include_dropped=True) == before
    with begin_transaction(log.engine, writes=True) as connection:
        change(connection)
        assert log.list_jobs(include_dropped=True) == before
    assert {job.key.job_name: job.priority for job in log.list_jobs()} == {"new": 0, "other": 7}
