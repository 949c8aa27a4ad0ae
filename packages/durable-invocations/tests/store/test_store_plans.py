"""No operation scans a table, however many invocations there are; on SQLite."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.runtime.sql.database import open_database
from durable_invocations.runtime.sql.lifecycle.claiming import MOST_EAGER
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.sql.tables import SERVICE_STATE_TABLE
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.views import InvocationFilter
from runtime_support.runtimes.manual_runtime import AWAKEABLE, Desk, make_awakeable_id, value

SMALL = {"durable_services", "durable_service_deployments", "durable_runtimes"}
"""Tables with a few rows."""
WHOLE = re.compile(r"SCAN (durable_\w+)\b(?! USING (?:COVERING )?INDEX)")
# A partial index over what is due, or the end of a list.
BY_INDEX = re.compile(r"SCAN (durable_\w+) USING (?:COVERING )?INDEX (\w+)")
SHORT = {"durable_invocations_ready", "durable_invocations_due", "durable_timers_by_time"}
TO_A_LIMIT = {"durable_invocations_ended"}


@pytest.fixture
def plans(tmp_path):
    """An engine, and the plan of each statement that it executes."""
    engine = open_database(f"sqlite:///{tmp_path}/log.db", keep_open=True)
    SqlStore(engine).ensure()
    steps: dict[str, list[str]] = {}

    def explain(connection, _cursor, statement, parameters, _context, many):
        if statement.startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
            cursor = connection.connection.cursor()
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters[0] if many else parameters)
            steps[statement] = [row[3] for row in cursor.fetchall()]

    sa.event.listen(engine, "before_cursor_execute", explain)
    yield engine, steps
    engine.dispose()


def scans_table(step):
    """Whether this step of a plan reads a large table, or a whole index of one."""
    if table := WHOLE.search(step):
        return table[1] not in SMALL
    index = BY_INDEX.search(step)
    return bool(index) and index[1] not in SMALL and index[2] not in SHORT | TO_A_LIMIT


def test_every_operation_finds_its_rows_by_an_index(plans):
    engine, steps = plans
    desk = Desk(engine)
    call = pb.CallEntryMessage(service_name="Cart", handler_name="add", key="k")
    first, behind = desk.submit("Cart/k/add", idempotency_key="a").id, desk.submit("Cart/k/add").id
    mine = desk.begin("Signup/me/run")
    for message in (
        *(call, AWAKEABLE, pb.GetPromiseEntryMessage(key="mail")),
        *(pb.SleepEntryMessage(wake_up_time=desk.now + 1), pb.GetStateKeysEntryMessage()),
        *(pb.GetStateEntryMessage(key=b"n"), pb.SetStateEntryMessage(key=b"n", value=b"1")),
        *(pb.ClearStateEntryMessage(key=b"n"), pb.ClearAllStateEntryMessage()),
        pb.AttachInvocationEntryMessage(invocation_id=first),
        pb.GetInvocationOutputEntryMessage(call_entry_index=1),
        pb.GetCallInvocationIdEntryMessage(call_entry_index=1),
        pb.AttachInvocationEntryMessage(
            workflow_target=pb.WorkflowTarget(workflow_name="Signup", workflow_key="you")
        ),
        pb.CompletePromiseEntryMessage(key="mail", completion_value=b"ok"),
        pb.CancelInvocationEntryMessage(invocation_id=behind),
    ):
        assert not hasattr(desk.commit(mine, message), "code"), message
    desk.suspend(mine, 2, 4)
    desk.do(op.CompleteAwakeable(awakeable=make_awakeable_id(mine, 2), result=value(b"v")))
    desk.fire(1)
    for operation in (
        *(op.Release(owner="one"), op.Beat(owner="one"), op.Recover(beats=(("one", 1),))),
        *(op.TakeNews(owner="one"), op.Prune(now=desk.now), op.Pause(id=first)),
        *(op.Resume(id=first), op.Cancel(id=mine.id), op.Kill(id=mine.id), op.Purge(id=mine.id)),
    ):
        desk.do(operation)
    for claim in desk.claim():
        desk.finish(claim)
    desk.store.look("one", [first])
    desk.store.find("Signup", "me", "run", None)
    desk.store.invocation(first)
    desk.store.read_journal(first)
    desk.store.state("Cart", "k")
    desk.store.invocations(InvocationFilter(service="Cart", key="k"))
    desk.store.invocations(InvocationFilter(parent=first))
    assert len(steps) > 40
    scans = {statement: plan for statement, plan in steps.items() if any(map(scans_table, plan))}
    assert scans == {}


def test_a_claim_reads_no_more_of_a_large_state_than_it_returns(plans):
    engine, _ = plans
    desk = Desk(engine)
    sizes = []
    for key, count in (("some", 5_000), ("many", 40_000)):
        row = {"service": "Cart", "key": key, "value": b"x" * 20}
        rows = [row | {"name": b"%06d" % number} for number in range(count)]
        with engine.begin() as connection:
            connection.execute(sa.insert(SERVICE_STATE_TABLE), rows)
        desk.submit(f"Cart/{key}/add")
        with counting_steps(engine) as steps:
            (mine,) = desk.claim(eager_bytes=1_000_000)
        assert mine.partial_state
        assert len(mine.state) == MOST_EAGER
        assert mine.state[-1] == (b"%06d" % (MOST_EAGER - 1), b"x" * 20)
        sizes.append(len(steps))
    assert sizes[1] < 1.1 * sizes[0]


@contextmanager
def counting_steps(engine):
    """A list that gets an item for each thousand steps of SQLite's virtual machine."""
    steps = []
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        driver.set_progress_handler(lambda: steps.append(1), 1_000)
    yield steps
    driver.set_progress_handler(None, 0)
