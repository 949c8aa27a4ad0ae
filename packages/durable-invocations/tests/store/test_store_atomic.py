"""An operation is done completely or not at all, wherever it dies, on SQLite and PostgreSQL."""

import subprocess
import sys

import pytest
import sqlalchemy as sa

from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.runtime.store import operations as op
from runtime_support.runtimes.manual_runtime import (
    AWAKEABLE,
    CALL,
    FIRST,
    SERVICES,
    TABLES,
    Desk,
    DiedError,
    die_at,
    make_awakeable_id,
    make_submission,
    value,
)

CART = pb.CallEntryMessage(service_name="Cart", handler_name="add", key="k")


def read_tables(engine):
    with engine.connect() as connection:
        return {
            table.name: connection.execute(sa.select(table).order_by(*table.primary_key)).all()
            for table in TABLES
        }


def commit(claim, index, message):
    return op.CommitEntry(id=claim.id, fence=claim.fence, index=index, frame=make_frame(message))


def begin_and_suspend(desk, path, *messages):
    """An invocation that is suspended on these entries."""
    mine = desk.begin(path)
    for message in messages:
        desk.commit(mine, message)
    desk.suspend(mine, *range(1, len(messages) + 1))
    return mine


def a_call(desk):
    return commit(desk.begin(), 1, CART)


def a_call_to_a_key_in_use(desk):
    desk.begin("Cart/k/add")
    return commit(desk.begin(), 1, CART)


def a_delayed_call(desk):
    at = desk.now + 1_000
    later = pb.OneWayCallEntryMessage(service_name="Plain", handler_name="go", invoke_time=at)
    return commit(desk.begin(), 1, later)


def a_sleep(desk):
    return commit(desk.begin(), 1, pb.SleepEntryMessage(wake_up_time=desk.now + 1_000))


def a_state_that_is_set(desk):
    return commit(desk.begin("Cart/k/add"), 1, pb.SetStateEntryMessage(key=b"n", value=b"1"))


def a_promise_that_is_waited_for(desk):
    begin_and_suspend(desk, "Signup/me/run", pb.GetPromiseEntryMessage(key="mail"))
    completes = pb.CompletePromiseEntryMessage(key="mail", completion_value=b"ok")
    return commit(desk.begin("Signup/me/poke"), 1, completes)


def an_awakeable_that_is_waited_for(desk):
    mine = begin_and_suspend(desk, "Plain/go", AWAKEABLE)
    completes = pb.CompleteAwakeableEntryMessage(id=make_awakeable_id(mine, 1), value=b"v")
    return commit(desk.begin(), 1, completes)


def an_awakeable_that_came_early(desk):
    mine = desk.begin()
    desk.do(op.CompleteAwakeable(awakeable=make_awakeable_id(mine, 1), result=value(b"v")))
    return commit(mine, 1, AWAKEABLE)


def a_cancellation(desk):
    mine = begin_and_suspend(desk, "Plain/go", CALL, AWAKEABLE)
    return commit(desk.begin(), 1, pb.CancelInvocationEntryMessage(invocation_id=mine.id))


def an_end_that_invocations_wait_for(desk):
    first = desk.begin("Cart/k/add")
    desk.submit("Cart/k/add")
    target = pb.AttachInvocationEntryMessage(invocation_id=first.id)
    begin_and_suspend(desk, "Plain/go", target)
    desk.commit(first, pb.OutputEntryMessage(value=b"out"))
    return op.Finish(id=first.id, fence=first.fence)


def a_kill(desk):
    mine = begin_and_suspend(desk, "Cart/k/add", CALL)
    desk.submit("Cart/k/add")
    return op.Kill(id=mine.id)


def timers_that_are_due(desk):
    begin_and_suspend(desk, "Plain/go", pb.SleepEntryMessage(wake_up_time=desk.now + 1_000))
    desk.submit("Cart/k/add", at=desk.now + 1_000)
    desk.watch.move(1)
    return op.Fire(now=desk.now)


def a_submission(desk):
    return make_submission("Cart/k/add", idempotency_key="a")


def a_claim(desk):
    desk.submit()
    desk.submit("Cart/k/add")
    return op.Claim(owner="one", most=5)


def a_deployment(_desk):
    return op.Register(deployment=FIRST, services=SERVICES[:2])


def an_expired_retention(desk):
    desk.finish(desk.begin("Signup/me/run"))
    desk.watch.move(90_000)
    return op.Prune(now=desk.now)


@pytest.mark.parametrize(
    "scene",
    [
        *(a_call, a_call_to_a_key_in_use, a_delayed_call, a_sleep, a_state_that_is_set),
        *(a_promise_that_is_waited_for, an_awakeable_that_is_waited_for),
        *(an_awakeable_that_came_early, a_cancellation, an_end_that_invocations_wait_for, a_kill),
        *(timers_that_are_due, a_submission, a_claim, a_deployment, an_expired_retention),
    ],
    ids=lambda scene: scene.__name__,
)
def test_an_operation_that_dies_leaves_nothing(desk, engine, scene):
    operation = scene(desk)
    before, died = read_tables(engine), 0
    while True:
        try:
            with die_at(engine, died + 1):
                desk.do(operation)
        except DiedError:
            died += 1
            assert read_tables(engine) == before, died
        else:
            break
    assert died >= 2
    after = read_tables(engine)
    assert after != before
    # A runtime that does not know the outcome does it again, which changes nothing.
    if isinstance(operation, op.CommitEntry):
        desk.do(operation)
        assert read_tables(engine) == after


DYING = """
import os, sys
import sqlalchemy as sa
from runtime_support.runtimes.manual_runtime import Desk
from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.sql.database import open_database
engine = open_database(sys.argv[1])
desk = Desk(engine)
mine = desk.begin()
print(mine.id, flush=True)
def before(_connection, _cursor, statement, *_):
    if statement.startswith(sys.argv[2]):
        os.kill(os.getpid(), 9)
sa.event.listen(engine, "before_cursor_execute", before)
desk.commit(mine, pb.CallEntryMessage(service_name="Plain", handler_name="go"))
"""


@pytest.mark.parametrize("statement", ["INSERT INTO durable_journal", "INSERT INTO durable_waits"])
def test_a_process_that_is_killed_between_entry_and_action_leaves_neither(desk, engine, statement):
    url = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-c", DYING, url, statement]
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    killed = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert killed.returncode == -9, killed.stderr
    (id_,) = killed.stdout.split()
    assert [invocation.id for invocation in desk.store.invocations()] == [id_]
    assert len(desk.store.read_journal(id_)) == 1
    assert desk.do(op.Recover(beats=(("one", 0),))) == 1
    assert desk.commit(desk.claim_one(), CALL).index == 1
    assert len(Desk(engine, desk.watch).store.invocations()) == 2
