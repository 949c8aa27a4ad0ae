"""Dead letters on real services: set aside, seen, replayed and dropped by command."""

import json
from dataclasses import replace

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from iscp_dagster import FullText, Mirror
from iscp_dagster.api.jobs import Jobs
from iscp_dagster.cli.main import app
from iscp_dagster.clickhouse.connect.failures import RefusedRowsError
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.model.errors import FenceError, IscpError, UnrepeatableError
from iscp_dagster.model.jobs import NewJob
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from support.jobs.log_rows import fail
from support.lake.delta_tables import Table, one_by_one, rows
from support.workers.killable import CrashPoint, run_until_crash


@pytest.fixture
def dlq(monkeypatch):
    """Run `iscp dlq ...` in a terminal of 80 columns; return exit code and output."""
    monkeypatch.setattr("iscp_dagster.cli.parts.tables.is_terminal", lambda: True)

    def run(table, *words):
        jobs = Jobs(deployment=table.deployment, sources=[table.source], cancel_runs=len)
        monkeypatch.setattr("iscp_dagster.api.jobs.open_jobs", lambda _: jobs)
        done = CliRunner().invoke(app, ["dlq", *words], env={"COLUMNS": "80"})
        assert done.exception is None or isinstance(done.exception, (SystemExit, IscpError))
        return done.exit_code, done.output

    return run


def guarded(table, index, action):
    name = table.view(index, "__rows")
    table.deployment.endpoint.get_client().command(f"ALTER TABLE {name} {action}")


def test_a_row_that_is_refused_waits_until_it_is_replayed(deployment, dlq):
    index = Mirror(errors="dead_letter")
    table = Table.make(deployment, index, FullText("name"))
    table.insert(1, 2)
    table.follow()
    guarded(table, index, "ADD CONSTRAINT no_odd CHECK NOT startsWith(name, 'odd')")
    table.insert(3, name="odd")
    table.sql("UPDATE {t} SET name = 'odd too' WHERE id = 2")
    table.insert(4)
    outcomes = table.follow()
    assert all(isinstance(each, RowDelivery) for each in outcomes), outcomes
    assert table.query("SELECT id FROM {mirror} ORDER BY id") == [(1,), (4,)]
    assert table.query("SELECT count() FROM {text}") == [(4,)]
    (verdict,) = [each for each in table.verdicts() if each.index == "mirror"]
    assert (verdict.missing, verdict.dead, verdict.agrees) == (2, 2, False)

    code, said = dlq(table, "list")
    counts = f"2 dead letters: 2 of {table.source.name}/mirror"
    assert (code, said.splitlines()[0]) == (0, counts)
    assert max(map(len, said.splitlines())) <= 80
    code, said = dlq(table, "list", "--index", f"{table.source.name}/mirror", "--json")
    found = json.loads(said)
    assert sorted(json.loads(each["row"])["id"] for each in found) == [2, 3]
    assert {each["code"] for each in found} == {RefusedRowsError.code}
    code, said = dlq(table, "show", found[0]["id"][:10])
    assert "no_odd" in said

    code, said = dlq(table, "replay")
    assert (code, said.splitlines()[-1]) == (1, "0 replayed, 2 stay")
    guarded(table, index, "DROP CONSTRAINT no_odd")
    # The row has changed again since: its letter must not bring the older one back.
    table.sql("UPDATE {t} SET name = 'even' WHERE id = 2")
    table.follow()
    code, said = dlq(table, "replay", "--tenant", "a")
    assert (code, said.splitlines()[-1]) == (0, "2 replayed, 0 stay")
    table.check()
    assert dlq(table, "list")[1] == "0 dead letters\n"


def test_a_first_synchronization_sets_rows_aside_too_and_dropping_them_is_final(deployment, dlq):
    index = Mirror(errors="dead_letter")
    table = Table.make(deployment, index, columns="tenant STRING, id BIGINT, d DATE")
    table.sql("INSERT INTO {t} VALUES ('a', 1, DATE'2026-01-01'), ('a', 2, DATE'2026-01-02')")
    table.follow()
    guarded(table, index, "ADD CONSTRAINT early CHECK d < '2026-06-01'")
    table.sql("INSERT INTO {t} VALUES ('b', 1, DATE'2026-01-01'), ('b', 2, DATE'2027-01-01')")
    (outcome,) = table.follow()
    assert isinstance(outcome, RowDelivery)
    assert (outcome.tenant, outcome.inserted) == ("b", 1)
    assert table.query("SELECT id FROM {mirror} WHERE tenant = 'b'") == [(1,)]
    (letter,) = json.loads(dlq(table, "list", "--json")[1])
    assert (letter["tenant"], json.loads(letter["row"])["d"]) == ("b", "2027-01-01")
    assert dlq(table, "drop")[0] == 1
    assert dlq(table, "drop", "")[0] == 1
    assert dlq(table, "drop", letter["id"])[1] == "1 dead letter dropped\n"
    assert dlq(table, "show", letter["id"])[0] == 1


def lose_files(table, tenant="a"):
    """Remove the tenant's old files: earlier commits are left as a snapshot, not as changes."""
    lake = DeltaTable(table.path)
    lake.optimize.compact(partition_filters=[("tenant", "=", tenant)])
    lake.vacuum(0, enforce_retention_duration=False, dry_run=False)


def lose_batch(table, *, written=False):
    """Have a run die whose changes nobody can read again, before another commit."""
    table.insert(1)
    table.follow()
    table.insert(2, 3)
    if written:
        found = one_by_one(table.deployment, table.source, table.iteration("a"), run_id="dead")
        assert next(found).inserted == 2
        found.close()
    else:
        run_until_crash(table, table.iteration("a"), CrashPoint("after", "claim_jobs"))
    table.deployment.log.recover_run_jobs({"dead"})
    lose_files(table)
    table.insert(4)


def test_a_batch_of_an_earlier_registration_is_not_replayed(deployment, dlq):
    table = Table.make(deployment, Mirror(append=True, errors="dead_letter"), key=())
    lose_batch(table)
    table.follow()
    (job,) = table.jobs()
    deployment.log.unregister("a", job.name)
    again = NewJob(tenant="a", name=job.name, table_id=job.key.table_id, spec=job.spec)
    deployment.log.register_many([again])
    code, said = dlq(table, "replay")
    assert (code, said.splitlines()[-1]) == (1, "0 replayed, 1 stay")
    (letter,) = json.loads(dlq(table, "list", "--json")[1])
    assert letter["code"] == UnrepeatableError.code


def test_a_batch_that_cannot_be_read_again_is_set_aside_and_the_rest_goes_on(deployment, dlq):
    index = Mirror(append=True, errors="dead_letter")
    table = Table.make(deployment, index, FullText("name", append=True), key=())
    lose_batch(table)
    outcomes = table.follow()
    # Its sibling may be rebuilt, and is.
    assert {(each.claim.key.job_name, each.plan.kind) for each in outcomes} == {
        ("mirror", ReadKind.TAIL),
        ("text", ReadKind.SNAPSHOT),
    }
    assert table.query("SELECT id FROM {mirror} ORDER BY id") == [(1,), (4,)]
    assert table.query("SELECT id FROM {text} ORDER BY id") == [(1,), (2,), (3,), (4,)]
    (verdict,) = [each for each in table.verdicts() if each.index == "mirror"]
    assert (verdict.missing, verdict.dead, verdict.agrees) == (2, 1, False)

    (letter,) = json.loads(dlq(table, "list", "--json")[1])
    assert (letter["from_version"], letter["to_version"], letter["row"]) == (1, 2, "")
    assert letter["code"] == UnrepeatableError.code
    code, said = dlq(table, "list")
    assert max(map(len, said.splitlines())) <= 80
    # The job goes on, and no later batch makes the letter again.
    table.insert(5)
    table.follow()
    assert len(json.loads(dlq(table, "list", "--json")[1])) == 1
    # A replay resumes a job that has stopped meanwhile.
    table.insert(6)
    (job,) = [job for job in table.jobs() if job.key.job_name == "mirror"]
    iteration = replace(table.iteration("a"), jobs=(job.key,))
    (claim,) = deployment.log.claim_jobs(iteration, "fails", {})
    fail(deployment.log, claim, 10_300, "a value does not fit")
    code, said = dlq(table, "replay")
    assert (code, said) == (
        0,
        f"{letter['id'][:8]}: the tenant will be rebuilt\n1 replayed, 0 stay\n",
    )
    table.follow()
    assert [each for each in table.verdicts() if not each.agrees] == []
    assert dlq(table, "list")[1] == "0 dead letters\n"


def test_of_a_dead_run_s_tenants_only_those_whose_batch_is_gone_are_set_aside(
    deployment, dlq, monkeypatch
):
    tenants = ("there", "gone", "gone too", "gone and more", "staged")
    table = Table.make(deployment, Mirror(append=True, errors="dead_letter"), key=())

    def put(*ids):
        table.sql(f"INSERT INTO {{t}} VALUES {', '.join(rows(*ids, tenant=t) for t in tenants)}")

    put(1)
    table.follow()
    put(2, 3)
    # For this tenant the run begins a snapshot, which leaves nothing behind.
    lose_files(table, "staged")
    run_until_crash(table, table.iteration(*tenants), CrashPoint("after", "claim_jobs"))
    deployment.log.recover_run_jobs({"dead"})
    lose_files(table, "gone")
    lose_files(table, "gone too")
    put(4)
    lose_files(table, "gone and more")
    asides, set_aside = [], IndexStore.write_range_letters

    def noted(store, errors, **more):
        asides.append(set(errors))
        set_aside(store, errors, **more)

    with monkeypatch.context() as patched:
        patched.setattr(IndexStore, "write_range_letters", noted)
        outcomes = table.run(table.iteration(*tenants))
    assert asides == [{"gone", "gone too"}], "in one go"
    assert {each.tenant: each.plan.kind for each in outcomes} == {
        "there": ReadKind.TAIL,
        "gone": ReadKind.TAIL,
        "gone too": ReadKind.TAIL,
        "gone and more": ReadKind.SNAPSHOT,
        "staged": ReadKind.SNAPSHOT,
    }
    held = table.query("SELECT tenant, arraySort(groupArray(id)) FROM {mirror} GROUP BY tenant")
    assert dict(held) == {
        each: [1, 4] if each in {"gone", "gone too"} else [1, 2, 3, 4] for each in tenants
    }
    letters = json.loads(dlq(table, "list", "--json")[1])
    assert sorted(each["tenant"] for each in letters) == ["gone", "gone too"]


def test_a_batch_that_is_gone_is_not_set_aside_by_a_run_that_is_overtaken(
    deployment, dlq, monkeypatch
):
    table = Table.make(deployment, Mirror(append=True, errors="dead_letter"), key=())
    lose_batch(table)
    take_over = IndexStore.take_over

    def late(store, *given):
        monkeypatch.setattr(IndexStore, "take_over", take_over)
        deployment.log.recover_run_jobs({"late"})
        deployment.log.rebuild([job.key for job in table.jobs()])
        table.follow()
        return take_over(store, *given)

    monkeypatch.setattr(IndexStore, "take_over", late)
    (failed,) = table.run(table.iteration("a"), "late")
    assert failed.code == FenceError.code
    assert dlq(table, "list")[1] == "0 dead letters\n"
    assert [each for each in table.verdicts() if not each.agrees] == []


def test_a_batch_that_is_gone_and_whose_letter_is_dropped_stays_as_it_is(deployment, dlq):
    table = Table.make(deployment, Mirror(append=True, errors="dead_letter"), key=())
    lose_batch(table, written=True)
    table.follow()
    # Every row had been written, but only a person can know that.
    assert [each for each in table.verdicts() if not each.agrees] == []
    (letter,) = json.loads(dlq(table, "list", "--json")[1])
    assert dlq(table, "drop", letter["id"])[1] == "1 dead letter dropped\n"
    assert table.follow() == []
