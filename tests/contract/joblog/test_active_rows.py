"""The active rows of triggers, in both databases."""

from dataclasses import replace

import pytest

from iscp_dagster.joblog.sql.active_sets import (
    ActiveSet,
    read_active_keys,
    read_active_sets,
    store_active_set,
)
from iscp_dagster.joblog.sql.statements import KEYS_PER_STATEMENT
from support.jobs.log_rows import T0, add, key, name

JOB = key("alerts")
OTHER = key("alerts", tenant="globex")
STORED = ActiveSet(registration=1, definition="d", row_count=2, upto=7)
LONG, NUL = "k" * 10_000, "n\0"
EVERY = {"a", "b", "b'\"%", "c", LONG, NUL, "n\\0", "zz"}


def read_sets(log, *jobs):
    with log.begin_read() as connection:
        return read_active_sets(connection, jobs)


def read_keys(log, job, among=EVERY):
    with log.begin_read() as connection:
        return set(read_active_keys(connection, job, among))


def test_active_rows_are_added_and_removed_by_key_and_keep_to_their_job(log):
    with log.begin_write() as connection:
        store_active_set(connection, JOB, STORED, added=["a", "b'\"%", LONG, NUL])
        store_active_set(connection, OTHER, replace(STORED, registration=2), added=["a"])
        other = replace(STORED, row_count=3, gap="why")
        store_active_set(connection, JOB, other, added=["a", "c"], removed=["zz"])
    assert read_keys(log, JOB) == {"a", "b'\"%", "c", LONG, NUL}
    assert read_keys(log, JOB, ["a", LONG, "nowhere"]) == {"a", LONG}
    assert read_keys(log, JOB, []) == set()
    with log.begin_write() as connection:
        store_active_set(connection, JOB, STORED, removed=["a", LONG, NUL])
    assert read_keys(log, JOB) == {"b'\"%", "c"}
    assert read_keys(log, OTHER) == {"a"}
    sets = read_sets(log, JOB, OTHER, key("new"))
    assert sets == {JOB: STORED, OTHER: replace(STORED, registration=2)}
    # A set that is put anew has only what it was given.
    with log.begin_write() as connection:
        store_active_set(connection, JOB, STORED, added=["c", "zz"], replace_all=True)
    assert read_keys(log, JOB) == {"c", "zz"}


def test_an_error_in_the_transaction_leaves_the_set_as_it_was(log):
    def fail():
        with log.begin_write() as connection:
            store_active_set(connection, JOB, STORED, added=["a"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (read_sets(log, JOB), read_keys(log, JOB)) == ({}, set())


def test_more_rows_than_a_statement_takes_are_kept_and_found(log):
    many = {f"tenant/{n}" for n in range(KEYS_PER_STATEMENT + 1)}
    with log.begin_write() as connection:
        store_active_set(connection, JOB, STORED, added=many)
    assert read_keys(log, JOB, many | {"another"}) == many


def test_what_a_dropped_job_kept_goes_with_its_row_unless_it_was_registered_again(log):
    add(log, JOB, OTHER)
    with log.begin_write() as connection:
        for job in log.list_jobs():
            active = ActiveSet(registration=job.registration, definition="d")
            store_active_set(connection, job.key, active, added=["a"])
    assert log.unregister(None, name("alerts"))
    dropped = log.list_jobs(include_dropped=True)
    add(log, OTHER)
    with log.begin_write() as connection:
        (again,) = log.list_jobs()
        store_active_set(
            connection, OTHER, ActiveSet(registration=again.registration, definition="d")
        )
    log.delete_dropped(dropped)
    assert read_sets(log, JOB, OTHER).keys() == {OTHER}
    assert (read_keys(log, JOB), read_keys(log, OTHER)) == (set(), {"a"})
    assert [job.drop_at for job in log.list_jobs(include_dropped=True)] == [None]
    assert all(job.drop_at is not None and job.create_at > T0 for job in dropped)
