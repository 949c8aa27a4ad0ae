"""The response of one statement: held back while it may still fail, then streamed."""

from __future__ import annotations

import asyncio
import json
import secrets
from http import HTTPStatus
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING

from chdb_http.engine.engine import Outcome
from chdb_http.http.codecs import choose_encoding, make_encoder
from chdb_http.http.content_types import get_content_type
from chdb_http.sql.octets import to_bytes, to_header

if TYPE_CHECKING:
    from starlette.types import Send

    from chdb_http.engine.engine import Engine
    from chdb_http.engine.options import Options
    from chdb_http.sql.errors import EngineError

_CHUNK = 1 << 20
# Below this, another thread costs more than it saves.
_INLINE_BYTES = 1 << 14
_TAG_LENGTH = 16
# A lower-case letter for each value of a byte; one request for random bytes makes a tag.
_LETTERS = bytes(ord("a") + value % 26 for value in range(256))
# More than any format writes at its end.
_TAIL_BYTES = 1 << 14
# A larger buffer spills into a file, whatever a client asks for.
_MAX_HELD_BYTES = 1 << 26


class Reply:
    """Writes one response. Until its buffer is full an error still gets a status of its own.

    After that the response is 200 and streams; an error then ends it with ClickHouse's
    `__exception__` block and without a final chunk, both of which clients detect.
    """

    def __init__(self, send: Send, engine: Engine, options: Options) -> None:
        self._send = send
        self._engine = engine
        self._options = options
        self._tag = secrets.token_bytes(_TAG_LENGTH).translate(_LETTERS).decode()
        self._encoding = choose_encoding(options.accept_encoding)
        self._encoder = make_encoder(self._encoding)
        in_memory = min(max(options.buffer_bytes, 1), _MAX_HELD_BYTES)
        self._buffer = SpooledTemporaryFile[bytes](max_size=in_memory)
        self._tail = b""
        self.streaming = asyncio.Event()

    async def write(self, data: bytes, output_format: str) -> None:
        """Hold `data` back or send it; returns when the client can take more.

        The last bytes are always held: a statement that fails still writes the end of its format,
        and a reader would take the part it got for the whole.
        """
        data = self._tail + data
        cut = max(len(data) - _TAIL_BYTES, 0)
        data, self._tail = data[:cut], data[cut:]
        if self.streaming.is_set():
            await self._send_encoded(data)
            return
        self._buffer.write(data)
        if self._buffer.tell() > self._options.buffer_bytes and not self._options.wait_end:
            await self._start_response(HTTPStatus.OK, self._build_headers(output_format, Outcome()))
            await self._send_buffer()

    async def finish(self, outcome: Outcome, output_format: str | None) -> None:
        """End a response that succeeded; `output_format` is None for one without a result."""
        await self._release_tail()
        if not self.streaming.is_set() and self._buffer.tell() <= _CHUNK:
            headers = self._build_headers(output_format, outcome)
            await self._send_whole(HTTPStatus.OK, headers, self._read_buffer())
            return
        if not self.streaming.is_set():
            await self._start_response(HTTPStatus.OK, self._build_headers(output_format, outcome))
            await self._send_buffer()
        await self._send_body(self._encoder.finish(), more=False)

    async def _release_tail(self) -> None:
        """Stop holding the last bytes: send them, or add them to the buffer."""
        data, self._tail = self._tail, b""
        if self.streaming.is_set():
            await self._send_encoded(data)
        else:
            self._buffer.write(data)

    async def fail(self, error: EngineError) -> None:
        """End a response that failed."""
        text = to_bytes(error.render(self._engine.version))
        if self.streaming.is_set():
            await self._break_off(text)
            return
        self._buffer.close()
        headers = self._build_headers(None, Outcome())
        headers["X-ClickHouse-Exception-Code"] = str(error.number)
        if error.status is HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = 'Basic realm="ClickHouse server HTTP API"'
        await self._send_whole(error.status, headers, text)

    async def _break_off(self, text: bytes) -> None:
        mark, tag = b"__exception__", self._tag.encode()
        block = b"\r\n".join([b"", mark, tag, text + b"%d %s" % (len(text), tag), mark, b""])
        await self._send_encoded(block)
        await self._send_body(self._encoder.finish(), more=True)

    def _build_headers(self, output_format: str | None, outcome: Outcome) -> dict[str, str]:
        headers = {
            "Content-Type": get_content_type(output_format),
            "X-ClickHouse-Summary": render_summary(outcome),
            "X-ClickHouse-Query-Id": self._options.query_id,
            "X-ClickHouse-Server-Display-Name": self._engine.host_name,
            "X-ClickHouse-Timezone": self._options.settings.get("session_timezone")
            or self._engine.timezone,
            "X-ClickHouse-Exception-Tag": self._tag,
        }
        if output_format is not None:
            headers["X-ClickHouse-Format"] = output_format
        return headers

    async def _start_response(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.streaming.set()
        if self._encoding is not None:
            headers["Content-Encoding"] = self._encoding
        raw = [(name.lower().encode(), to_header(value)) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": int(status), "headers": raw})

    async def _send_whole(self, status: HTTPStatus, headers: dict[str, str], data: bytes) -> None:
        if not data:
            self._encoding = None
        body = await self._compress_data(data) + self._encoder.finish() if data else b""
        headers["Content-Length"] = str(len(body))
        await self._start_response(status, headers)
        await self._send_body(body, more=False)

    def _read_buffer(self) -> bytes:
        self._buffer.seek(0)
        with self._buffer as buffer:
            return buffer.read()

    async def _send_buffer(self) -> None:
        self._buffer.seek(0)
        with self._buffer as buffer:
            while chunk := buffer.read(_CHUNK):
                await self._send_encoded(chunk)

    async def _send_encoded(self, data: bytes) -> None:
        await self._send_body(await self._compress_data(data), more=True)

    async def _compress_data(self, data: bytes) -> bytes:
        if self._encoding is None or len(data) < _INLINE_BYTES:
            return self._encoder.compress(data)
        return await asyncio.to_thread(self._encoder.compress, data)

    async def _send_body(self, data: bytes, *, more: bool) -> None:
        if data or not more:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})


def render_summary(outcome: Outcome) -> str:
    """X-ClickHouse-Summary: numbers as strings; the total of rows to read is not known here."""
    return json.dumps(
        {
            "read_rows": str(outcome.read_rows),
            "read_bytes": str(outcome.read_bytes),
            "written_rows": str(outcome.written_rows),
            "written_bytes": str(outcome.written_bytes),
            "total_rows_to_read": str(outcome.read_rows),
            "result_rows": str(outcome.result_rows or outcome.written_rows),
            "result_bytes": str(outcome.result_bytes or outcome.written_bytes),
            "elapsed_ns": str(outcome.elapsed_ns),
        },
        separators=(",", ":"),
    )
