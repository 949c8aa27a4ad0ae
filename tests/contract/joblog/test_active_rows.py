"""The active rows of triggers, in both databases."""

from dataclasses import replace

import pytest

from iscp_dagster.joblog.sql.active import (
    ActiveSet,
    read_active_keys,
    read_active_sets,
    store_active_set,
)
from support.jobs.log_rows import T0, add, key, name

JOB = key("alerts")
OTHER = key("alerts", tenant="globex")
HELD = ActiveSet(registration=1, definition="d", number=2, upto=7)
LONG, NUL = "k" * 10_000, "n\0"
EVERY = {"a", "b", "b'\"%", "c", LONG, NUL, "n\\0", "zz"}


def kept(log, *jobs):
    with log.begin_read() as connection:
        return read_active_sets(connection, jobs)


def keys(log, job, among=EVERY):
    with log.begin_read() as connection:
        return set(read_active_keys(connection, job, among))


def test_active_rows_are_added_and_removed_by_key_and_keep_to_their_job(log):
    with log.begin_write() as connection:
        store_active_set(connection, JOB, HELD, added=["a", "b'\"%", LONG, NUL])
        store_active_set(connection, OTHER, replace(HELD, registration=2), added=["a"])
        store_active_set(
            connection, JOB, replace(HELD, number=3, gap="why"), added=["a", "c"], removed=["zz"]
        )
    assert keys(log, JOB) == {"a", "b'\"%", "c", LONG, NUL}
    assert keys(log, JOB, ["a", LONG, "nowhere"]) == {"a", LONG}
    assert keys(log, JOB, []) == set()
    with log.begin_write() as connection:
        store_active_set(connection, JOB, HELD, removed=["a", LONG, NUL])
    assert keys(log, JOB) == {"b'\"%", "c"}
    assert keys(log, OTHER) == {"a"}
    assert kept(log, JOB, OTHER, key("new")) == {
        JOB: HELD,
        OTHER: replace(HELD, registration=2),
    }


def test_a_set_that_is_put_anew_has_only_what_it_was_given(log):
    with log.begin_write() as connection:
        store_active_set(connection, JOB, HELD, added=["a", "b"])
        store_active_set(connection, JOB, HELD, added=["b", "c"], replace_all=True)
    assert keys(log, JOB) == {"b", "c"}


def test_an_error_in_the_transaction_leaves_the_set_as_it_was(log):
    def fail():
        with log.begin_write() as connection:
            store_active_set(connection, JOB, HELD, added=["a"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (kept(log, JOB), keys(log, JOB)) == ({}, set())


def test_many_rows_go_through_few_statements(log):
    many = {f"tenant/{n}" for n in range(12_000)}
    with log.begin_write() as connection:
        store_active_set(connection, JOB, HELD, added=many)
    assert keys(log, JOB, many | {"another"}) == many


def test_what_a_dropped_job_kept_goes_with_its_row_unless_it_was_registered_again(log):
    add(log, JOB, OTHER)
    with log.begin_write() as connection:
        for job in log.list_jobs():
            held = ActiveSet(registration=job.registration, definition="d")
            store_active_set(connection, job.key, held, added=["a"])
    assert log.unregister(None, name("alerts"))
    gone = log.list_jobs(include_dropped=True)
    add(log, OTHER)
    with log.begin_write() as connection:
        (again,) = log.list_jobs()
        store_active_set(
            connection, OTHER, ActiveSet(registration=again.registration, definition="d")
        )
    log.delete_dropped(gone)
    assert kept(log, JOB, OTHER).keys() == {OTHER}
    assert (keys(log, JOB), keys(log, OTHER)) == (set(), {"a"})
    assert [job.drop_at for job in log.list_jobs(include_dropped=True)] == [None]
    assert all(job.drop_at is not None and job.create_at > T0 for job in gone)
