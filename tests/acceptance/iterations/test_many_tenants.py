"""An iteration of many tenants: one scan, few statements, and one tenant's fault hurts no other."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import ClassVar

import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from test_consumers import InOneTransaction

from iscp_dagster import FullText, Mirror, Vector
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.clickhouse.tables.index_store import IndexStore
from iscp_dagster.delta.log.files import LocalFiles
from iscp_dagster.delta.read_plans import ReadKind
from iscp_dagster.joblog.iterations import FailedStep
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model import errors
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec
from iscp_dagster.model.states import JobState
from iscp_dagster.sync.interpreter import iterate
from iscp_dagster.sync.iteration.narrowing import TENANTS_TRIED, UntriedError
from iscp_dagster.sync.iteration.outcomes import RowDelivery
from iscp_dagster.sync.reading.reader import SourceReader
from iscp_dagster.sync.writing import scan
from support.lake.delta_tables import Table
from support.workers.killable import CrashPoint, run_until_crash

MANY = [f"t{number}" for number in range(TENANTS_TRIED + 2)]
BAD = "t2"
SOME = MANY[:4]


def fill(table, tenants, *ids, values="'some words', array(1.0, 2.0)"):
    rows = ", ".join(f"('{tenant}', {id_}, {values})" for tenant in tenants for id_ in ids)
    table.sql(f"INSERT INTO {{t}} VALUES {rows}")


@pytest.fixture
def table(deployment):
    """A table of two indexes with a row of each of some tenants, which no iteration has seen."""
    table = Table.make(deployment, Mirror(), FullText("name"))
    fill(table, SOME, 1)
    return table


@contextmanager
def counted(deployment, monkeypatch):
    """Count the statements sent to the ISCP log and to ClickHouse."""
    found = Counter()
    client = ClickHouseEndpoint.get_client

    class Counting:
        def __init__(self, held):
            self._held = held

        def __getattr__(self, name):
            if name in {"query", "command", "raw_insert", "insert_arrow", "query_arrow"}:
                found["clickhouse"] += 1
            return getattr(self._held, name)

    def executed(*_):
        found["log"] += 1

    with monkeypatch.context() as patched:
        patched.setattr(
            ClickHouseEndpoint, "get_client", lambda endpoint: Counting(client(endpoint))
        )
        sa.event.listen(deployment.log.engine, "before_cursor_execute", executed)
        try:
            yield found
        finally:
            sa.event.remove(deployment.log.engine, "before_cursor_execute", executed)


def test_the_number_of_statements_depends_on_indexes_and_not_on_tenants(deployment, monkeypatch):
    # Off: the guard of a scan asks every two seconds, so its statements depend on the time taken.
    monkeypatch.setattr(scan, "interrupt_when_lost", lambda *_: nullcontext())
    counts = []
    # The first is asked more, for what the process then knows.
    for tenants in (MANY[:1], MANY[:2], MANY):
        table = Table.make(deployment, Mirror(), FullText("name"))
        for version in (1, 2):
            fill(table, tenants, version)
            iteration = table.iteration(*tenants)
            with counted(deployment, monkeypatch) as found:
                outcomes = list(iterate(deployment, table.source, iteration, run_id="run"))
            assert len(outcomes) == 2 * len(tenants)
            assert not [each for each in outcomes if isinstance(each, FailedStep)]
            counts.append(found)
    assert counts[2:4] == counts[4:]


def ended(table, outcomes):
    """Return the failures by tenant and index; all others must be delivered and in step."""
    wrong = {
        (each.claim.key.tenant, each.claim.key.job_name): each.code
        for each in outcomes
        if isinstance(each, FailedStep)
    }
    behind = {
        (job.key.tenant, job.key.job_name)
        for job in table.jobs()
        if job.watermark.version < table.version or job.state is not JobState.COMPLETED
    }
    assert behind == set(wrong)
    assert len(outcomes) == len(table.jobs())
    return wrong


def plans(outcomes):
    """Return how each tenant that was delivered was read."""
    found = {}
    for each in outcomes:
        if isinstance(each, RowDelivery):
            found.setdefault(each.tenant, set()).add(each.plan.kind)
    return found


BAD_ROWS = {
    # tenant: the index that fails, the values of the row, the code
    "t0": ({"vector"}, "'x', array(1.0)", errors.SchemaError.code),
    "t1": ({"vector"}, "'x', array('NaN', 1.0)", errors.SchemaError.code),
    "t2": ({"vector", "text"}, "NULL, array(1.0, 2.0)", errors.KeyColumnError.code),
}


def test_rows_that_are_refused_stop_their_tenants_alone(deployment):
    """First in a snapshot, then in a tail."""
    indexes = (Vector("v", dimension=2, name="vector"), FullText("name", name="text"))
    table = Table.make(deployment, *indexes, key=("id", "name"))
    tenants = MANY[: len(BAD_ROWS) + 2]
    fill(table, BAD_ROWS, 1)
    for id_ in (2, 3):
        fill(table, [tenant for tenant in tenants if tenant not in BAD_ROWS], id_)
        for tenant, (_, values, _) in BAD_ROWS.items():
            fill(table, [tenant], id_, values=values)
        outcomes = table.run(table.iteration(*tenants))
        assert ended(table, outcomes) == {
            (tenant, name): code for tenant, (names, _, code) in BAD_ROWS.items() for name in names
        }
        message = next(each.message for each in outcomes if isinstance(each, FailedStep))
        assert table.source.name in message
        # What was served of them still is.
        served = table.query("SELECT DISTINCT tenant, id FROM {vector}")
        of_bad = {row for row in served if row[0] in BAD_ROWS}
        assert of_bad == ({(tenant, 1) for tenant in BAD_ROWS} if id_ == 3 else set())
        # Each tenant is charged its own rows.
        held = [job.status.counts for job in table.jobs() if job.key.tenant not in BAD_ROWS]
        assert {counts["inserted"] for counts in held} == {1}
        assert len({counts["bytes"] for counts in held}) == 1
        table.sql("DELETE FROM {t} WHERE name = 'x' OR name IS NULL")
        mended = table.materialize(*tenants)
        assert not [each for each in mended if isinstance(each, FailedStep)]
    table.check()


def test_rows_of_some_tenants_are_set_aside_and_everybody_goes_on(deployment):
    """First in a snapshot, then in a tail."""
    mirror = Mirror(types={"n": "UInt8"}, errors="dead_letter")
    columns = "tenant STRING, id BIGINT, n INT"
    table = Table.make(deployment, mirror, FullText("tenant", name="text"), columns=columns)
    other, letters = SOME[0], Counter()
    fill(table, SOME, 1, values="1")
    fill(table, [each for each in SOME if each != BAD], 2, values="1")
    fill(table, [BAD], 2, values="300")
    check_letters(table, {BAD: {2}}, {1, 2}, letters)
    # The older versions of the refused rows must not be served either.
    table.sql(f"UPDATE {{t}} SET n = 300 WHERE id = 2 AND tenant = '{BAD}'")
    fill(table, [each for each in SOME if each not in {BAD, other}], 3, values="2")
    fill(table, [BAD, other], 3, values="300")
    check_letters(table, {BAD: {2, 3}, other: {3}}, {1, 2, 3}, letters)


def check_letters(table, dead, ids, letters):
    """Iterate, check that of the ids each tenant lacks those in `dead` alone, and mend them.

    `letters`: how many each tenant has of earlier iterations; they stay.
    """
    letters.update({tenant: len(lost) for tenant, lost in dead.items()})
    iteration, log = table.iteration(*SOME), table.deployment.log
    # Its run dies after it has written: letters are not written twice either.
    run_until_crash(table, iteration, CrashPoint("before", "complete"))
    log.recover_run_jobs({"dead"})
    assert ended(table, table.run(iteration)) == {}
    for each in table.verdicts():
        lost, held = len(dead.get(each.tenant, ())), letters[each.tenant]
        wrong = (each.missing, each.extra, each.different, each.dead)
        assert wrong == ((lost, 0, 0, held) if each.index == "mirror" else (0, 0, 0, 0)), each
    held = table.query("SELECT tenant, groupUniqArray(id) FROM {mirror} GROUP BY tenant")
    expected = {each: ids - dead.get(each, set()) for each in SOME}
    assert {tenant: set(found) for tenant, found in held} == expected
    table.sql("UPDATE {t} SET n = 4 WHERE n = 300")
    table.materialize(*SOME)
    table.check()


def test_a_run_goes_on_without_jobs_that_it_has_not_claimed_or_that_are_taken(deployment, table):
    iteration = table.iteration(*SOME)
    left_out = next(key for key in iteration.jobs if (key.tenant, key.job_name) == (BAD, "text"))
    keys = tuple(key for key in iteration.jobs if key != left_out)
    outcomes = table.run(
        type(iteration).from_jobs([j for j in table.jobs() if j.key in keys], iteration.to)
    )
    assert len(outcomes) == 2 * len(SOME) - 1
    assert table.query("SELECT count() FROM {mirror}") == [(len(SOME),)]
    assert table.query("SELECT count() FROM {text}") == [(len(SOME) - 1,)]
    table.follow()
    table.check()
    fill(table, SOME, 2)
    found = iterate(deployment, table.source, table.iteration(*SOME), run_id="run")
    first = next(found)
    others = [job for job in table.jobs() if job.key.job_name != first.claim.key.job_name]
    changed, taken = [job for job in others if job.key.tenant in {BAD, SOME[0]}]
    deployment.log.update(changed.key.tenant, changed.name, SpecUpdate(priority=9), interrupt=True)
    deployment.log.cancel([taken.key])
    lost = {(job.key.tenant, job.name.job) for job in (changed, taken)}
    assert ended(table, [first, *found]) == dict.fromkeys(lost, errors.FenceError.code)
    states = {job.key for job in table.jobs() if job.state is JobState.CANCELED}
    assert states == {changed.key, taken.key}
    table.follow()
    table.check()


@pytest.fixture
def unreadable(monkeypatch):
    """Give a function that makes reads of some tenants fail; it returns each read's tenants."""
    read = SourceReader.make_frame

    def make(tenants, error):
        scans = []

        def rows(reader, *args, **named):
            scans.append(reader.tenants)
            if reader.tenants & tenants:
                raise error("a file is broken")
            return read(reader, *args, **named)

        monkeypatch.setattr(SourceReader, "make_frame", rows)
        return scans

    return make


def test_a_service_that_is_down_stops_all_at_once_and_a_tenant_that_cannot_be_read_itself(
    table, unreadable
):
    scans = unreadable({*SOME}, errors.UnavailableError)
    with pytest.raises(errors.UnavailableError):
        table.run(table.iteration(*SOME))
    assert len(scans) == 1
    assert {job.status.code for job in table.jobs()} == {errors.UnavailableError.code}
    unreadable({BAD}, errors.ReadError)
    outcomes = table.run(table.iteration(*SOME))
    assert ended(table, outcomes) == dict.fromkeys(
        [(BAD, "mirror"), (BAD, "text")], errors.ReadError.code
    )


def test_a_tenant_that_cannot_be_read_stops_no_other_where_each_has_an_index_alone(
    table, unreadable
):
    good = SOME[0]
    iteration = table.iteration(BAD, good)
    only = {(BAD, "mirror"), (good, "text")}
    keys = [key for key in iteration.jobs if (key.tenant, key.job_name) in only]
    unreadable({BAD}, errors.ReadError)
    outcomes = table.run(iteration.select_jobs(keys))
    wrong = {each.claim.key.tenant for each in outcomes if isinstance(each, FailedStep)}
    assert (wrong, len(outcomes)) == ({BAD}, 2)


def test_where_no_tenant_can_be_read_only_those_tried_alone_are_blamed(deployment, unreadable):
    table = Table.make(deployment, Mirror())
    fill(table, MANY, 1)
    scans = unreadable({*MANY}, errors.ReadError)
    wrong = ended(table, table.run(table.iteration(*MANY)))
    alone = {tenant for scan_ in scans if len(scan_) == 1 for tenant in scan_}
    assert (len(scans), len(alone)) == (1 + TENANTS_TRIED, TENANTS_TRIED)
    assert wrong == {
        (tenant, "mirror"): errors.ReadError.code if tenant in alone else UntriedError.code
        for tenant in MANY
    }
    assert {job.key.tenant for job in table.jobs() if job.state is JobState.ERROR} == alone


def test_a_tenant_that_is_taken_while_it_is_tried_alone_stops_alone(deployment, monkeypatch):
    table = Table.make(deployment, Mirror())
    fill(table, SOME, 1)
    read = SourceReader.make_frame

    def rows(reader, *args, **named):
        if reader.tenants == {BAD}:
            deployment.log.cancel([job.key for job in table.jobs() if job.key.tenant == BAD])
            raise errors.FenceError("taken")
        if BAD in reader.tenants:
            raise errors.ReadError("a file is broken")
        return read(reader, *args, **named)

    monkeypatch.setattr(SourceReader, "make_frame", rows)
    outcomes = table.run(table.iteration(*SOME))
    assert ended(table, outcomes) == {(BAD, "mirror"): errors.FenceError.code}


def made_unreadable(file):
    """Let the file refer to itself, so that the system refuses to open it."""
    file.unlink()
    file.symlink_to(file.name)


FILES = {
    # tenant: how its file is spoiled, the code
    "t0": (Path.unlink, errors.FeedGoneError.code),
    "t1": (made_unreadable, errors.UnreadableError.code),
    "t2": (lambda file: file.write_bytes(b"no Parquet"), errors.SourceError.code),
}


def test_data_files_at_fault_stop_their_tenants_alone(table):
    log = table.deployment.make_delta_log(table.source)
    for tenant, (spoil, _) in FILES.items():
        for file in log.list_data_files(table.version, [tenant]):
            spoil(Path(table.path, file.path))
    wrong = ended(table, table.run(table.iteration(*SOME)))
    assert wrong == {
        (tenant, name): code for tenant, (_, code) in FILES.items() for name in ("mirror", "text")
    }


def test_a_feed_file_that_turns_out_to_be_gone_makes_its_tenant_alone_be_read_whole(
    table, monkeypatch
):
    """In an object store the planner does not look whether the files are there."""
    table.run(table.iteration(*SOME))
    fill(table, SOME, 2)
    held = DeltaTable(table.path)
    held.optimize.compact(partition_filters=[("tenant", "=", BAD)])
    held.vacuum(0, enforce_retention_duration=False, dry_run=False)
    monkeypatch.setattr(LocalFiles, "find_missing", lambda *_: None)
    outcomes = table.run(table.iteration(*SOME))
    kinds = {tenant: {ReadKind.TAIL} for tenant in SOME} | {BAD: {ReadKind.SNAPSHOT}}
    assert plans(outcomes) == kinds
    assert ended(table, outcomes) == {}
    table.check()


def test_rows_without_a_key_are_not_doubled_when_tenants_are_tried_in_smaller_sets(deployment):
    table = Table.make(deployment, Mirror(append=True), key=())
    fill(table, SOME, 1)
    table.run(table.iteration(*SOME))
    rows = table.view(table.source.indexes[0], "__rows")
    deployment.endpoint.get_client().command(
        f"ALTER TABLE {rows} ADD CONSTRAINT odd CHECK "
        f"throwIf(tenant = '{BAD}' AND id = 2, 'not this one') = 0"
    )
    fill(table, SOME, 2, 2, 3)
    outcomes = table.run(table.iteration(*SOME))
    assert ended(table, outcomes) == {(BAD, "mirror"): ClickHouseError.code}
    assert plans(outcomes) == {tenant: {ReadKind.TAIL} for tenant in SOME if tenant != BAD}
    counts = "SELECT tenant, count() FROM {mirror} GROUP BY 1 ORDER BY 1"
    assert table.query(counts) == [(tenant, 1 if tenant == BAD else 4) for tenant in SOME]


class Particular:
    """Counts the rows of each tenant; refuses one tenant, or all."""

    dislikes = BAD
    says = False
    error = ValueError
    calls = 0
    held: ClassVar[Counter[str]] = Counter()

    def __init__(self, source, info):
        self.source = source

    def consume(self, retriever):
        type(self).calls += 1
        found, done = Counter(), False
        while not done:
            upserts, _, done = retriever.next()
            for tenant, rows in retriever.split_by_tenant(upserts).items():
                if self.dislikes in {tenant, "*"}:
                    error = self.error(f"no rows of {tenant}, please")
                    if not self.says:
                        raise error
                    retriever.refuse(tenant, errors.SchemaError(str(error)))
                found[tenant] += rows.num_rows
        self.held.update({tenant: n for tenant, n in found.items() if tenant in retriever.tenants})


@pytest.fixture
def particular(deployment, monkeypatch):
    """Give a function that makes a table with a mirror and a user's consumer for each tenant."""

    def make(tenants, kind=Particular, options=None, **likes):
        for name, value in likes.items():
            monkeypatch.setattr(Particular, name, value)
        monkeypatch.setattr(Particular, "calls", 0)
        monkeypatch.setattr(Particular, "held", Counter())
        table = Table.make(deployment, Mirror())
        fill(table, tenants, 1, 2)
        source = table.source
        info = ConsumerInfo(
            type=f"{kind.__module__}:{kind.__name__}",
            db=source.database,
            table=source.table,
            job="own",
            options=options or {},
        )
        spec = JobSpec(detail=IterationDetail(consumer=info))
        name = JobID(db=source.database, table=source.table, job="own")
        table_id = deployment.make_delta_log(source).get_table_id()
        for tenant in tenants:
            deployment.log.register(tenant, name, table_id, spec)
        return table

    return make


@pytest.mark.parametrize("says", [False, True], ids=["raises", "says whose it is"])
def test_a_consumer_of_the_user_s_that_refuses_a_tenant_serves_the_others(particular, says):
    table = particular(SOME, says=says, error=errors.UnavailableError)
    outcomes = list(iterate(table.deployment, table.source, table.iteration(*SOME), run_id="run"))
    (failed,) = [each for each in outcomes if isinstance(each, FailedStep)]
    assert (failed.claim.key.tenant, failed.claim.key.job_name) == (BAD, "own")
    assert f"no rows of {BAD}, please" in failed.message
    assert {tenant for tenant, rows in Particular.held.items() if rows == 2} >= {*SOME} - {BAD}
    assert (Particular.calls == 1) is says
    assert set(ended(table, outcomes)) == {(BAD, "own")}


def test_a_consumer_that_fails_for_all_is_tried_with_few(particular):
    table = particular(MANY, dislikes="*")
    outcomes = list(iterate(table.deployment, table.source, table.iteration(*MANY), run_id="run"))
    wrong = ended(table, outcomes)
    assert set(wrong) == {(tenant, "own") for tenant in MANY}
    assert Particular.calls == 1 + TENANTS_TRIED
    assert Counter(wrong.values())[UntriedError.code] == len(MANY) - TENANTS_TRIED
    assert table.query("SELECT count() FROM {mirror}") == [(2 * len(MANY),)]


def test_a_consumer_that_cannot_be_made_fails_for_each_tenant(particular, monkeypatch):
    table = particular(SOME)

    def refuses(*_):
        raise ValueError("no such folder")

    monkeypatch.setattr(Particular, "__init__", refuses)
    wrong = ended(table, table.run(table.iteration(*SOME)))
    assert wrong == {(tenant, "own"): errors.ConfigError.code for tenant in SOME}


def test_beside_a_consumer_of_the_user_s_a_twin_makes_its_tenant_alone_be_read_whole(particular):
    table = particular(SOME, dislikes=None)
    table.run(table.iteration(*SOME))
    fill(table, SOME, 3)
    fill(table, [BAD], 1)
    outcomes = table.run(table.iteration(*SOME))
    # The snapshot has one key twice, which only the mirror refuses.
    assert ended(table, outcomes) == {(BAD, "mirror"): errors.KeyColumnError.code}
    kinds = {tenant: {ReadKind.TAIL} for tenant in SOME} | {BAD: {ReadKind.SNAPSHOT}}
    assert plans(outcomes) == kinds


def test_a_job_lost_at_the_watermark_stops_alone(particular, monkeypatch, tmp_path):
    url = f"sqlite:///{tmp_path / 'iscp_log.sqlite'}"
    table = particular(SOME, kind=InOneTransaction, options={"url": url})
    log = table.deployment.log
    own = [j.key for j in table.jobs() if (j.key.tenant, j.key.job_name) == (BAD, "own")]
    monkeypatch.setattr(InOneTransaction, "lose", staticmethod(lambda: log.cancel(own)))
    outcomes = table.run(table.iteration(*SOME))
    assert ended(table, outcomes) == {(BAD, "own"): errors.FenceError.code}
    with sa.create_engine(url).connect() as connection:
        held = connection.exec_driver_sql("SELECT * FROM mine ORDER BY 1, 2").all()
    assert held == [(tenant, id_) for tenant in SOME if tenant != BAD for id_ in (1, 2)]


def test_a_tenant_that_has_values_of_an_earlier_column_stops_alone(deployment, monkeypatch):
    """Its index did not answer when the reading was planned, or it would have been a snapshot."""
    table = Table.make(deployment, Mirror())
    fill(table, SOME, 1)
    table.follow()
    table.sql("ALTER TABLE {t} ADD COLUMNS (w STRING)")
    fill(table, SOME, 2, values="'some words', array(1.0, 2.0), 'w'")
    answers = iter([{BAD: "w"}])

    def kept(*_):
        for found in answers:
            return found
        raise errors.UnavailableError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(SourceReader, "_find_readded", lambda *_: {})
        patched.setattr(IndexStore, "find_filled_columns", kept)
        outcomes = table.run(table.iteration(*SOME))
    assert ended(table, outcomes) == {(BAD, "mirror"): errors.UnavailableError.code}
    (told,) = [each.message for each in outcomes if isinstance(each, FailedStep)]
    assert "earlier column 'w'" in told
    # In truth it has none, so it goes on.
    table.run(table.iteration(BAD))
    table.check()
