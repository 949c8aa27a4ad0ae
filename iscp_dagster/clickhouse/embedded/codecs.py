"""Content encodings of requests and responses, a chunk at a time."""

from __future__ import annotations

import re
import zlib
from typing import Protocol

import lz4.frame
import zstandard

from iscp_dagster.clickhouse.embedded.errors import Code, EngineError

_GZIP_BITS = 16 + zlib.MAX_WBITS
_FAST_LEVEL = 1
# The first that the client accepts is used; lz4 costs the least on a loopback.
_PREFERENCE = ("lz4", "zstd", "gzip", "deflate")
_REFUSED = re.compile(r";\s*q=0(\.0*)?\s*$")


class Encoder(Protocol):
    """Makes one compressed stream; the chunks' outputs joined are the stream."""

    def compress(self, data: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


class Decoder(Protocol):
    """Reads one compressed stream; `finish` raises `EngineError` when it was cut short."""

    def decompress(self, data: bytes) -> bytes: ...

    def finish(self) -> None: ...


class _Identity:
    def compress(self, data: bytes) -> bytes:
        return data

    def decompress(self, data: bytes) -> bytes:
        return data


class _IdentityEncoder(_Identity):
    def finish(self) -> bytes:
        return b""


class _IdentityDecoder(_Identity):
    def finish(self) -> None:
        return None


class _ZlibEncoder:
    def __init__(self, bits: int) -> None:
        self._stream = zlib.compressobj(_FAST_LEVEL, zlib.DEFLATED, bits)

    def compress(self, data: bytes) -> bytes:
        return self._stream.compress(data)

    def finish(self) -> bytes:
        return self._stream.flush()


class _ZstdEncoder:
    def __init__(self) -> None:
        self._stream = zstandard.ZstdCompressor(level=_FAST_LEVEL).compressobj()

    def compress(self, data: bytes) -> bytes:
        return self._stream.compress(data)

    def finish(self) -> bytes:
        return self._stream.flush()


class _Lz4Encoder:
    def __init__(self) -> None:
        self._stream = lz4.frame.LZ4FrameCompressor()
        self._head: bytes = self._stream.begin()

    def compress(self, data: bytes) -> bytes:
        head, self._head = self._head, b""
        return head + bytes(self._stream.compress(data))

    def finish(self) -> bytes:
        return self._head + bytes(self._stream.flush())


class _Frames(Protocol):
    """What the decompressors of zlib, zstandard and lz4 have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class _FramesDecoder:
    """Reads frame after frame: a stream may be several compressed files joined."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._frame: _Frames = _new_frame(encoding)
        self._begun = False

    def decompress(self, data: bytes) -> bytes:
        parts = []
        rest: bytes | None = data
        while rest:
            if self._frame.eof:
                self._frame = _new_frame(self._encoding)
            self._begun = True
            try:
                parts.append(self._frame.decompress(rest))
            except (zlib.error, zstandard.ZstdError, RuntimeError) as error:
                raise self._broken(str(error)) from error
            rest = self._frame.unused_data if self._frame.eof else None
        return b"".join(parts)

    def finish(self) -> None:
        if self._begun and not self._frame.eof:
            raise self._broken("the body ends within a frame")

    def _broken(self, reason: str) -> EngineError:
        return EngineError(
            Code.CANNOT_DECOMPRESS,
            f"Cannot decompress the request body as '{self._encoding}': {reason}. "
            "Send a body that matches Content-Encoding",
        )


def _new_frame(encoding: str) -> _Frames:
    frame: _Frames
    if encoding == "zstd":
        frame = zstandard.ZstdDecompressor().decompressobj()
    elif encoding == "lz4":
        frame = lz4.frame.LZ4FrameDecompressor()
    else:
        frame = zlib.decompressobj(_GZIP_BITS if encoding == "gzip" else zlib.MAX_WBITS)
    return frame


def decoder(encoding: str) -> Decoder:
    """The decoder of a Content-Encoding; an unknown one raises `EngineError` 48."""
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return _IdentityDecoder()
    if name not in _PREFERENCE:
        raise EngineError(
            Code.NOT_IMPLEMENTED,
            f"Unknown Content-Encoding '{encoding}'. Use one of {', '.join(_PREFERENCE)}",
        )
    return _FramesDecoder(name)


def choose_encoding(accept: str) -> str | None:
    """The encoding to answer an Accept-Encoding header with, None for plain bytes."""
    offers = [offer for offer in accept.lower().split(",") if not _REFUSED.search(offer)]
    names = {offer.split(";")[0].strip() for offer in offers}
    return next((name for name in _PREFERENCE if name in names), None)


def encoder(encoding: str | None) -> Encoder:
    """The encoder of a name from `choose_encoding`."""
    if encoding is None:
        return _IdentityEncoder()
    if encoding == "lz4":
        return _Lz4Encoder()
    if encoding == "zstd":
        return _ZstdEncoder()
    return _ZlibEncoder(_GZIP_BITS if encoding == "gzip" else zlib.MAX_WBITS)
