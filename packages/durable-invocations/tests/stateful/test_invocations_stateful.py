"""The store of invocations against a small model: runtimes, zombies, crashes, in any order."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from durable_invocations.protocol import awakeables, ids
from durable_invocations.protocol.frames import make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import get_result
from durable_invocations.runtime.sql.database import open_database
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store import operations as op
from durable_invocations.runtime.store.outcomes import OperationRefusal
from runtime_support.manual_clock import Watch
from runtime_support.runtimes.manual_runtime import Desk, DiedError, dying, value

OWNERS = ("one", "two")
PATHS = ("Plain/go", "Cart/a/add", "Cart/b/add")
ZOMBIES = 6
"""From here on, a choice of claims is of those that were lost, too."""
which = st.integers(0, 7)
entries = st.sampled_from(["run", "sleep", "awakeable", *PATHS, "send"])
owners = st.sampled_from(OWNERS)


@dataclass
class Known:
    """What the model knows of an invocation."""

    path: str
    at: int
    """Not begun before."""
    arrived: bool
    entries: list = field(default_factory=lambda: ["input"])
    """What was committed; an awakeable or a sleep as ("open", what), a call as ("call", id)."""
    driver: tuple | None = None
    begun: bool = False
    holds: bool = False
    """It, or who called it, has a key, which what it calls must not wait for."""
    stopped: bool = False
    """It was canceled or killed, so that its calls may have failed."""


class InvocationsMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.mkdtemp(dir="/dev/shm")
        self.engine = open_database(f"sqlite:///{self.folder}/log.db", keep_open=True)
        SqlStore(self.engine).ensure()
        self.watch = Watch()
        self.desks = {each: Desk(self.engine, self.watch, owner=each) for each in OWNERS}
        self.store = self.desks["one"].store
        self.known: dict[str, Known] = {}
        self.claims: list = []
        """Every claim that there was, also those of zombies."""
        self.lanes = defaultdict(list)
        """The keys' invocations that arrived and have not ended, in order."""
        self.results: dict = {}
        self.crash = 0

    def teardown(self):
        try:
            self.drain()
        finally:
            self.engine.dispose()
            shutil.rmtree(self.folder)

    def do(self, operation, owner="one"):
        """Do it, after a crash again; what ended is remembered once."""
        crash, self.crash = self.crash, 0
        try:
            with dying(self.engine, crash):
                (outcome,), changes = self.desks[owner].store.run([operation])
        except DiedError:
            (outcome,), changes = self.desks[owner].store.run([operation])
        for id_, result in changes.ended.items():
            assert id_ not in self.results
            self.results[id_] = result
            self.known[id_].driver = None
            lane = self.lanes[self.known[id_].path]
            if id_ in lane:
                lane.remove(id_)
        return outcome

    def add(self, id_, path, at, *, holds=False):
        arrived = at <= self.desks["one"].now
        holds = holds or path.startswith("Cart")
        self.known[id_] = Known(path=path, at=at, arrived=arrived, holds=holds)
        if arrived and path.startswith("Cart"):
            self.lanes[path].append(id_)

    @initialize()
    def begin(self):
        for path in (*PATHS, "Cart/a/add"):
            self.submit(path, 0)
        self.claim("one", 2)
        self.claim("two", 2)

    @rule(at=st.integers(1, 12))
    def crash_in_the_next(self, at):
        self.crash = at

    @rule(path=st.sampled_from(PATHS), delay=st.sampled_from([0, 0, 5]))
    def submit(self, path, delay):
        service, *key, handler = path.split("/")
        id_, at = ids.format_id(ids.make_id()), self.desks["one"].now + delay * 1_000
        self.add(id_, path, at if delay else 0)
        asked = op.Submit(id=id_, service=service, handler=handler, key="".join(key), at=at)
        assert self.do(asked).is_new

    @rule(owner=owners, most=st.integers(1, 3))
    def claim(self, owner, most):
        for claimed in self.do(op.Claim(owner=owner, most=most), owner):
            known = self.known[claimed.id]
            assert known.driver is None
            assert claimed.id not in self.results
            assert claimed.fence == 1 + max(
                (each.fence for each in self.claims if each.id == claimed.id), default=0
            )
            assert len(claimed.journal) == len(known.entries)
            if known.path.startswith("Cart"):
                assert self.lanes[known.path][0] == claimed.id
            known.driver, known.begun = (owner, claimed.fence), True
            self.claims.append(claimed)

    def chosen(self, at):
        """A claim, sometimes of a zombie; whether it still holds, and the invocation."""
        if not any(known.driver for known in self.known.values()):
            self.submit(PATHS[at % len(PATHS)], 0)
            self.claim(OWNERS[at % 2], 3)
        held = [each for each in self.claims if self.holds(each)]
        some = held if held and at < ZOMBIES else self.claims
        claimed = some[-1 - at % len(some)]
        return claimed, self.holds(claimed), self.known[claimed.id]

    def holds(self, claimed):
        driver = self.known[claimed.id].driver
        return driver is not None and driver[1] == claimed.fence

    def owner_of(self, known):
        return known.driver[0] if known.driver else "one"

    @rule(at=which, some=st.lists(entries, min_size=1, max_size=4))
    def commit(self, at, some):
        claimed, holds, known = self.chosen(at)
        for what in some:
            self.commit_one(claimed, holds, known, what)

    def commit_one(self, claimed, holds, known, what):
        index = len(known.entries)
        what = "Plain/go" if known.holds and what.startswith("Cart") else what
        now = self.desks["one"].now
        if what == "run":
            message, entry = pb.RunEntryMessage(value=b"x"), "run"
        elif what == "sleep":
            message = pb.SleepEntryMessage(wake_up_time=now + 5_000)
            entry = ("open", now + 5_000)
        elif what == "awakeable":
            message, entry = pb.AwakeableEntryMessage(), ("open", None)
        elif what == "send":
            message = pb.OneWayCallEntryMessage(service_name="Plain", handler_name="go")
            entry = "send"
        else:
            service, *key, handler = what.split("/")
            message = pb.CallEntryMessage(
                service_name=service, handler_name=handler, key="".join(key)
            )
            entry = "call"
        canceled = self.store.invocation(claimed.id).canceled
        asked = op.CommitEntry(
            id=claimed.id, fence=claimed.fence, index=index, frame=make_frame(message)
        )
        outcome = self.do(asked, self.owner_of(known))
        assert isinstance(outcome, OperationRefusal) != holds
        if not holds:
            assert outcome.fenced
            return
        # Whoever did not hear of it commits it again.
        assert self.do(asked, self.owner_of(known)).index == index
        child = self.store.read_journal(claimed.id)[index].child
        if child:
            assert child not in self.known
            waited = entry == "call"
            self.add(child, what if waited else "Plain/go", 0, holds=waited and known.holds)
            entry = ("call", child) if entry == "call" else entry
        if canceled and what not in {"run", "send"}:
            assert outcome.result.code == 409
            entry = "run"
        known.entries.append(entry)

    def completable(self, id_, *, only_open):
        return [
            each.index
            for each in self.store.read_journal(id_)
            if each.frame.kind.completable and not (only_open and each.frame.completed)
        ]

    def open_entries(self, id_):
        return self.completable(id_, only_open=True)

    @rule(at=which, how=st.sampled_from(["suspend", "finish", "fail", "retry later"]))
    def leave(self, at, how):
        self.leave_one(self.chosen(at)[0], how, only_open=at % 2 == 0)

    def leave_one(self, claimed, how, *, only_open=True):
        holds, known = self.holds(claimed), self.known[claimed.id]
        owner, now = self.owner_of(known), self.desks["one"].now
        fenced = {"id": claimed.id, "fence": claimed.fence}
        if how == "finish":
            output = make_frame(pb.OutputEntryMessage(value=claimed.id.encode()))
            asked = op.CommitEntry(**fenced, index=len(known.entries), frame=output)
            assert isinstance(self.do(asked, owner), OperationRefusal) != holds
            outcome = self.do(op.Finish(**fenced), owner)
            if holds:
                known.entries.append("output")
                assert self.results[claimed.id] == value(claimed.id.encode())
        elif how == "suspend":
            indexes = self.completable(claimed.id, only_open=only_open) if holds else [0]
            if not indexes:
                return
            outcome = self.do(op.Suspend(**fenced, indexes=tuple(indexes)), owner)
        else:
            later = 5_000 if how == "retry later" else 0
            error = self.desks["one"].error
            outcome = self.do(op.Fail(**fenced, error=error, next_at=now + later), owner)
        assert isinstance(outcome, OperationRefusal) != holds
        if holds:
            known.driver = None

    def made_awakeables(self):
        return [
            (id_, index)
            for id_, known in self.known.items()
            for index, entry in enumerate(known.entries)
            if entry == ("open", None)
        ]

    @rule(at=which)
    def complete_an_awakeable(self, at):
        some = self.made_awakeables()
        if some:
            id_, index = some[at % len(some)]
            name = awakeables.make_awakeable_id(ids.parse_id(id_), index)
            was_open = index in self.open_entries(id_)
            asked = op.CompleteAwakeable(awakeable=name, result=value(b"v"))
            assert self.do(asked, "two").changed == was_open

    @rule(seconds=st.sampled_from([1, 5]))
    def wait(self, seconds):
        self.watch.move(seconds)
        now = self.desks["one"].now
        due = [
            (known.at, number, id_)
            for number, (id_, known) in enumerate(self.known.items())
            if not known.arrived and known.at <= now and id_ not in self.results
        ]
        for _, _, id_ in sorted(due):
            known = self.known[id_]
            known.arrived = True
            if known.path.startswith("Cart"):
                self.lanes[known.path].append(id_)
        while self.do(op.Fire(now=now)).count:
            pass
        assert (self.store.look("one").next_at or now + 1) > now

    @rule(owner=owners)
    def a_runtime_dies_and_is_recovered(self, owner):
        beat = self.store.read_beats().get(owner)
        driven = [known for known in self.known.values() if self.owner_of(known) == owner]
        driven = [known for known in driven if known.driver]
        if beat is not None:
            assert self.do(op.Recover(beats=((owner, beat),)), "two") == len(driven)
            for known in driven:
                known.driver = None

    @rule(at=which, how=st.sampled_from([op.Cancel, op.Kill]))
    def stop(self, at, how):
        id_ = list(self.known)[-1 - at % len(self.known)]
        known = self.known[id_]
        ended = id_ in self.results
        outcome = self.do(how(id=id_), "two")
        assert not (ended and outcome.changed)
        self.forget_children(known)
        if how is op.Kill or not known.begun:
            assert id_ in self.results

    def forget_children(self, known):
        known.stopped = True
        for entry in known.entries:
            if isinstance(entry, tuple) and entry[0] == "call":
                child = self.known[entry[1]]
                if not child.stopped:
                    self.forget_children(child)

    @invariant()
    def each_is_there_once_and_ended_once(self):
        shown = {each.id: each for each in self.store.invocations()}
        assert shown.keys() == self.known.keys()
        found = {id_: each.result for id_, each in shown.items() if each.result is not None}
        assert found == self.results

    @invariant()
    def a_call_ends_with_what_it_called(self):
        for id_, known in self.known.items():
            calls = [
                (index, entry[1])
                for index, entry in enumerate(known.entries)
                if isinstance(entry, tuple) and entry[0] == "call"
            ]
            journal = self.store.read_journal(id_) if calls else []
            for index, child in calls:
                entry = journal[index].frame
                if id_ in self.results and not entry.completed:
                    continue
                if not known.stopped:
                    assert entry.completed == (child in self.results)
                if entry.completed and not known.stopped:
                    assert get_result(entry.message()) == self.results[child]

    @invariant()
    def nobody_sleeps_through_what_it_waits_for(self):
        for each in self.store.invocations():
            if each.status.label == "suspended":
                assert set(each.waits) <= set(self.open_entries(each.id))
            assert (each.status.label == "running") == (self.known[each.id].driver is not None)

    def drain(self):
        """Let everything end: nothing is stuck, and the keys' orders hold to the last."""
        self.crash = 0
        for owner in OWNERS:
            self.a_runtime_dies_and_is_recovered(owner)
        for _ in range(10 * len(self.known) + 10):
            if self.results.keys() == self.known.keys():
                return
            self.wait(5)
            for at in range(len(self.made_awakeables())):
                self.complete_an_awakeable(at)
            self.claim("one", 3)
            for claimed in self.claims[-3:]:
                for how in ("suspend", "finish"):
                    if self.holds(claimed):
                        self.leave_one(claimed, how)
        raise AssertionError(sorted(self.known.keys() - self.results.keys()))


TestInvocations = InvocationsMachine.TestCase
TestInvocations.settings = settings(max_examples=20, stateful_step_count=20)
