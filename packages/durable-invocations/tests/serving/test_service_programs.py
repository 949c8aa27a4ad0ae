"""Random handlers in full duplex end the same, in whatever order messages come or are lost."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from durable_invocations import Context, VirtualObject, service_app
from durable_invocations.protocol.results import EMPTY, Value
from runtime_support.endpoints.asgi_stream import Journal, completion, names, open_request
from runtime_support.journal_frames import ack

ATTEMPTS = 60
EXCHANGES = 200
TURNS = 40
"""Turns of the event loop after which a handler has done all that it can without a message."""
OPERATIONS = ["run", "call", "sleep", "get"]


def lists_of_steps(kinds, **size):
    step = st.tuples(st.sampled_from(kinds), st.integers(0, 9), st.integers(1, 4))
    return st.lists(step, **size)


STEPS = st.builds(
    list.__add__,
    lists_of_steps(OPERATIONS, max_size=4),
    lists_of_steps([*OPERATIONS, "set", "await", "gather", "gather", "select"], max_size=12),
)


class Program:
    """A handler of these steps, and how often each of its runs was executed."""

    def __init__(self, steps):
        self.steps = steps
        self.executed = Counter()
        service = VirtualObject("O")
        service.handler(self.make_handler())
        self.app = service_app(service)

    def make_handler(self):
        async def go(ctx: Context) -> list:
            operations, log = [], []
            for number, (kind, first, count) in enumerate(self.steps):
                chosen = choose(operations, first, count)
                if kind in OPERATIONS:
                    operations.append((f"o{number}", self.begin(ctx, kind, number)))
                elif kind == "set":
                    ctx.state.set("x", number)
                elif kind == "await" and chosen:
                    log.append(await chosen[0][1])
                elif kind == "gather":
                    log.append(await ctx.gather(*(operation for _, operation in chosen)))
                elif kind == "select" and chosen:
                    log.append([*await ctx.select(**dict(chosen))])
            return log

        return go

    def may_return(self, output):
        """Whether these steps may return this output when nothing is lost."""
        values, log, state = [], [], None
        for number, (kind, first, count) in enumerate(self.steps):
            chosen = choose(values, first, count)
            if kind in OPERATIONS:
                value = {"sleep": None, "get": state}.get(kind, number)
                values.append((f"o{number}", value))
            elif kind == "set":
                state = number
            elif kind == "await" and chosen:
                log.append([chosen[0][1]])
            elif kind == "gather":
                log.append([[value for _, value in chosen]])
            elif kind == "select" and chosen:
                log.append([[name, value] for name, value in chosen])
        return len(output) == len(log) and all(map(list.__contains__, log, output))

    def begin(self, ctx, kind, number):
        async def execute():
            self.executed[number] += 1
            return number

        if kind == "run":
            return ctx.run(f"run {number}", execute)
        if kind == "call":
            return ctx.call("T", "h", number, returns=int)
        return ctx.sleep(number) if kind == "sleep" else ctx.state.get("x")


def choose(operations, first, count):
    """Some of the operations, with their names."""
    return operations[first % len(operations) :][:count] if operations else []


class Runtime(Journal):
    """Keeps a journal, and sends acks and completions in a random order, some of them twice."""

    def __init__(self, program, chance):
        super().__init__(program.app, "O/go", key="k", state=None)
        self.program = program
        self.chance = chance

    def get_result(self, index):
        """The result of an entry; a call returns its argument."""
        entry = self.entries[index]
        if entry.kind.name == "Call":
            return Value(value=entry.message().parameter)
        return EMPTY

    def open(self):
        return [
            index
            for index, entry in enumerate(self.entries)
            if entry.kind.completable and not entry.completed
        ]

    async def run_attempt(self):
        """One attempt, which breaks after a random number of stored entries; its last frame."""
        storable = self.chance.choice([0, 1, 2, 3, 99, 99])
        owed = [("completion", index) for index in self.open()]
        async with open_request(self.app, self.path, http="2") as stream:
            stream.send(*self.make_replay(owed))
            for _ in range(EXCHANGES):
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                for frame in stream.take_received():
                    if not frame.kind.entry:
                        stream.send(more=False)
                        return frame
                    if not storable:
                        return None
                    storable -= 1
                    owed += self.store(frame)
                if not owed or self.chance.random() < 0.1:
                    stream.send(more=False)
                    owed.clear()
                else:
                    stream.send(*self.take_owed(owed))
            raise AssertionError(f"the stream does not end: {self.kinds}")

    def store(self, entry):
        """Store the entry; the messages that the handler gets for it."""
        self.entries.append(entry)
        index = len(self.entries) - 1
        owed = [("ack", index)] if entry.requires_ack else []
        return owed + ([("completion", index)] if index in self.open() else [])

    def make_replay(self, owed):
        """The replay, and some completions that come before the handler has replayed anything."""
        frames = [self.start(), *self.entries]
        while owed and self.chance.random() < 0.5:
            frames += self.take_owed(owed)
        return frames

    def take_owed(self, owed):
        """One of the messages, perhaps twice. It is stored before it is sent."""
        kind, index = owed.pop(self.chance.randrange(len(owed)))
        frame = ack(index)
        if kind == "completion":
            result = self.get_result(index)
            self.complete(index, result)
            frame = completion(index, result)
        return [frame] * self.chance.choice([1, 1, 2])

    async def drive(self):
        """Run attempts until the invocation ends; its output."""
        for _ in range(ATTEMPTS):
            before = self.list_runs()
            executed = {number: self.program.executed[number] for number in before}
            last = await self.run_attempt()
            assert {number: self.program.executed[number] for number in before} == executed
            if last is not None and last.kind.name == "End":
                return self.entries[-1].message().value
            assert last is None or last.kind.name == "Suspension", last.message()
            if self.entries[-1].kind.name == "Output":
                continue
            for index in self.open():
                if last is None or self.chance.random() < 0.7:
                    self.complete(index, self.get_result(index))
        raise AssertionError(f"{ATTEMPTS} attempts, and no end: {self.kinds}")

    def list_runs(self):
        runs = [entry.message().name for entry in self.entries if entry.kind.name == "Run"]
        return [int(name.removeprefix("run ")) for name in runs]


@settings(max_examples=100)
@given(STEPS, st.integers(0, 2**32))
def test_a_handler_ends_the_same_in_whatever_order_messages_come(steps, seed):
    program = Program(steps)
    runtime = Runtime(program, Random(seed))
    output = asyncio.run(runtime.drive())
    executed = Counter(program.executed)
    assert program.may_return(json.loads(output))
    # A replay keeps a recorded output; only a replay without one could return another.
    runtime.entries.pop()
    assert names(asyncio.run(runtime.attempt())) == ["Output", "End"]
    assert runtime.entries[-1].message().value == output
    assert program.executed == executed
    assert set(runtime.list_runs()) == set(executed)
