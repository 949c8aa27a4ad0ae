"""Barriers on the real engine: which inserts they let in, refuse and wait for."""

import itertools
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from threading import Thread

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp_dagster.clickhouse.connect import barrier
from iscp_dagster.clickhouse.connect.barrier import Barrier
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import (
    ClickHouseBusyError,
    ClickHouseError,
    OvertakenError,
)
from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.clickhouse.connect.table_barrier import ALL_REPLICAS_SETTINGS, RACES, TableBarrier
from iscp_dagster.clickhouse.write.inserts import insert
from support.errors import raises_naming
from support.services.fault_proxy import faulty
from support.services.insert_gate import insert_gate

pytestmark = pytest.mark.slow

NUMBERS = itertools.count()
COLUMN = "ten`ant (x), splitByChar(',', 'AB')"
FIRST = Barrier(epoch=5, floor=5)
NAMES = ["a", "b", "", "it's \\ `odd`, (x)", "ä\0\n", "x" * 300]


@pytest.fixture(scope="module")
def make(endpoint):
    """Give a function that makes a table with a barrier."""
    endpoint.get_client().command("CREATE DATABASE IF NOT EXISTS barred")

    def build(*, column=COLUMN, first=FIRST, **named):
        table = f"t{next(NUMBERS)}"
        endpoint.get_client().command(
            f"CREATE TABLE barred.{table} ({quote_identifier(COLUMN)} String, n Int64, "
            f"{first.render_constraint(column)}) "
            f"ENGINE = MergeTree PARTITION BY {quote_identifier(COLUMN)} ORDER BY n"
        )
        return TableBarrier(
            endpoint=endpoint, database="barred", table=table, column=column, **named
        )

    return build


def write(gate, epoch, *tenants):
    rows = pa.table({COLUMN: pa.array(tenants), "n": pa.array([1] * len(tenants), pa.int64())})
    token = f"{next(NUMBERS)}"
    insert(gate.endpoint, "barred", gate.table, rows, token=token, name="it", epoch=epoch)


def lets_in(gate, epoch, *tenants):
    try:
        write(gate, epoch, *tenants)
    except OvertakenError:
        return False
    return True


TAKEN_OVER = st.lists(st.sets(st.sampled_from(NAMES), max_size=3), min_size=1, max_size=3)


@settings(max_examples=3)
@given(taken_over=TAKEN_OVER, first=st.sampled_from([0, 5]))
def test_whoever_looked_before_a_tenant_was_taken_over_is_refused_for_it_alone(
    make, taken_over, first
):
    gate = make(first=Barrier(epoch=first, floor=first))
    least, epochs = dict.fromkeys(NAMES, first), [gate.read_epoch()]
    for tenants in taken_over:
        epochs.append(gate.reject_earlier_inserts(tenants))
        least |= dict.fromkeys(tenants, epochs[-1])
    assert epochs == sorted(set(epochs))
    assert gate.read_epoch() == epochs[-1]
    for epoch in {0, *epochs}:
        admitted = {name for name in NAMES if lets_in(gate, epoch, name)}
        assert admitted == {name for name in NAMES if epoch >= least[name]}
    # One refused row is enough to refuse the insert.
    shut = [name for name in NAMES if least[name] > epochs[0]]
    assert not shut or not lets_in(gate, epochs[0], *NAMES)


def test_a_table_of_no_tenants_has_one(make):
    gate = make(column=None)
    assert lets_in(gate, gate.read_epoch(), "a")
    before = gate.read_epoch()
    after = gate.reject_earlier_inserts({"default"})
    assert (lets_in(gate, before, "a"), lets_in(gate, after, "a")) == (False, True)


def test_it_is_raised_on_every_replica_whatever_the_profile_says(make, clickhouse_url):
    gate = make()
    with faulty(clickhouse_url) as proxy:
        proxy.profile |= {"alter_sync": "0", "replication_wait_for_inactive_replica_timeout": "0"}
        replace(gate, endpoint=ClickHouseEndpoint.parse(proxy.url)).reject_earlier_inserts({"a"})
        sent = proxy.altered[f"barred.{gate.table}"]
    assert {name: sent[name] for name in ALL_REPLICAS_SETTINGS} == {
        "alter_sync": "2",
        "replication_wait_for_inactive_replica_timeout": "60",
    }


def test_runs_that_race_all_raise_it(make):
    gate = make()
    names = [f"tenant {n}" for n in range(RACES // 2)]
    with ThreadPoolExecutor(len(names)) as pool:
        epochs = dict(
            zip(
                names,
                pool.map(lambda name: gate.reject_earlier_inserts({name}), names),
                strict=True,
            )
        )
    assert sorted(epochs.values()) == list(range(6, len(names) + 6))
    for name, epoch in epochs.items():
        assert not lets_in(gate, epoch - 1, name)
        assert lets_in(gate, epoch, name)


@pytest.mark.parametrize("number", [0, 2])
def test_a_table_whose_barrier_somebody_changed_is_refused(make, number):
    gate = make()
    name = quote_identifier("barred", gate.table)
    change = "ADD CONSTRAINT iscp_barrier_9 CHECK 1" if number else f"DROP CONSTRAINT {FIRST.name}"
    gate.endpoint.get_client().command(f"ALTER TABLE {name} {change}")
    for look in (gate.read_epoch, lambda: gate.reject_earlier_inserts({"a"})):
        with raises_naming(ClickHouseError, f"barred.{gate.table}", f"{number} constraints"):
            look()


def test_of_too_many_tenants_those_taken_over_long_ago_are_not_told_apart(monkeypatch):
    monkeypatch.setattr(barrier, "MOST_TENANTS", 3)
    raised = Barrier(epoch=10, floor=10)
    for name in "abcde":
        raised = raised.raise_epochs({name})
    assert (raised.epoch, raised.floor, raised.tenants) == (15, 12, {"c": 13, "d": 14, "e": 15})
    monkeypatch.setattr(barrier, "MOST_BYTES", 10)
    raised = raised.raise_epochs({"long" * 10})
    assert (raised.floor, raised.tenants) == (16, {})


def test_the_largest_barrier_is_one_that_the_server_takes(make):
    gate = make()
    names = [f"a tenant of a long name {'x' * 100} {n}" for n in range(2 * barrier.MOST_TENANTS)]
    first = gate.reject_earlier_inserts(names[:1])
    epoch = gate.reject_earlier_inserts(names)
    assert not any(lets_in(gate, first, name) for name in names[:: len(names) // 4])
    assert lets_in(gate, epoch, *names[:5])


def start_insert(gate, door):
    """Start an insert that waits inside ClickHouse; return a future of how it ends."""
    outcome = Future()

    def run():
        try:
            write(gate, gate.read_epoch(), "a")
            outcome.set_result("written")
        except (OvertakenError, ClickHouseBusyError) as error:
            outcome.set_result(type(error))

    Thread(target=run, daemon=True).start()
    assert door.met.wait(30)
    return outcome


def test_what_was_let_in_before_is_awaited(make):
    gate = make()
    with insert_gate(gate.endpoint.get_client().command, f"barred.{gate.table}") as door:
        outcome, waits = start_insert(gate, door), []

        def sleep(seconds):
            waits.append(seconds)
            door.open()
            outcome.result(30)

        replace(gate, sleep=sleep).reject_earlier_inserts({"a"})
        assert outcome.done()
        assert outcome.result() == "written"
        assert waits


def test_what_does_not_end_is_killed_and_nothing_is_published_before_it_has(make, monkeypatch):
    monkeypatch.setattr("iscp_dagster.clickhouse.connect.table_barrier.GRACE_SECONDS", 0.3)
    monkeypatch.setattr("iscp_dagster.clickhouse.connect.table_barrier.KILL_SECONDS", 0.3)
    gate = make(sleep=lambda _: None)
    with insert_gate(gate.endpoint.get_client().command, f"barred.{gate.table}") as door:
        outcome = start_insert(gate, door)
        with raises_naming(ClickHouseBusyError, gate.endpoint.address, f"barred.{gate.table}"):
            gate.reject_earlier_inserts({"a"})
        # It was killed and sent again by its run, and is now too late.
        door.open()
        assert outcome.result(60) is OvertakenError
    gate.reject_earlier_inserts({"a"})
