"""The outbox over SQLite and PostgreSQL: due events, batches, leases, replays."""

import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from iscp_dagster.model.errors import ConfigError
from iscp_dagster.webhooks.answers import EndpointChange, EndpointHealth
from iscp_dagster.webhooks.history import OutboxSelection
from iscp_dagster.webhooks.recording import EndpointState
from runtime_support.manual_clock import NOON
from sql_transactions.engine import begin_transaction
from support.outbox.outbox_events import DEAD, DELIVERED, again, event, put, result


def claim_ids(outbox, *, room=10, busy=(), **batches):
    """Return the ids of the due events, as one list for each piece of work."""
    work = outbox.prepare_work("alerts", room=room, busy=busy, **batches)
    return sorted([event.event_id for m in lane.messages for event in m.events] for lane in work)


def batch_id(ids):
    return "+".join(ids)


def end(outbox, outcome, *ids, status=200, endpoint=None, **batches):
    """Record an attempt of each message with one of these ids."""
    messages = {
        message.id: message
        for work in outbox.prepare_work("alerts", room=100, busy=(), **batches)
        for message in work.messages
    }
    results = [result(outbox, messages[id_], outcome, status, "said \0 so") for id_ in ids]
    known = outbox.list_endpoints().get("alerts", EndpointState(name="alerts"))
    outbox.record_attempts(endpoint or known, results)


def test_a_failing_event_holds_back_its_own_key_alone(outbox, watch):
    put(outbox, event(1, key="a"), event(2, key="b"), event(3, key="a"), event(4, key="b"))
    assert claim_ids(outbox) == [["alarm-1", "alarm-3"], ["alarm-2", "alarm-4"]]
    assert claim_ids(outbox, room=1) == [["alarm-1"]]
    assert outbox.prepare_work("audit", room=2, busy=()) == []
    (first, second) = outbox.prepare_work("alerts", room=2, busy=())
    assert claim_ids(outbox, busy=first.lanes) == [["alarm-2", "alarm-4"]]
    assert claim_ids(outbox, busy=first.lanes | second.lanes) == []
    end(outbox, again(outbox, 60), "alarm-1", status=500)
    assert claim_ids(outbox) == [["alarm-2", "alarm-4"]]
    end(outbox, DELIVERED, "alarm-2", "alarm-4")
    assert claim_ids(outbox) == []
    watch.move(60)
    assert claim_ids(outbox) == [["alarm-1", "alarm-3"]]
    end(outbox, DEAD, "alarm-1", status=400)
    assert claim_ids(outbox) == [["alarm-3"]]
    states = {each.event_id: each.state.label for each in outbox.list_deliveries()}
    assert states == {
        "alarm-1": "dead",
        "alarm-2": "delivered",
        "alarm-3": "pending",
        "alarm-4": "delivered",
    }


def test_attempts_are_kept_with_the_answer_and_the_next_try(outbox, watch):
    put(outbox, event(1))
    end(outbox, again(outbox, 5), "alarm-1", status=503)
    watch.move(5)
    end(outbox, DELIVERED, "alarm-1", status=204)
    ((delivery,), (first, second)) = outbox.read_event_deliveries("alarm-1")
    assert (delivery.attempts, delivery.state.label) == (2, "delivered")
    assert delivery.body == event(1).body
    assert delivery.source_timestamp == event(1).source_timestamp
    assert (first.status, first.answer, first.verdict) == (503, "said \\0 so", "again")
    assert (first.next_at - first.at, first.seconds) == (timedelta(seconds=5), 0.25)
    assert (second.status, second.verdict, second.next_at) == (204, "delivered", None)
    assert outbox.read_event_deliveries("alarm-2") == ([], [])


def test_a_batch_keeps_its_composition_until_it_is_accepted(outbox, watch):
    batches = {"size": 3, "make_batch_id": batch_id}
    put(outbox, event(1, key="a"), event(2, key="b"), event(3, key="a"))
    (work,) = outbox.prepare_work("alerts", room=1, busy=(), **batches)
    (message,) = work.messages
    assert message.id == "alarm-1+alarm-2+alarm-3"
    assert message.body == b'{"data": [%s]}' % b", ".join(event(n).body for n in (1, 2, 3))
    # The sender dies here; more events come, one of them with a key of the batch.
    put(outbox, event(4, key="a"), event(5, key="c"), event(6, key="d"))
    assert claim_ids(outbox, **batches) == [
        ["alarm-1", "alarm-2", "alarm-3"],
        ["alarm-5", "alarm-6"],
    ]
    end(outbox, again(outbox, 60), message.id, status=500, **batches)
    assert claim_ids(outbox, **batches) == [["alarm-5", "alarm-6"]]
    watch.move(60)
    end(outbox, DELIVERED, message.id, **batches)
    assert claim_ids(outbox, **batches) == [["alarm-4"], ["alarm-5", "alarm-6"]]
    ((delivery,), attempts) = outbox.read_event_deliveries("alarm-2")
    assert (delivery.attempts, delivery.batch_id) == (2, message.id)
    assert [(each.status, each.events) for each in attempts] == [(500, 3), (200, 3)]
    # A refused batch is dead as a whole, and its events can be sent again.
    end(outbox, DEAD, "alarm-5+alarm-6", status=413, **batches)
    assert claim_ids(outbox, **batches) == [["alarm-4"]]
    assert outbox.resend_event("alarm-6") == 1
    assert claim_ids(outbox, **batches) == [["alarm-4"], ["alarm-6"]]


def test_a_replay_sends_a_range_of_commit_times_again_in_order_under_the_same_ids(outbox):
    put(outbox, *[event(number, key=number % 2) for number in range(6)])
    for _ in range(3):
        end(outbox, DELIVERED, *[id_ for ids in claim_ids(outbox, room=2) for id_ in ids])
    assert claim_ids(outbox) == []
    put(outbox, event(6, key=0))
    limits = {"source_from": NOON + timedelta(seconds=2), "source_to": NOON + timedelta(seconds=5)}
    assert outbox.replay(OutboxSelection(trigger="alarm", **limits)) == 3
    assert claim_ids(outbox) == [["alarm-2", "alarm-4", "alarm-6"], ["alarm-3"]]
    with pytest.raises(ConfigError):
        outbox.replay(OutboxSelection(trigger="alarm"))


def test_a_waiting_event_that_is_resent_is_due_at_once_and_counted_once(outbox):
    put(outbox, event(1, to=("alerts", "audit")))
    end(outbox, again(outbox, 3_600), "alarm-1", status=500)
    assert claim_ids(outbox) == []
    assert outbox.resend_event("alarm-1", "alerts") == 1
    assert claim_ids(outbox) == [["alarm-1"]]
    assert outbox.resend_event("alarm-1") == 2
    assert outbox.resend_event("unknown") == 0
    counts = [
        (count.endpoint, count.state, count.events) for count in outbox.count_deliveries("alarm")
    ]
    assert counts == [("alerts", "pending", 1), ("audit", "pending", 1)]


def test_a_person_pauses_and_resumes_an_endpoint_and_a_sender_does_not_undo_it(outbox):
    put(outbox, event(1))
    outbox.take_leases(["alerts"], "sender-1", 30)
    seen = outbox.list_endpoints()["alerts"]
    assert (seen.active, seen.health) == (True, EndpointHealth())
    failed = replace(
        seen, health=EndpointHealth(consecutive_refusals=3, failing_since=outbox.clock())
    )
    end(outbox, again(outbox, 600), "alarm-1", status=404, endpoint=failed)
    assert outbox.list_endpoints()["alerts"].health.consecutive_refusals == 3
    assert outbox.pause("alerts").state == "paused"
    refused = replace(failed, state=EndpointChange.PAUSE.value, reason="refused")
    outbox.record_attempts(refused, [])
    assert outbox.list_endpoints()["alerts"].reason != "refused"
    assert claim_ids(outbox) == []
    resumed = outbox.resume("alerts")
    assert (resumed.active, resumed.health, resumed.reason) == (True, EndpointHealth(), "")
    outbox.record_attempts(refused, [])
    assert outbox.list_endpoints()["alerts"].active
    assert claim_ids(outbox) == [["alarm-1"]]
    assert outbox.list_deliveries()[0].attempts == 0


def test_an_endpoint_has_one_sender_at_a_time(outbox):
    assert outbox.take_leases(["alerts", "audit"], "one", 60) == {"alerts", "audit"}
    assert outbox.take_leases(["alerts", "other"], "two", 60) == {"other"}
    outbox.release(["alerts", "other"], "one")
    assert outbox.take_leases(["alerts", "audit", "other"], "two", -1) == {"alerts", "other"}
    assert outbox.take_leases(["other"], "one", 60) == {"other"}


def test_a_poll_returns_when_something_is_due(outbox, watch):
    outbox.take_leases(["alerts", "audit"], "one", 60)
    put(outbox, event(1), event(2))
    end(outbox, again(outbox, 60), "alarm-1", "alarm-2", status=500)
    polled = outbox.poll_endpoints(["alerts", "audit", "unknown"])
    assert {name: due for name, (_, due) in polled.items()} == {
        "alerts": watch() + timedelta(seconds=60),
        "audit": None,
    }


def test_an_event_put_while_the_one_before_it_ends_is_due_next(outbox):
    """The transactions overlap where the database lets them; SQLite has one writer at a time."""
    put(outbox, event(1, key="a"))
    inserted, ended = threading.Event(), threading.Event()

    def put_second():
        with begin_transaction(outbox.engine, writes=True) as connection:
            outbox.record_events(connection, [event(2, key="a")])
            inserted.set()
            # If it can end now, it does not see this one.
            ended.wait(0.5)

    def end_first():
        inserted.wait(30)
        work = outbox.prepare_work("alerts", room=1, busy=())
        outbox.record_attempts(EndpointState(name="alerts"), [result(outbox, work[0].messages[0])])
        ended.set()

    threads = [threading.Thread(target=work) for work in (put_second, end_first)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert claim_ids(outbox) == [["alarm-2"]]
