"""The active rows of triggers, in both databases."""

from dataclasses import replace

import pytest
from logs import T0, add, key, name

from iscp_dagster.joblog.sql.active import ActiveSet, active_keys, active_sets, keep

JOB = key("alerts")
OTHER = key("alerts", tenant="globex")
HELD = ActiveSet(registration=1, definition="d", number=2, upto=7)
LONG, NUL = "k" * 10_000, "n\0"
EVERY = {"a", "b", "b'\"%", "c", LONG, NUL, "n\\0", "zz"}


def kept(log, *jobs):
    with log.reading() as connection:
        return active_sets(connection, jobs)


def keys(log, job, among=EVERY):
    with log.reading() as connection:
        return set(active_keys(connection, job, among))


def test_active_rows_are_added_and_removed_by_key_and_keep_to_their_job(log):
    with log.writing() as connection:
        keep(connection, JOB, HELD, added=["a", "b'\"%", LONG, NUL])
        keep(connection, OTHER, replace(HELD, registration=2), added=["a"])
        keep(connection, JOB, replace(HELD, number=3, gap="why"), added=["a", "c"], removed=["zz"])
    assert keys(log, JOB) == {"a", "b'\"%", "c", LONG, NUL}
    assert keys(log, JOB, ["a", LONG, "nowhere"]) == {"a", LONG}
    assert keys(log, JOB, []) == set()
    with log.writing() as connection:
        keep(connection, JOB, HELD, removed=["a", LONG, NUL])
    assert keys(log, JOB) == {"b'\"%", "c"}
    assert keys(log, OTHER) == {"a"}
    assert kept(log, JOB, OTHER, key("new")) == {
        JOB: HELD,
        OTHER: replace(HELD, registration=2),
    }


def test_a_set_that_is_put_anew_has_only_what_it_was_given(log):
    with log.writing() as connection:
        keep(connection, JOB, HELD, added=["a", "b"])
        keep(connection, JOB, HELD, added=["b", "c"], anew=True)
    assert keys(log, JOB) == {"b", "c"}


def test_an_error_in_the_transaction_leaves_the_set_as_it_was(log):
    def fail():
        with log.writing() as connection:
            keep(connection, JOB, HELD, added=["a"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (kept(log, JOB), keys(log, JOB)) == ({}, set())


def test_many_rows_go_through_few_statements(log):
    many = {f"tenant/{n}" for n in range(12_000)}
    with log.writing() as connection:
        keep(connection, JOB, HELD, added=many)
    assert keys(log, JOB, many | {"another"}) == many


def test_what_a_dropped_job_kept_goes_with_its_row_unless_it_was_registered_again(log):
    add(log, JOB, OTHER)
    with log.writing() as connection:
        for job in log.jobs():
            held = ActiveSet(registration=job.registration, definition="d")
            keep(connection, job.key, held, added=["a"])
    assert log.unregister(None, name("alerts"))
    gone = log.jobs(include_dropped=True)
    add(log, OTHER)
    with log.writing() as connection:
        (again,) = log.jobs()
        keep(connection, OTHER, ActiveSet(registration=again.registration, definition="d"))
    log.forget(gone)
    assert kept(log, JOB, OTHER).keys() == {OTHER}
    assert (keys(log, JOB), keys(log, OTHER)) == (set(), {"a"})
    assert [job.drop_at for job in log.jobs(include_dropped=True)] == [None]
    assert all(job.drop_at is not None and job.create_at > T0 for job in gone)
