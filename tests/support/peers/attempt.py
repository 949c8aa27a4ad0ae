"""One attempt: its stream, which messages may come on it, and which are sent."""

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
    Packet,
    completion,
    packet,
    result_of,
    unpacked,
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
    """Holds what the SDK sends against the protocol's text, and stores its entries."""

    def __init__(
        self,
        of: Invocation,
        world: World,
        stream: Exchange | Duplex,
        version: int,
        *,
        hang_up: bool,
    ) -> None:
        self.of, self.world, self.stream, self.version = of, world, stream, version
        self.hang_up = hang_up
        self.replayed = [each.completed for each in of.journal]
        self.ending: Ending | None = None
        self._ready: list[int] = []
        self._told: list[int] = []
        self._unheld = set(of.plan.order)
        self._acked: set[int] = set()
        self._closing = False

    def start(self) -> list[Packet]:
        """Return the messages that open the stream: StartMessage and the journal."""
        of, state = self.of, self.world.stored(self.of)
        eager = of.plan.eager or (lambda _: False)
        shown = [{"key": key, "value": state[key]} for key in sorted(state) if eager(key)]
        retries = of.retries if self.version >= 2 else 0
        return [
            packet(
                "Start",
                id=of.id,
                debug_id=of.name,
                known_entries=len(of.journal),
                state_map=shown,
                partial_state=len(shown) < len(state) or of.plan.eager is None,
                key=of.key,
                retry_count_since_last_stored_entry=retries,
            ),
            *of.journal,
        ]

    async def run(self) -> Ending:
        """Open the stream, follow it to its end, and say how it ended."""
        of = self.of
        of.told, of.changed = self._note, asyncio.Event()
        try:
            await self._open(b"".join(each.bytes() for each in self.start()))
            await self._follow()
        except CutError:
            return Ending.BROKEN
        finally:
            of.told = lambda _: None
            await self.stream.gone()
        return self.ending or Ending.BROKEN

    async def _open(self, data: bytes) -> None:
        media = f"application/vnd.restate.invocation.v{self.version}"
        path = f"/invoke/{self.of.service}/{self.of.handler}"
        piece = self.of.plan.piece if self.stream.duplex and self.of.plan.piece else len(data)
        await self.stream.open(
            "POST", path, [("content-type", media)], data[:piece], end=not self.stream.duplex
        )
        for at in range(piece, len(data), piece):
            await self.stream.send(data[at : at + piece])

    async def _follow(self) -> None:
        left = b""
        telling = asyncio.create_task(self._tell())
        try:
            while (data := await self.stream.receive()) is not None:
                packets, left = unpacked(left + data)
                for each in packets:
                    self._take(each)
                    self.of.changed.set()
                if self.ending and self.hang_up:
                    break
        finally:
            if telling.done():
                telling.result()
            telling.cancel()
        assert not left, f"the stream ends within a message: {left[:20]!r}"
        assert self.stream.status == 200, f"{self.stream.status} from {self.of.service}"
        media = self.stream.headers["content-type"]
        assert media.endswith(f"vnd.restate.invocation.v{self.version}"), media

    def _note(self, index: int) -> None:
        self._ready.append(index)

    async def _tell(self) -> None:
        """Tell completions and acknowledgements as the plan says, on a stream that can."""
        while self.stream.duplex:
            await self.of.changed.wait()
            self.of.changed.clear()
            for each in self._due():
                await self.stream.send(each.bytes())
            if self._closing:
                await self.stream.close()

    def _due(self) -> list[Packet]:
        out: list[Packet] = []
        plan, of = self.of.plan, self.of
        for index in sorted(self._acked):
            times = 0 if index in plan.lost else 1 + (index in plan.twice)
            self._closing = self._closing or not times
            out += [packet("EntryAck", entry_index=index)] * times
        self._acked.clear()
        for index in self._allowed():
            self._ready.remove(index)
            self._told.append(index)
            result = result_of(of.journal[index])
            assert result is not None
            times = 0 if index in plan.lost else 1 + (index in plan.twice)
            self._closing = self._closing or not times
            out += [completion(index, result)] * times
        return out

    def _allowed(self) -> list[int]:
        """The completions that may be told now: those of the order wait for one another."""
        free = [index for index in self._ready if index not in self._unheld]
        known = {at for at, done in enumerate(self.replayed) if done} | set(self._told)
        for index in self.of.plan.order:
            if index in known:
                continue
            if index not in self._ready:
                break
            free.append(index)
        return free

    def _take(self, each: Packet) -> None:
        assert self.ending is None, f"{each.name} after {self.ending}"
        if each.is_entry:
            self._take_entry(each)
        elif each.name == "SuspensionMessage":
            self._take_suspension(each.message["entry_indexes"])
        elif each.name == "ErrorMessage":
            self.of.errors.append(each.message)
            self.ending = Ending.FAILED
        elif each.name == "EndMessage":
            assert self.of.journal[-1].name == "OutputEntryMessage", "an end without an output"
            self.ending = Ending.DONE
        else:
            raise AssertionError(f"an SDK sends no {each.name}")
        # The SDK may end its side only after it has seen the end of the other.
        self._closing = self._closing or self.ending is not None

    def _take_entry(self, each: Packet) -> None:
        index = len(self.of.journal)
        self._check_entry(each)
        stored = self.of.plan.cuts.pop(index, None)
        if stored is False:
            raise CutError
        self.of.journal.append(each)
        self.of.retries = 0
        self.world.perform(self.of, index, each)
        if stored:
            raise CutError
        if each.flags & ACK:
            self._acked.add(index)

    def _check_entry(self, each: Packet) -> None:
        of = self.of
        assert of.journal[-1].name != "OutputEntryMessage", f"{each.name} after the output"
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
        for index in indexes:
            assert index < len(self.of.journal), f"suspended on entry {index}, which was not sent"
            entry = self.of.journal[index]
            shape = shapes().get(entry.name)
            waits = entry.flags & ACK or (shape is not None and shape.completable)
            assert waits, f"suspended on {entry.name}, which is never completed"
            was = index < len(self.replayed) and self.replayed[index]
            assert not was, f"suspended on {entry.name} at {index}, which the replay completed"
        self.of.suspended.append(tuple(indexes))
        self.ending = Ending.SUSPENDED
