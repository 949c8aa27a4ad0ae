"""The active rows of triggers, in both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from logs import T0, add, key, name

from iscp_dagster.joblog.sql.active import ActiveSet, active_keys, active_sets, keep

pytestmark = pytest.mark.parametrize("make_log", ["sqlite", "postgresql"], indirect=True)
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


def test_active_rows_are_added_and_removed_by_key_and_keep_to_their_job(sql_log):
    with sql_log.writing() as connection:
        keep(connection, JOB, HELD, added=["a", "b'\"%", LONG, NUL])
        keep(connection, OTHER, replace(HELD, registration=2), added=["a"])
        keep(connection, JOB, replace(HELD, number=3, gap="why"), added=["a", "c"], removed=["zz"])
    assert keys(sql_log, JOB) == {"a", "b'\"%", "c", LONG, NUL}
    assert keys(sql_log, JOB, ["a", LONG, "nowhere"]) == {"a", LONG}
    assert keys(sql_log, JOB, []) == set()
    with sql_log.writing() as connection:
        keep(connection, JOB, HELD, removed=["a", LONG, NUL])
    assert keys(sql_log, JOB) == {"b'\"%", "c"}
    assert keys(sql_log, OTHER) == {"a"}
    assert kept(sql_log, JOB, OTHER, key("new")) == {
        JOB: HELD,
        OTHER: replace(HELD, registration=2),
    }


def test_a_set_that_is_put_anew_has_only_what_it_was_given(sql_log):
    with sql_log.writing() as connection:
        keep(connection, JOB, HELD, added=["a", "b"])
        keep(connection, JOB, HELD, added=["b", "c"], anew=True)
    assert keys(sql_log, JOB) == {"b", "c"}


def test_an_error_in_the_transaction_leaves_the_set_as_it_was(sql_log):
    def fail():
        with sql_log.writing() as connection:
            keep(connection, JOB, HELD, added=["a"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (kept(sql_log, JOB), keys(sql_log, JOB)) == ({}, set())


def test_many_rows_go_through_few_statements(sql_log):
    many = {f"tenant/{n}" for n in range(12_000)}
    with sql_log.writing() as connection:
        keep(connection, JOB, HELD, added=many)
    assert keys(sql_log, JOB, many | {"another"}) == many


def test_what_a_dropped_job_kept_goes_with_its_row_unless_it_was_registered_again(sql_log):
    add(sql_log, JOB, OTHER)
    with sql_log.writing() as connection:
        for job in sql_log.jobs():
            held = ActiveSet(registration=job.registration, definition="d")
            keep(connection, job.key, held, added=["a"])
    assert sql_log.unregister(None, name("alerts"))
    gone = sql_log.jobs(include_dropped=True)
    add(sql_log, OTHER)
    with sql_log.writing() as connection:
        (again,) = sql_log.jobs()
        keep(connection, OTHER, ActiveSet(registration=again.registration, definition="d"))
    sql_log.forget(gone)
    assert kept(sql_log, JOB, OTHER).keys() == {OTHER}
    assert (keys(sql_log, JOB), keys(sql_log, OTHER)) == (set(), {"a"})
    assert [job.drop_at for job in sql_log.jobs(include_dropped=True)] == [None]
    assert all(job.drop_at is not None and job.create_at > T0 for job in gone)
