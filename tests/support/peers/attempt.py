"""One attempt: its stream, the messages that may come on it, and those that are sent."""

from __future__ import annotations

import asyncio
from enum import Enum

from support.peers.entry_model import World
from support.peers.fault_plans import Invocation
from support.peers.proto_text import shapes
from support.peers.streams import Duplex, Exchange
from support.peers.wire import (
    ACK,
    COMPLETED,
    CUSTOM,
    ENTRY,
    Packet,
    completion,
    packet,
    result_of,
    unpack,
)

FIRST_OF_V3, LAST_OF_V3 = 0x0C06, 0x0C09


class Ending(Enum):
    DONE = "EndMessage"
    SUSPENDED = "SuspensionMessage"
    FAILED = "ErrorMessage"
    BROKEN = "nothing"


class CutError(Exception):
    """The plan breaks the stream off here."""


class Attempt:
    """Checks the SDK's messages against the protocol's text, and stores its entries."""

    def __init__(
        self,
        invocation: Invocation,
        world: World,
        stream: Exchange | Duplex,
        version: int,
        *,
        hang_up: bool,
    ) -> None:
        self.invocation, self.world = invocation, world
        self.stream, self.version = stream, version
        self.hang_up = hang_up
        self.replayed = [each.completed for each in invocation.journal]
        self.ending: Ending | None = None
        self._ready: list[int] = []
        self._sent: list[int] = []
        self._ordered = set(invocation.plan.order)
        self._acked: set[int] = set()
        self._closing = False

    def build_opening(self) -> list[Packet]:
        """Return the messages that open the stream: StartMessage and the journal."""
        invocation, state = self.invocation, self.world.stored(self.invocation)
        eager = invocation.plan.eager or (lambda _: False)
        shown = [{"key": key, "value": state[key]} for key in sorted(state) if eager(key)]
        retries = invocation.retries if self.version >= 2 else 0
        return [
            packet(
                "Start",
                id=invocation.id,
                debug_id=invocation.name,
                known_entries=len(invocation.journal),
                state_map=shown,
                partial_state=len(shown) < len(state) or invocation.plan.eager is None,
                key=invocation.key,
                retry_count_since_last_stored_entry=retries,
            ),
            *invocation.journal,
        ]

    async def run(self) -> Ending:
        """Open the stream, follow it to its end, and return how it ended."""
        invocation = self.invocation
        invocation.on_completion, invocation.changed = self._ready.append, asyncio.Event()
        try:
            await self._open(b"".join(each.bytes() for each in self.build_opening()))
            await self._follow()
        except CutError:
            return Ending.BROKEN
        finally:
            invocation.on_completion = lambda _: None
            await self.stream.break_off()
        return self.ending or Ending.BROKEN

    async def _open(self, data: bytes) -> None:
        media = f"application/vnd.restate.invocation.v{self.version}"
        path = f"/invoke/{self.invocation.service}/{self.invocation.handler}"
        piece = (self.invocation.plan.piece if self.stream.duplex else 0) or len(data)
        await self.stream.open(
            "POST", path, [("content-type", media)], data[:piece], end=not self.stream.duplex
        )
        for at in range(piece, len(data), piece):
            await self.stream.send(data[at : at + piece])

    async def _follow(self) -> None:
        left = b""
        sending = asyncio.create_task(self._send_due())
        try:
            while (data := await self.stream.receive()) is not None:
                packets, left = unpack(left + data)
                for each in packets:
                    self._take(each)
                    self.invocation.changed.set()
                if self.ending and self.hang_up:
                    break
        finally:
            if sending.done():
                sending.result()
            sending.cancel()
        assert not left, f"the stream ends within a message: {left[:20]!r}"
        assert self.stream.status == 200, f"{self.stream.status} from {self.invocation.service}"
        media = self.stream.headers["content-type"]
        assert media.endswith(f"vnd.restate.invocation.v{self.version}"), media

    async def _send_due(self) -> None:
        """Send completions and acknowledgements as the plan says, on a duplex stream."""
        while self.stream.duplex:
            await self.invocation.changed.wait()
            self.invocation.changed.clear()
            for each in self._due():
                await self.stream.send(each.bytes())
            if self._closing:
                await self.stream.close()

    def _due(self) -> list[Packet]:
        due: list[Packet] = []
        for index in sorted(self._acked):
            due += self._repeat(packet("EntryAck", entry_index=index), index)
        self._acked.clear()
        for index in self._allowed():
            self._ready.remove(index)
            self._sent.append(index)
            result = result_of(self.invocation.journal[index])
            assert result is not None
            due += self._repeat(completion(index, result), index)
        return due

    def _repeat(self, message: Packet, index: int) -> list[Packet]:
        """Return the message as often as the plan sends it for this entry."""
        plan = self.invocation.plan
        times = 0 if index in plan.lost else 1 + (index in plan.twice)
        self._closing = self._closing or not times
        return [message] * times

    def _allowed(self) -> list[int]:
        """Return the completions that may be sent now; those of the order wait for each other."""
        free = [index for index in self._ready if index not in self._ordered]
        known = {at for at, done in enumerate(self.replayed) if done} | set(self._sent)
        for index in self.invocation.plan.order:
            if index in known:
                continue
            if index not in self._ready:
                break
            free.append(index)
        return free

    def _take(self, each: Packet) -> None:
        assert self.ending is None, f"{each.name} after {self.ending}"
        if each.code >= ENTRY:
            self._take_entry(each)
        elif each.name == "SuspensionMessage":
            self._take_suspension(each.message["entry_indexes"])
        elif each.name == "ErrorMessage":
            self.invocation.errors.append(each.message)
            self.ending = Ending.FAILED
        elif each.name == "EndMessage":
            last = self.invocation.journal[-1]
            assert last.name == "OutputEntryMessage", "an end without an output"
            self.ending = Ending.DONE
        else:
            raise AssertionError(f"an SDK sends no {each.name}")
        # The SDK may end its side only after it has seen the end of the other.
        self._closing = self._closing or self.ending is not None

    def _take_entry(self, each: Packet) -> None:
        index = len(self.invocation.journal)
        self._check_entry(each)
        stored = self.invocation.plan.cuts.pop(index, None)
        if stored is False:
            raise CutError
        self.invocation.journal.append(each)
        self.invocation.retries = 0
        self.world.perform(self.invocation, index, each)
        if stored:
            raise CutError
        if each.flags & ACK:
            self._acked.add(index)

    def _check_entry(self, each: Packet) -> None:
        invocation = self.invocation
        assert invocation.journal[-1].name != "OutputEntryMessage", f"{each.name} after the output"
        assert each.name != "InputEntryMessage", "only the runtime sends the input"
        assert not each.flags & ~(ACK | COMPLETED), f"{each.name} has flags {each.flags:#x}"
        assert self.version >= 3 or not FIRST_OF_V3 <= each.code <= LAST_OF_V3, each.name
        if each.code < CUSTOM:
            shape, filled = shapes()[each.name], result_of(each) is not None
            assert not each.completed or shape.completable, f"{each.name} is never completed"
            assert not shape.completable or each.completed == filled, f"{each.name}'s flag is wrong"
            assert each.message is not None

    def _take_suspension(self, indexes: list[int]) -> None:
        assert indexes, "a suspension on nothing"
        journal = self.invocation.journal
        for index in indexes:
            assert index < len(journal), f"suspended on entry {index}, which was not sent"
            entry = journal[index]
            shape = shapes().get(entry.name)
            waits = entry.flags & ACK or (shape is not None and shape.completable)
            assert waits, f"suspended on {entry.name}, which is never completed"
            was = index < len(self.replayed) and self.replayed[index]
            assert not was, f"suspended on {entry.name} at {index}, which the replay completed"
        self.invocation.suspended.append(tuple(indexes))
        self.ending = Ending.SUSPENDED
