"""A handler and a runtime as pure state machines; messages can be lost, and each side can crash.

Programs are lists of steps: `("run", name)`, `("ask", message)` for an entry that the runtime
completes, `("tell", frame)` for one that it does not, and `("wait", positions)` of earlier steps.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from durable_invocations.journal import handler_events as h
from durable_invocations.journal import handler_side, runtime_side
from durable_invocations.journal import runtime_events as r
from durable_invocations.journal.handler_state import HandlerState
from durable_invocations.protocol.frames import Frame, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import (
    EMPTY,
    Value,
    get_result,
    list_variants,
    make_keys_value,
    set_result,
)

INPUT = make_frame(pb.InputEntryMessage(value=b"in"))
MOST = 4_000
"""After so many actions, an invocation that has not ended never will."""


def make_result(index: int, entry: Frame):
    """The result that the runtime gives an entry, the same each time."""
    if entry.code == 0x0804:
        return make_keys_value([b"k%d" % index])
    return Value(value=b"r%d" % index) if "value" in list_variants(entry.kind) else EMPTY


def complete_entry(entry: Frame, result) -> Frame:
    """The entry with its result, as the runtime replays it."""
    message = entry.message()
    set_result(message, result, entry.kind)
    return make_frame(message, requires_ack=entry.requires_ack)


def calculate_output(program) -> bytes:
    """The output of an attempt that nothing interrupts."""
    outputs, index, results = [], 0, {}
    for position, (kind, argument) in enumerate(program):
        if kind == "wait":
            outputs += [results[earlier] for earlier in argument]
            continue
        index += 1
        if kind == "run":
            results[position] = argument
        elif kind == "ask":
            entry = make_frame(argument)
            results[position] = str(get_result(entry.message()) or make_result(index, entry))
    return ";".join(outputs).encode()


class Handler:
    """A service endpoint's side of one attempt."""

    def __init__(self, program, executed: Counter) -> None:
        self._program, self._executed = program, executed
        self._state = HandlerState()
        self._recorded: list[Frame] = []
        self._results: dict[int, str] = {}
        self._indexes: dict[int, int] = {}
        """The index of each step's entry."""
        self._next, self._ready, self._returned = 0, False, False
        self._run_results: dict[int, str] = {}
        self.up: list[Frame] = []
        self.running: dict[int, str] = {}
        self.closed: h.Close | None = None

    def do(self, event) -> None:
        self._apply(event)
        if self._ready and self.closed is None:
            self._advance()

    def _apply(self, event) -> None:
        self._state, out = handler_side.step(self._state, event)
        for effect in out:
            self._take(effect)

    def finish(self, index: int) -> None:
        name = self.running.pop(index)
        self._executed[index] += 1
        self._run_results[index] = name
        done = make_frame(pb.RunEntryMessage(name=name, value=name.encode()), requires_ack=True)
        self.do(h.RunFinished(index=index, entry=done))

    def _take(self, out) -> None:
        if isinstance(out, h.Recorded):
            self._recorded.append(out.entry)
        elif isinstance(out, h.Ready):
            self._ready = True
            self._step(h.Issued, INPUT)
        elif isinstance(out, h.Send):
            self.up.append(out.frame)
        elif isinstance(out, h.Execute):
            self.running[out.index] = self._program[self._next][1]
        elif isinstance(out, h.Acknowledged):
            self._results[out.index] = self._run_results.get(out.index, "")
        elif isinstance(out, h.Resolve):
            self._results[out.index] = self._format(out)
        elif isinstance(out, h.Close):
            self.closed, self.running = out, {}

    def _format(self, out: h.Resolve) -> str:
        recorded = self._recorded[out.index] if out.index < len(self._recorded) else None
        is_run = recorded is not None and recorded.code == 0x0C05
        return out.result.value.decode() if is_run else str(out.result)

    def _step(self, kind, entry: Frame) -> None:
        index = self._state.issued
        recorded = self._recorded[index] if index < len(self._recorded) else None
        self._apply(kind(entry=entry, recorded=recorded))

    def _advance(self) -> None:
        while self._next < len(self._program) and self.closed is None:
            kind, argument = self._program[self._next]
            if kind == "wait" and not self._wait(argument):
                return
            if kind != "wait":
                self._indexes[self._next] = self._state.issued
            if kind == "run":
                self._step(h.RunBegun, make_frame(pb.RunEntryMessage(name=argument)))
            elif kind != "wait":
                self._step(h.Issued, argument if kind == "tell" else make_frame(argument))
            self._next += 1
        if self.closed is None and not self._returned:
            self._end()

    def _wait(self, positions) -> bool:
        """Whether the steps at these positions have results."""
        missing = {self._indexes[position] for position in positions} - self._results.keys()
        self._apply(h.Awaited(indexes=frozenset(missing)))
        return not missing

    def _end(self) -> None:
        self._returned = True
        waits = [positions for kind, positions in self._program if kind == "wait"]
        outputs = [
            self._results[self._indexes[position]] for positions in waits for position in positions
        ]
        self._step(h.Issued, make_frame(pb.OutputEntryMessage(value=";".join(outputs).encode())))
        self._apply(h.Returned())


@dataclass
class World:
    """One invocation, and all that may happen to it, as `random` chooses.

    At most `crashes` times a side crashes, and `losses` times a message to the handler is lost.
    Both sides crash while the entry at `lost_at` is being stored; `lost_stored`: it is stored.
    """

    program: list
    random: Random
    crashes: int = 0
    losses: int = 0
    lost_at: int | None = None
    lost_stored: bool = False
    journal: list[Frame] = field(default_factory=lambda: [INPUT])
    executed: Counter = field(default_factory=Counter)
    """How often each Run was executed, by its index."""
    actions: int = 0
    finished: bool = False

    def run(self) -> bytes:
        while not self.finished:
            AttemptRun(self, duplex=self.random.random() < 0.5).run()
        return self.journal[-1].message().value

    def open(self) -> list[int]:
        journal = enumerate(self.journal)
        return [i for i, entry in journal if entry.kind.completable and not entry.completed]

    def complete(self, index: int):
        result = make_result(index, self.journal[index])
        self.journal[index] = complete_entry(self.journal[index], result)
        return result


class AttemptRun:
    """One stream: what is under way in both directions, and what is being stored."""

    def __init__(self, world: World, duplex: bool) -> None:
        self.world, self.duplex = world, duplex
        self.handler = Handler(world.program, world.executed)
        self.runtime = runtime_side.begin_attempt(world.journal, duplex=duplex)
        start = pb.StartMessage(id=b"i" * 16, known_entries=len(world.journal))
        self.down: list = [
            h.FrameReceived(frame=frame) for frame in (make_frame(start), *world.journal)
        ]
        self.storing: list[r.StoreEntry] = []
        self.input_open, self.over = True, False
        self._tell(r.Replayed())
        if not duplex:
            self._close_input()

    def run(self) -> None:
        while not self.over:
            self.world.actions += 1
            assert self.world.actions < MOST, "the invocation never ends"
            actions = self._actions()
            if not actions:
                assert self.input_open, "nothing can happen any more"
                self._close_input()
            else:
                self.world.random.choice(actions)()

    def _actions(self) -> list:
        handler = self.handler
        actions = [lambda index=index: self._execute(index) for index in handler.running]
        actions += [self._deliver_down] * bool(self.down)
        actions += [self._deliver_up] * bool(handler.up)
        actions += [self._store] * bool(self.storing)
        actions += [lambda index=index: self._complete(index) for index in self.world.open()]
        actions += [self._crash] * bool(actions and self.world.crashes)
        return actions

    def _close_input(self) -> None:
        self.input_open = False
        self.down.append(h.InputClosed())

    def _execute(self, index: int) -> None:
        assert index >= len(self.world.journal), "a Run that is stored is not executed again"
        self.handler.finish(index)

    def _deliver_down(self) -> None:
        self.handler.do(self.down.pop(0))

    def _deliver_up(self) -> None:
        self._tell(r.HandlerFrameReceived(frame=self.handler.up.pop(0)))

    def _store(self) -> None:
        commit = self.storing[0]
        assert commit.index == len(self.world.journal)
        if self.world.lost_at == commit.index:
            self.world.lost_at = None
            self._lose(int(self.world.lost_stored))
        else:
            self.world.journal.append(self.storing.pop(0).entry)
            self._tell(r.EntryCommitted(index=commit.index))

    def _complete(self, index: int) -> None:
        result = self.world.complete(index)
        self._tell(r.CompletionReady(index=index, result=result))

    def _crash(self) -> None:
        """The handler, the connection or the runtime ends; what was being stored may be stored."""
        self.world.crashes -= 1
        self._lose(self.world.random.randint(0, len(self.storing)))

    def _lose(self, stored: int) -> None:
        self.world.journal += [commit.entry for commit in self.storing[:stored]]
        self.over = True

    def _tell(self, event) -> None:
        self.runtime, out = runtime_side.step(self.runtime, event)
        for effect in out:
            self._take(effect)

    def _take(self, out) -> None:
        if isinstance(out, r.StoreEntry):
            self.storing.append(out)
        elif isinstance(out, r.Notify):
            self._send(out.frame)
        else:
            self.over = True
            self._end(out)

    def _send(self, sent: Frame) -> None:
        assert self.duplex
        if not self.input_open:
            return
        if self.world.losses and self.world.random.random() < 0.3:
            self.world.losses -= 1
            return
        times = 2 if self.world.random.random() < 0.2 else 1
        self.down += [h.FrameReceived(frame=sent)] * times

    def _end(self, out) -> None:
        if isinstance(out, r.FinishInvocation):
            assert out.index == len(self.world.journal) - 1
            self.world.finished = True
            return
        assert isinstance(out, r.SuspendInvocation), out
        waits = set(out.indexes)
        while waits <= set(self.world.open()):
            self.world.complete(self.world.random.choice(self.world.open()))
