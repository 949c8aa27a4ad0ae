"""Random handlers in full duplex: whatever comes when, and whatever is lost, they end the same."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from durable_invocations import Context, VirtualObject, service_app
from durable_invocations.protocol.results import EMPTY, Value
from runtime_support.endpoints.asgi_stream import Journal, ack, line, told

ATTEMPTS = 60
EXCHANGES = 200
TURNS = 40
"""Of the event loop, after which a handler without input or output of its own has gone as far as
it can."""
BEGINS = ["run", "call", "sleep", "get"]


def steps(kinds, **size):
    one = st.tuples(st.sampled_from(kinds), st.integers(0, 9), st.integers(1, 4))
    return st.lists(one, **size)


STEPS = st.builds(
    list.__add__,
    steps(BEGINS, max_size=4),
    steps([*BEGINS, "set", "await", "gather", "gather", "select"], max_size=12),
)


class Program:
    """A handler of these steps, and how often each of its runs was executed."""

    def __init__(self, steps):
        self.steps = steps
        self.executed = Counter()
        made = VirtualObject("O")
        made.handler(self.handler())
        self.app = service_app(made)

    def handler(self):
        async def go(ctx: Context) -> list:
            begun, log = [], []
            for number, (kind, first, count) in enumerate(self.steps):
                some = chosen(begun, first, count)
                if kind in BEGINS:
                    begun.append((f"o{number}", self.begin(ctx, kind, number)))
                elif kind == "set":
                    ctx.state.set("x", number)
                elif kind == "await" and some:
                    log.append(await some[0][1])
                elif kind == "gather":
                    log.append(await ctx.gather(*(each for _, each in some)))
                elif kind == "select" and some:
                    log.append([*await ctx.select(**dict(some))])
            return log

        return go

    def fits(self, output):
        """Whether it returned what these steps say, if nothing had gone wrong."""
        begun, log, state = [], [], None
        for number, (kind, first, count) in enumerate(self.steps):
            some = chosen(begun, first, count)
            if kind in BEGINS:
                value = {"sleep": None, "get": state}.get(kind, number)
                begun.append((f"o{number}", value))
            elif kind == "set":
                state = number
            elif kind == "await" and some:
                log.append([some[0][1]])
            elif kind == "gather":
                log.append([[value for _, value in some]])
            elif kind == "select" and some:
                log.append([[name, value] for name, value in some])
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


def chosen(begun, first, count):
    """Some of the operations, with their names."""
    return begun[first % len(begun) :][:count] if begun else []


class Runtime(Journal):
    """Keeps a journal, and says what it has to say in a random order, some of it twice."""

    def __init__(self, program, chance):
        super().__init__(program.app, "O/go", key="k", state=None)
        self.program = program
        self.chance = chance

    def result(self, index):
        """What completes an entry: a call's is what it was called with."""
        entry = self.entries[index]
        if entry.kind.name == "Call":
            return Value(value=entry.message().parameter)
        return EMPTY

    def open(self):
        return [
            index
            for index, each in enumerate(self.entries)
            if each.kind.completable and not each.completed
        ]

    async def duplex(self):
        """One attempt, which breaks after a random number of stored entries; its last frame."""
        left = self.chance.choice([0, 1, 2, 3, 99, 99])
        owed = [("completion", index) for index in self.open()]
        async with line(self.app, self.path, http="2") as made:
            made.say(*self.replayed(owed))
            for _ in range(EXCHANGES):
                for each in await self.settled(made):
                    if not each.kind.entry:
                        made.say(more=False)
                        return each
                    if not left:
                        return None
                    left -= 1
                    owed += self.stored(each)
                if not owed or self.chance.random() < 0.1:
                    made.say(more=False)
                    owed.clear()
                else:
                    made.say(*self.spoken(owed))
            raise AssertionError(f"the stream does not end: {self.kinds}")

    async def settled(self, made):
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return made.waiting()

    def stored(self, entry):
        self.entries.append(entry)
        index = len(self.entries) - 1
        owed = [("ack", index)] if entry.requires_ack else []
        return owed + ([("completion", index)] if index in self.open() else [])

    def replayed(self, owed):
        """The replay, and some completions that come before the handler has replayed anything."""
        frames = [self.start(), *self.entries]
        while owed and self.chance.random() < 0.5:
            frames += self.spoken(owed)
        return frames

    def spoken(self, owed):
        """One thing to say, perhaps twice. It is stored before it is said."""
        kind, index = owed.pop(self.chance.randrange(len(owed)))
        if kind == "completion":
            result = self.result(index)
            self.complete(index, result)
            said = told(index, result)
        else:
            said = ack(index)
        return [said] * self.chance.choice([1, 1, 2])

    async def driven(self):
        for _ in range(ATTEMPTS):
            before = self.runs()
            executed = {number: self.program.executed[number] for number in before}
            last = await self.duplex()
            assert {number: self.program.executed[number] for number in before} == executed
            if last is not None and last.kind.name == "End":
                return self.entries[-1].message().value
            assert last is None or last.kind.name == "Suspension", last.message()
            if self.entries[-1].kind.name == "Output":
                continue
            for index in self.open():
                if last is None or self.chance.random() < 0.7:
                    self.complete(index, self.result(index))
        raise AssertionError(f"{ATTEMPTS} attempts, and no end: {self.kinds}")

    def runs(self):
        names = [each.message().name for each in self.entries if each.kind.name == "Run"]
        return [int(name.removeprefix("run ")) for name in names]


@settings(max_examples=100)
@given(STEPS, st.integers(0, 2**32))
def test_a_handler_ends_the_same_whatever_comes_when(taken, seed):
    program = Program(taken)
    runtime = Runtime(program, Random(seed))
    output = asyncio.run(runtime.driven())
    executed = Counter(program.executed)
    assert program.fits(json.loads(output))
    # The recorded output stands in a replay, so that only one without it can return another.
    runtime.entries.pop()
    heard = asyncio.run(runtime.attempt())
    assert [each.kind.name for each in heard] == ["Output", "End"]
    assert runtime.entries[-1].message().value == output
    assert program.executed == executed
    assert set(runtime.runs()) == set(executed)
