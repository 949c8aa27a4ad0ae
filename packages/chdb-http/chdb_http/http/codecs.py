"""Content encodings of requests and responses, a chunk at a time."""

from __future__ import annotations

import re
import zlib
from typing import Protocol

import lz4.frame
import zstandard

from chdb_http.sql.errors import Code, EngineError

_GZIP_BITS = 16 + zlib.MAX_WBITS
_FAST_LEVEL = 1
PORTION = 1 << 20
"""About this many bytes are decompressed at a time; of zstd, at most 32 times as many."""
_ZSTD_INPUT = 1 << 10
# The first that the client accepts is used; lz4 costs the least on a loopback.
_PREFERENCE = ("lz4", "zstd", "gzip", "deflate")
# A header may hold a million offers, and it is read before the password.
_MAX_OFFERS = 100
_REFUSED = re.compile(r";\s*q=0(\.0*)?\s*$")


class Encoder(Protocol):
    """Makes one compressed stream; the chunks' outputs joined are the stream."""

    def compress(self, data: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


class Decoder(Protocol):
    """Reads one compressed stream; `finish` raises `EngineError` when it was cut short.

    `decompress` returns a portion of the output; while `pending`, calls with no data return more.
    """

    @property
    def pending(self) -> bool: ...

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
    pending = False

    def finish(self) -> None:
        return None


class _StreamEncoder:
    """For zlib and zstandard, whose streams have the same methods."""

    def __init__(self, stream: zlib._Compress | zstandard.ZstdCompressionObj) -> None:
        self._stream = stream

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


class _CompressedFrame(Protocol):
    """One frame of zlib, zstandard or lz4."""

    @property
    def eof(self) -> bool: ...

    def step(self, data: memoryview) -> tuple[bytes, memoryview]:
        """Return a portion of the output, and the rest of the data."""


class _ZlibFrame:
    def __init__(self, bits: int) -> None:
        self._stream = zlib.decompressobj(bits)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    def step(self, data: memoryview) -> tuple[bytes, memoryview]:
        output = self._stream.decompress(data, PORTION)
        rest = self._stream.unused_data if self.eof else self._stream.unconsumed_tail
        return output, memoryview(rest)


class _Lz4Frame:
    def __init__(self) -> None:
        self._stream = lz4.frame.LZ4FrameDecompressor()

    @property
    def eof(self) -> bool:
        return bool(self._stream.eof)

    def step(self, data: memoryview) -> tuple[bytes, memoryview]:
        output = self._stream.decompress(data, PORTION)
        # It keeps the data that it has not decompressed yet, earlier data included.
        return output, memoryview((self.eof and self._stream.unused_data) or b"")


class _ZstdFrame:
    """Cannot limit its output, so it gets little input: four bytes make 128 KiB at most."""

    def __init__(self) -> None:
        self._stream = zstandard.ZstdDecompressor().decompressobj()

    @property
    def eof(self) -> bool:
        return self._stream.eof

    def step(self, data: memoryview) -> tuple[bytes, memoryview]:
        portion = data[:_ZSTD_INPUT]
        output = self._stream.decompress(portion)
        return output, data[len(portion) - len((self.eof and self._stream.unused_data) or b"") :]


class _FramesDecoder:
    """Reads frame after frame: a stream may be several compressed files joined."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._frame: _CompressedFrame = _make_frame(encoding)
        self._begun = False
        self._rest = memoryview(b"")
        self._full = False

    @property
    def pending(self) -> bool:
        return bool(self._rest) or self._full

    def decompress(self, data: bytes) -> bytes:
        self._rest = memoryview(bytes(self._rest) + data)
        parts: list[bytes] = []
        size = 0
        while self.pending and size < PORTION:
            parts.append(self._decompress_portion())
            size += len(parts[-1])
        return b"".join(parts)

    def _decompress_portion(self) -> bytes:
        if self._frame.eof:
            self._frame = _make_frame(self._encoding)
        self._begun = True
        try:
            output, self._rest = self._frame.step(self._rest)
        except (zlib.error, zstandard.ZstdError, RuntimeError) as error:
            raise self._make_decode_error(str(error)) from error
        # After a full portion there may be more output from the bytes already taken.
        self._full = len(output) >= PORTION and not self._frame.eof
        return output

    def finish(self) -> None:
        if self._begun and not self._frame.eof:
            raise self._make_decode_error("the body ends within a frame")

    def _make_decode_error(self, reason: str) -> EngineError:
        return EngineError(
            Code.CANNOT_DECOMPRESS,
            f"Cannot decompress the request body as '{self._encoding}': {reason}. "
            "Send a body that matches Content-Encoding",
        )


def _make_frame(encoding: str) -> _CompressedFrame:
    if encoding == "zstd":
        return _ZstdFrame()
    if encoding == "lz4":
        return _Lz4Frame()
    return _ZlibFrame(_GZIP_BITS if encoding == "gzip" else zlib.MAX_WBITS)


def make_decoder(encoding: str) -> Decoder:
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
    first = accept.lower().split(",", _MAX_OFFERS)[:_MAX_OFFERS]
    offers = [offer for offer in first if not _REFUSED.search(offer)]
    names = {offer.split(";")[0].strip() for offer in offers}
    return next((name for name in _PREFERENCE if name in names), None)


def make_encoder(encoding: str | None) -> Encoder:
    """The encoder of a name from `choose_encoding`."""
    if encoding is None:
        return _IdentityEncoder()
    if encoding == "lz4":
        return _Lz4Encoder()
    if encoding == "zstd":
        return _StreamEncoder(zstandard.ZstdCompressor(level=_FAST_LEVEL).compressobj())
    bits = _GZIP_BITS if encoding == "gzip" else zlib.MAX_WBITS
    return _StreamEncoder(zlib.compressobj(_FAST_LEVEL, zlib.DEFLATED, bits))
