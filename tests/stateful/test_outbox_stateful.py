"""The outbox against a small model of it: order, retries, batches, resent events."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from datetime import timedelta
from typing import ClassVar

import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.webhooks.answers import AttemptOutcome, MessageVerdict
from iscp_dagster.webhooks.history import OutboxSelection
from iscp_dagster.webhooks.outbox import Outbox
from iscp_dagster.webhooks.recording import EndpointState
from iscp_dagster.webhooks.tables import OUTBOX, DeliveryState
from runtime_support.manual_clock import Watch
from support.outbox.outbox_events import event, put, result

KEYS = 2
ENDED = ("delivered", "dead")
answers = st.sampled_from(
    [MessageVerdict.DELIVERED, MessageVerdict.AGAIN, MessageVerdict.DEAD, MessageVerdict.HELD]
)


class OutboxMachine(RuleBasedStateMachine):
    batches: ClassVar[dict[str, object]] = {}

    def __init__(self):
        super().__init__()
        self.folder = tempfile.mkdtemp(dir="/dev/shm")
        self.watch = Watch()
        self.outbox = Outbox(open_engine(f"sqlite:///{self.folder}/log.db"), clock=self.watch)
        self.outbox.ensure_log_tables()
        self.states: dict[str, str] = {}
        self.keys: dict[str, int] = {}
        self.due = defaultdict(self.watch)

    def teardown(self):
        self.outbox.engine.dispose()
        shutil.rmtree(self.folder)

    def lane(self, key):
        """Return the ids of the key's pending events, in order."""
        return [id_ for id_, at in self.keys.items() if at == key and self.states[id_] == "pending"]

    @initialize()
    def begin(self):
        self.put_events([0, 1, 0, 1, 0])

    @rule(keys=st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=4))
    def put_events(self, keys):
        first = len(self.keys)
        events = [event(first + place, key=key) for place, key in enumerate(keys)]
        again = [event(0, key=0)] if first else []
        put(self.outbox, *again, *events)
        for each, key in zip(events, keys, strict=True):
            self.keys[each.event_id] = key
            self.states[each.event_id] = "pending"
            self.due[each.event_id] = each.recorded

    @rule(seconds=st.sampled_from([1, 60]))
    def wait(self, seconds):
        self.watch.move(seconds)

    def claim(self, room):
        work = self.outbox.prepare_work("alerts", room=room, busy=(), **self.batches)
        heads = {key: self.lane(key)[0] for key in range(KEYS) if self.lane(key)}
        ready = {key for key, id_ in heads.items() if self.due[id_] <= self.watch()}
        assert len(work) <= room
        assert bool(work) == bool(ready)
        ids = [event_.event_id for each in work for m in each.messages for event_ in m.events]
        assert len(ids) == len(set(ids))
        for key in range(KEYS):
            of_key = [id_ for id_ in ids if self.keys[id_] == key]
            self.check_order(key, of_key, ready)
        return work

    def check_order(self, key, claimed, ready):
        assert claimed == self.lane(key)[: len(claimed)]
        assert not claimed or key in ready

    @rule(room=st.integers(1, 4), verdicts=st.lists(answers, min_size=8, max_size=8))
    def send(self, room, verdicts):
        """Send and record, each piece of work up to the first message that stays pending."""
        for work in self.claim(room):
            results = []
            for message in work.messages:
                verdict = verdicts.pop() if verdicts else MessageVerdict.DELIVERED
                results.append(self.result(message, verdict))
                if verdict not in {MessageVerdict.DELIVERED, MessageVerdict.DEAD}:
                    break
            self.outbox.record_attempts(EndpointState(name="alerts"), results)

    def result(self, message, verdict):
        again = self.watch() + timedelta(seconds=30) if verdict is MessageVerdict.AGAIN else None
        for each in message.events:
            if verdict.value in ENDED:
                self.states[each.event_id] = verdict.value
            elif again is not None:
                self.due[each.event_id] = again
        outcome = AttemptOutcome(verdict=verdict, next_at=again)
        return result(
            self.outbox, message, outcome, 200 if verdict is MessageVerdict.DELIVERED else 500
        )

    @rule(room=st.integers(1, 4))
    def die(self, room):
        """Claim, and be killed before anything is recorded."""
        self.claim(room)

    @rule(data=st.data())
    def resend(self, data):
        id_ = data.draw(st.sampled_from(sorted(self.keys)))
        assert self.outbox.resend_event(id_) == 1
        self.states[id_], self.due[id_] = "pending", self.watch()

    @rule()
    def replay(self):
        chosen = OutboxSelection(trigger="alarm", source_from=event(1).recorded)
        assert self.outbox.replay(chosen) == len(self.keys) - 1
        for id_ in list(self.keys)[1:]:
            self.states[id_], self.due[id_] = "pending", self.watch()

    @invariant()
    def the_first_pending_event_of_each_key_is_next(self):
        rows = sa.select(OUTBOX.event_id, OUTBOX.state).order_by(OUTBOX.number)
        with self.outbox.begin_read() as connection:
            states = {id_: DeliveryState(state) for id_, state in connection.execute(rows)}
        assert {id_: state.label for id_, state in states.items()} == self.states
        following = {id_ for id_, state in states.items() if state is DeliveryState.NEXT}
        assert following == {self.lane(key)[0] for key in range(KEYS) if self.lane(key)}


class BatchMachine(OutboxMachine):
    """As above, in batches: a composed batch stays the same until it ends or is resent."""

    batches: ClassVar[dict[str, object]] = {"size": 3, "make_batch_id": "+".join}

    def check_order(self, key, claimed, ready):
        """A waiting batch may contain later events of a key whose earlier one was resent."""
        lane = self.lane(key)
        assert claimed == [id_ for id_ in lane if id_ in claimed]

    def claim(self, room):
        before = self.read_batches()
        work = self.outbox.prepare_work("alerts", room=room, busy=(), **self.batches)
        for each in work:
            (message,) = each.messages
            ids = [event_.event_id for event_ in message.events]
            assert len(ids) <= 3
            for id_ in ids:
                assert before.get(id_) in {None, message.id}
            if any(id_ in before for id_ in ids):
                assert set(ids) == {id_ for id_, batch in before.items() if batch == message.id}
        lanes = [lane for each in work for lane in each.lanes]
        assert len(lanes) == len(set(lanes))
        return work

    def read_batches(self):
        chosen = sa.select(OUTBOX.event_id, OUTBOX.batch_id)
        waiting = chosen.where(OUTBOX.batch_id.is_not(None), OUTBOX.state <= 1)
        with self.outbox.begin_read() as connection:
            return dict(connection.execute(waiting).all())


TestOutbox, TestBatches = OutboxMachine.TestCase, BatchMachine.TestCase
TestOutbox.settings = TestBatches.settings = settings(max_examples=8, stateful_step_count=15)
