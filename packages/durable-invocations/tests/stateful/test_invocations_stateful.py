"""The store of invocations and a small model agree: runtimes, zombies, crashes, in any order."""

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
from runtime_support.runtimes.manual_runtime import Desk, DiedError, die_at, value

OWNERS = ("one", "two")
PATHS = ("Plain/go", "Cart/a/add", "Cart/b/add")
ZOMBIES = 6
"""From this number on, lost claims are chosen, too."""
numbers = st.integers(0, 7)
entries = st.sampled_from(["run", "sleep", "awakeable", *PATHS, "send"])
owners = st.sampled_from(OWNERS)


@dataclass
class Known:
    """An invocation in the model."""

    path: str
    at: int
    """It does not begin before this time."""
    arrived: bool
    entries: list = field(default_factory=lambda: ["input"])
    """The committed entries; an awakeable or a sleep as ("open", time), a call as ("call", id)."""
    driver: tuple | None = None
    begun: bool = False
    holds: bool = False
    """It or a caller of it has a key, so its calls must not wait for that key."""
    stopped: bool = False
    """It was canceled or killed, so its calls may have failed."""


class InvocationsMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.mkdtemp(dir="/dev/shm")
        self.engine = open_database(f"sqlite:///{self.folder}/log.db", keep_open=True)
        SqlStore(self.engine).ensure()
        self.watch = Watch()
        self.desks = {owner: Desk(self.engine, self.watch, owner=owner) for owner in OWNERS}
        self.store = self.desks["one"].store
        self.known: dict[str, Known] = {}
        self.claims: list = []
        """All claims, those of zombies too."""
        self.lanes = defaultdict(list)
        """The open invocations of each key, in the order of their arrival."""
        self.results: dict = {}
        self.crash = 0

    def teardown(self):
        try:
            self.drain()
        finally:
            self.engine.dispose()
            shutil.rmtree(self.folder)

    def do(self, operation, owner="one"):
        """Do it, after a crash again, and keep the results of the invocations that it ends."""
        crash, self.crash = self.crash, 0
        try:
            with die_at(self.engine, crash):
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
        submission = op.Submit(id=id_, service=service, handler=handler, key="".join(key), at=at)
        assert self.do(submission).is_new

    @rule(owner=owners, most=st.integers(1, 3))
    def claim(self, owner, most):
        for claim in self.do(op.Claim(owner=owner, most=most), owner):
            known = self.known[claim.id]
            assert known.driver is None
            assert claim.id not in self.results
            fences = [earlier.fence for earlier in self.claims if earlier.id == claim.id]
            assert claim.fence == 1 + max(fences, default=0)
            assert len(claim.journal) == len(known.entries)
            if known.path.startswith("Cart"):
                assert self.lanes[known.path][0] == claim.id
            known.driver, known.begun = (owner, claim.fence), True
            self.claims.append(claim)

    def choose_claim(self, number):
        """A claim, sometimes of a zombie."""
        if not any(known.driver for known in self.known.values()):
            self.submit(PATHS[number % len(PATHS)], 0)
            self.claim(OWNERS[number % 2], 3)
        valid = [claim for claim in self.claims if self.is_valid(claim)]
        claims = valid if valid and number < ZOMBIES else self.claims
        return claims[-1 - number % len(claims)]

    def is_valid(self, claim):
        driver = self.known[claim.id].driver
        return driver is not None and driver[1] == claim.fence

    def get_owner(self, known):
        return known.driver[0] if known.driver else "one"

    @rule(number=numbers, kinds=st.lists(entries, min_size=1, max_size=4))
    def commit(self, number, kinds):
        claim = self.choose_claim(number)
        for kind in kinds:
            self.commit_one(claim, kind)

    def commit_one(self, claim, kind):
        valid, known = self.is_valid(claim), self.known[claim.id]
        index = len(known.entries)
        kind = "Plain/go" if known.holds and kind.startswith("Cart") else kind
        now = self.desks["one"].now
        if kind == "run":
            message, entry = pb.RunEntryMessage(value=b"x"), "run"
        elif kind == "sleep":
            message = pb.SleepEntryMessage(wake_up_time=now + 5_000)
            entry = ("open", now + 5_000)
        elif kind == "awakeable":
            message, entry = pb.AwakeableEntryMessage(), ("open", None)
        elif kind == "send":
            message = pb.OneWayCallEntryMessage(service_name="Plain", handler_name="go")
            entry = "send"
        else:
            service, *key, handler = kind.split("/")
            message = pb.CallEntryMessage(
                service_name=service, handler_name=handler, key="".join(key)
            )
            entry = "call"
        canceled = self.store.invocation(claim.id).canceled
        commit = op.CommitEntry(
            id=claim.id, fence=claim.fence, index=index, frame=make_frame(message)
        )
        outcome = self.do(commit, self.get_owner(known))
        assert isinstance(outcome, OperationRefusal) != valid
        if not valid:
            assert outcome.fenced
            return
        # A runtime that does not know the outcome commits it again.
        assert self.do(commit, self.get_owner(known)).index == index
        child = self.store.read_journal(claim.id)[index].child
        if child:
            assert child not in self.known
            waits = entry == "call"
            self.add(child, kind if waits else "Plain/go", 0, holds=waits and known.holds)
            entry = ("call", child) if waits else entry
        if canceled and kind not in {"run", "send"}:
            assert outcome.result.code == 409
            entry = "run"
        known.entries.append(entry)

    def list_completable(self, id_, *, only_open):
        return [
            entry.index
            for entry in self.store.read_journal(id_)
            if entry.frame.kind.completable and not (only_open and entry.frame.completed)
        ]

    def list_open(self, id_):
        return self.list_completable(id_, only_open=True)

    @rule(number=numbers, end=st.sampled_from(["suspend", "finish", "fail", "retry later"]))
    def leave(self, number, end):
        self.leave_one(self.choose_claim(number), end, only_open=number % 2 == 0)

    def leave_one(self, claim, end, *, only_open=True):
        valid, known = self.is_valid(claim), self.known[claim.id]
        owner, now = self.get_owner(known), self.desks["one"].now
        fenced = {"id": claim.id, "fence": claim.fence}
        if end == "finish":
            output = make_frame(pb.OutputEntryMessage(value=claim.id.encode()))
            commit = op.CommitEntry(**fenced, index=len(known.entries), frame=output)
            assert isinstance(self.do(commit, owner), OperationRefusal) != valid
            outcome = self.do(op.Finish(**fenced), owner)
            if valid:
                known.entries.append("output")
                assert self.results[claim.id] == value(claim.id.encode())
        elif end == "suspend":
            indexes = self.list_completable(claim.id, only_open=only_open) if valid else [0]
            if not indexes:
                return
            outcome = self.do(op.Suspend(**fenced, indexes=tuple(indexes)), owner)
        else:
            later = 5_000 if end == "retry later" else 0
            error = self.desks["one"].error
            outcome = self.do(op.Fail(**fenced, error=error, next_at=now + later), owner)
        assert isinstance(outcome, OperationRefusal) != valid
        if valid:
            known.driver = None

    def list_awakeables(self):
        return [
            (id_, index)
            for id_, known in self.known.items()
            for index, entry in enumerate(known.entries)
            if entry == ("open", None)
        ]

    @rule(number=numbers)
    def complete_an_awakeable(self, number):
        if names := self.list_awakeables():
            id_, index = names[number % len(names)]
            name = awakeables.make_awakeable_id(ids.parse_id(id_), index)
            was_open = index in self.list_open(id_)
            completion = op.CompleteAwakeable(awakeable=name, result=value(b"v"))
            assert self.do(completion, "two").changed == was_open

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
        driven = [known for known in self.known.values() if known.driver]
        driven = [known for known in driven if self.get_owner(known) == owner]
        if beat is not None:
            assert self.do(op.Recover(beats=((owner, beat),)), "two") == len(driven)
            for known in driven:
                known.driver = None

    @rule(number=numbers, operation=st.sampled_from([op.Cancel, op.Kill]))
    def stop(self, number, operation):
        id_ = list(self.known)[-1 - number % len(self.known)]
        known = self.known[id_]
        ended = id_ in self.results
        outcome = self.do(operation(id=id_), "two")
        assert not (ended and outcome.changed)
        self.forget_children(known)
        if operation is op.Kill or not known.begun:
            assert id_ in self.results

    def forget_children(self, known):
        known.stopped = True
        for entry in known.entries:
            if isinstance(entry, tuple) and entry[0] == "call":
                child = self.known[entry[1]]
                if not child.stopped:
                    self.forget_children(child)

    @invariant()
    def every_invocation_exists_once_and_has_ended_once(self):
        invocations = {invocation.id: invocation for invocation in self.store.invocations()}
        assert invocations.keys() == self.known.keys()
        results = {id_: invocation.result for id_, invocation in invocations.items()}
        assert {id_: end for id_, end in results.items() if end is not None} == self.results

    @invariant()
    def a_call_has_the_result_of_its_invocation(self):
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
    def suspended_invocations_wait_for_open_entries(self):
        for invocation in self.store.invocations():
            label, known = invocation.status.label, self.known[invocation.id]
            if label == "suspended":
                assert set(invocation.waits) <= set(self.list_open(invocation.id))
            assert (label == "running") == (known.driver is not None)

    def drain(self):
        """Let all invocations end: none is stuck, and those of a key keep their order."""
        self.crash = 0
        for owner in OWNERS:
            self.a_runtime_dies_and_is_recovered(owner)
        for _ in range(10 * len(self.known) + 10):
            if self.results.keys() == self.known.keys():
                return
            self.wait(5)
            for number in range(len(self.list_awakeables())):
                self.complete_an_awakeable(number)
            self.claim("one", 3)
            for claim in self.claims[-3:]:
                for end in ("suspend", "finish"):
                    if self.is_valid(claim):
                        self.leave_one(claim, end)
        raise AssertionError(sorted(self.known.keys() - self.results.keys()))


TestInvocations = InvocationsMachine.TestCase
TestInvocations.settings = settings(max_examples=20, stateful_step_count=20)
