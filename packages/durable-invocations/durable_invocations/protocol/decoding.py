"""Frames out of a stream of bytes, however it is split."""

from __future__ import annotations

from dataclasses import dataclass

from durable_invocations.protocol.failures import MessageTooLargeError, ProtocolError
from durable_invocations.protocol.frames import HEADER, Frame, check_flags
from durable_invocations.protocol.kinds import kind_of

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How large a message and a journal may be; headers do not count."""

    message_bytes: int = 32 * MIB
    journal_entries: int = 100_000
    journal_bytes: int = 256 * MIB


DEFAULT = Limits()


class Decoder:
    """Takes a stream's bytes, and gives its frames. Not for several threads.

    `entries` and `entry_bytes` are those of the journal that is there before the stream begins.
    After an error the stream is over: later calls raise the same error.
    """

    def __init__(self, limits: Limits = DEFAULT, *, entries: int = 0, entry_bytes: int = 0) -> None:
        self._limits = limits
        self._entries = entries
        self._entry_bytes = entry_bytes
        self._held = bytearray()
        self._measured = False
        self._fault: ProtocolError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes.

        Raises ProtocolError for an unknown type or flag, and MessageTooLargeError, as soon as the
        header is there; frames that the same `data` completes before it are lost with the stream.
        """
        if self._fault is not None:
            raise self._fault
        self._held += data
        try:
            return self._taken()
        except ProtocolError as error:
            self._fault = error
            self._held.clear()
            raise

    def end(self) -> None:
        """Tell that the stream has ended. Raises ProtocolError if a frame is incomplete."""
        if self._fault is not None:
            raise self._fault
        if self._held:
            raise ProtocolError(
                f"The stream ends within a message: {len(self._held)} bytes of it came, header "
                "included; the sender or the connection broke."
            )

    def _taken(self) -> list[Frame]:
        frames, at = [], 0
        while len(self._held) - at >= HEADER.size:
            code, flags, length = HEADER.unpack_from(self._held, at)
            if not self._measured:
                self._measure(code, flags, length)
            begin = at + HEADER.size
            if len(self._held) - begin < length:
                break
            at, self._measured = begin + length, False
            frames.append(Frame.of(code, flags, bytes(memoryview(self._held)[begin:at])))
        del self._held[:at]
        return frames

    def _measure(self, code: int, flags: int, length: int) -> None:
        """Refuse by the header what is not allowed, before its body is held."""
        kind, limits = kind_of(code), self._limits
        check_flags(kind, flags)
        if length > limits.message_bytes:
            raise _too_large(f"A message {kind}", length, limits.message_bytes, "bytes")
        if kind.entry:
            self._entries += 1
            self._entry_bytes += length
        if self._entries > limits.journal_entries:
            raise _too_large("The journal", self._entries, limits.journal_entries, "entries")
        if self._entry_bytes > limits.journal_bytes:
            raise _too_large("The journal", self._entry_bytes, limits.journal_bytes, "bytes")
        self._measured = True


def _too_large(what: str, has: int, most: int, unit: str) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"{what} has {has} {unit}, and {most} are allowed; send less, or raise the limit."
    )
