"""Decodes frames from a stream of bytes, however it is split."""

from __future__ import annotations

from dataclasses import dataclass

from durable_invocations.protocol.failures import MessageTooLargeError, ProtocolError
from durable_invocations.protocol.frames import HEADER, Frame, check_flags
from durable_invocations.protocol.kinds import get_kind

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How large a message and a journal may be; headers do not count."""

    message_bytes: int = 32 * MIB
    journal_entries: int = 100_000
    journal_bytes: int = 256 * MIB


DEFAULT = Limits()


class Decoder:
    """Decodes the frames of a stream. Not thread-safe.

    `entries` and `entry_bytes` are those of the journal before the stream begins. After an error
    the stream is over: later calls raise the same error.
    """

    def __init__(self, limits: Limits = DEFAULT, *, entries: int = 0, entry_bytes: int = 0) -> None:
        self._limits = limits
        self._entries = entries
        self._entry_bytes = entry_bytes
        self._buffer = bytearray()
        self._measured = False
        self._fault: ProtocolError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes.

        Raises ProtocolError for an unknown type or flag, and MessageTooLargeError, as soon as the
        header has arrived; earlier frames in the same `data` are lost.
        """
        if self._fault is not None:
            raise self._fault
        self._buffer += data
        try:
            return self._take_frames()
        except ProtocolError as error:
            self._fault = error
            self._buffer.clear()
            raise

    def end(self) -> None:
        """End the stream. Raises ProtocolError if a frame is incomplete."""
        if self._fault is not None:
            raise self._fault
        if self._buffer:
            raise ProtocolError(
                f"The stream ends within a message: {len(self._buffer)} bytes of it arrived, "
                "header included; the sender or the connection broke."
            )

    def _take_frames(self) -> list[Frame]:
        frames, offset = [], 0
        while len(self._buffer) - offset >= HEADER.size:
            code, flags, length = HEADER.unpack_from(self._buffer, offset)
            if not self._measured:
                self._check_header(code, flags, length)
            begin = offset + HEADER.size
            if len(self._buffer) - begin < length:
                break
            offset, self._measured = begin + length, False
            frames.append(Frame.of(code, flags, bytes(memoryview(self._buffer)[begin:offset])))
        del self._buffer[:offset]
        return frames

    def _check_header(self, code: int, flags: int, length: int) -> None:
        """Refuse by its header a frame that is not allowed, before its body is buffered."""
        kind, limits = get_kind(code), self._limits
        check_flags(kind, flags)
        if length > limits.message_bytes:
            raise _make_size_error(f"A message {kind}", length, limits.message_bytes, "bytes")
        if kind.entry:
            self._entries += 1
            self._entry_bytes += length
        if self._entries > limits.journal_entries:
            raise _make_size_error("The journal", self._entries, limits.journal_entries, "entries")
        if self._entry_bytes > limits.journal_bytes:
            raise _make_size_error("The journal", self._entry_bytes, limits.journal_bytes, "bytes")
        self._measured = True


def _make_size_error(what: str, has: int, most: int, unit: str) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"{what} has {has} {unit}, and {most} are allowed; send less, or raise the limit."
    )
