"""gRPC calls whose messages are small enough to be encoded by hand.

Importing Spark Connect's generated classes takes a second and a half, and a hundred megabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_LENGTH_DELIMITED = 2
_SEVEN_BITS = 0x7F


class RpcError(Exception):
    """A call failed; `late` when no answer came in time. Its text is one line."""

    def __init__(self, text: str, *, late: bool) -> None:
        super().__init__(" ".join(text.split()))
        self.late = late


class Rpc:
    """Calls to one address: `host:port`, or `unix:/path`."""

    def __init__(
        self, address: str, metadata: Sequence[tuple[str, str]] = (), *, secure: bool = False
    ) -> None:
        self._address = address
        self._secure = secure
        self._metadata = tuple(metadata)
        self._channel: Any = None

    def call(self, method: str, message: bytes, seconds: float) -> bytes:
        """The answer to one message. Raises RpcError."""
        return self._send_message("unary_unary", method, message, seconds)

    def drain(self, method: str, message: bytes, seconds: float) -> None:
        """Read a stream of answers to its end. Raises RpcError."""
        self._send_message("unary_stream", method, message, seconds)

    def _send_message(self, kind: str, method: str, message: bytes, seconds: float) -> bytes:
        import grpc

        channel = self._open_channel()
        try:
            call = getattr(channel, kind)(method)
            answer = call(message, timeout=seconds, metadata=self._metadata)
            return answer if isinstance(answer, bytes) else b"".join(answer)
        except grpc.RpcError as error:
            self._drop_channel(channel)
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            raise RpcError(error.details() or str(error.code()), late=late) from error

    def _open_channel(self) -> Any:
        import grpc

        if self._channel is None:
            if self._secure:
                self._channel = grpc.secure_channel(self._address, grpc.ssl_channel_credentials())
            else:
                # The server is on this machine: ignore proxies in the environment.
                options = (("grpc.enable_http_proxy", 0),)
                self._channel = grpc.insecure_channel(self._address, options=options)
        return self._channel

    def _drop_channel(self, channel: Any) -> None:
        """Connect anew next time: once its server is gone, a channel waits longer and longer.

        It is closed with the last call that uses it, which may be another thread's.
        """
        if self._channel is channel:
            self._channel = None


def encode_field(number: int, value: bytes | str | int) -> bytes:
    """One field of a protobuf message: text, bytes, another message, or a natural number."""
    if isinstance(value, int):
        return _encode_varint(number << 3) + _encode_varint(value)
    payload = value.encode() if isinstance(value, str) else value
    return _encode_varint(number << 3 | _LENGTH_DELIMITED) + _encode_varint(len(payload)) + payload


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > _SEVEN_BITS:
        encoded.append(value & _SEVEN_BITS | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
