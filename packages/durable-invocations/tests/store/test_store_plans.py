"""No operation reads a whole table, however many invocations there are; on SQLite."""

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
from runtime_support.runtimes.manual_runtime import Desk, make_awakeable_id, value

SMALL = {"durable_services", "durable_service_deployments", "durable_runtimes"}
"""Tables with a few rows."""
WHOLE = re.compile(r"SCAN (durable_\w+)\b(?! USING (?:COVERING )?INDEX)")
# A partial index over what is due, or the end of a list.
BY_INDEX = re.compile(r"SCAN (durable_\w+) USING (?:COVERING )?INDEX (\w+)")
SHORT = {"durable_invocations_ready", "durable_invocations_due", "durable_timers_by_time"}
TO_A_LIMIT = {"durable_invocations_ended"}


@pytest.fixture
def plans(tmp_path):
    """Every statement that is executed, with its plan."""
    engine = open_database(f"sqlite:///{tmp_path}/log.db", keep_open=True)
    SqlStore(engine).ensure()
    found: dict[str, list[str]] = {}

    def before(connection, _cursor, statement, parameters, _context, many):
        if statement.startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
            cursor = connection.connection.cursor()
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters[0] if many else parameters)
            found[statement] = [row[3] for row in cursor.fetchall()]

    sa.event.listen(engine, "before_cursor_execute", before)
    yield engine, found
    engine.dispose()


def test_every_operation_finds_its_rows_by_an_index(plans):
    engine, found = plans
    desk = Desk(engine)
    call = pb.CallEntryMessage(service_name="Cart", handler_name="add", key="k")
    first, behind = desk.submit("Cart/k/add", idempotency_key="a").id, desk.submit("Cart/k/add").id
    mine = desk.begin("Signup/me/run")
    for message in (
        *(call, pb.AwakeableEntryMessage(), pb.GetPromiseEntryMessage(key="mail")),
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
    for each in desk.claim():
        desk.finish(each)
    desk.store.look("one", [first])
    desk.store.find("Signup", "me", "run", None)
    desk.store.invocation(first)
    desk.store.read_journal(first)
    desk.store.state("Cart", "k")
    desk.store.invocations(InvocationFilter(service="Cart", key="k"))
    desk.store.invocations(InvocationFilter(parent=first))
    assert len(found) > 40
    bad = {
        statement: plan
        for statement, plan in found.items()
        for step in plan
        if ((at := WHOLE.search(step)) and at[1] not in SMALL)
        or (
            (at := BY_INDEX.search(step)) and at[1] not in SMALL and at[2] not in SHORT | TO_A_LIMIT
        )
    }
    assert bad == {}


def test_a_claim_looks_at_no_more_of_a_large_state_than_it_takes_along(plans):
    engine, _ = plans
    desk = Desk(engine)
    claims = []
    for key, count in (("some", 5_000), ("many", 40_000)):
        row = {"service": "Cart", "key": key, "value": b"x" * 20}
        rows = [row | {"name": b"%06d" % number} for number in range(count)]
        with engine.begin() as connection:
            connection.execute(sa.insert(SERVICE_STATE_TABLE), rows)
        desk.submit(f"Cart/{key}/add")
        with steps(engine) as counted:
            (mine,) = desk.claim(eager_bytes=1_000_000)
        assert mine.partial_state
        assert len(mine.state) == MOST_EAGER
        assert mine.state[-1] == (b"%06d" % (MOST_EAGER - 1), b"x" * 20)
        claims.append(len(counted))
    assert claims[1] < 1.1 * claims[0]


@contextmanager
def steps(engine):
    """Gets one item for each thousand steps of SQLite's machine."""
    counted = []
    with engine.connect() as connection:
        at = connection.connection.driver_connection
        at.set_progress_handler(lambda: counted.append(1), 1_000)
    yield counted
    at.set_progress_handler(None, 0)
