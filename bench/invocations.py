"""No-op invocations a second of a service endpoint, and how long a long replay takes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median, quantiles

from bench import driving
from bench.report import BenchReport
from durable_invocations.protocol.decoding import Decoder
from durable_invocations.protocol.frames import Frame, encode, make_frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.versions import NEWEST, format_content_type

SERVER = """
import socket
import uvicorn
from durable_invocations import Context, Service, service_app

service = Service("Bench")

@service.handler
async def nothing(ctx: Context) -> None:
    pass

@service.handler
async def steps(ctx: Context, count: int) -> int:
    total = 0
    for number in range(count):
        total += await ctx.run("step", lambda: number)
    return total

listening = socket.socket()
listening.bind(("127.0.0.1", 0))
listening.listen(128)
print(listening.getsockname()[1], flush=True)
config = uvicorn.Config(service_app(service), log_level="warning", access_log=False)
uvicorn.Server(config).run([listening])
"""
INVOCATIONS = 20_000
CONCURRENCY = 32
ENTRIES = 10_000
END = b"0\r\n\r\n"


def measure(report: BenchReport, rounds: int) -> None:
    """Only the endpoint, over HTTP/1.1, in a process of its own; then with the runtime."""
    _measure_endpoint(report, rounds)
    driving.measure(report, rounds)


def _measure_endpoint(report: BenchReport, rounds: int) -> None:
    with _serve_endpoint() as port:
        rates, waits = zip(*(asyncio.run(_load(port)) for _ in range(rounds)), strict=True)
        replays = [asyncio.run(_replay(port)) for _ in range(rounds)]
    p50, p99 = (1e3 * seconds for seconds in _compute_percentiles(waits[-1]))
    summary = (
        f"{median(rates):,.0f} invocations/s  target: >= 800 (p50 {p50:.1f} ms, p99 {p99:.1f})"
    )
    report.add_fact(f"invocations: no-op, concurrency {CONCURRENCY}", summary)
    summary = f"{median(replays):.2f} s  target: <= 1 s"
    report.add_fact(f"invocations: replay of {ENTRIES:,} Run entries", summary)


@contextmanager
def _serve_endpoint() -> Iterator[int]:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield int(server.stdout.readline())
    finally:
        server.terminate()
        server.wait()


async def _load(port: int) -> tuple[float, list[float]]:
    """The rate at which invocations end, and how long each of them takes."""
    request = _request(port, "nothing", _start(1), make_frame(pb.InputEntryMessage()))
    share = INVOCATIONS // CONCURRENCY
    start = time.perf_counter()
    waits = await asyncio.gather(
        *(_invoke_repeatedly(port, request, share) for _ in range(CONCURRENCY))
    )
    seconds = time.perf_counter() - start
    return share * CONCURRENCY / seconds, [
        wait for connection_waits in waits for wait in connection_waits
    ]


async def _invoke_repeatedly(port: int, request: bytes, count: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    waits = []
    for _ in range(count):
        start = time.perf_counter()
        writer.write(request)
        answer = await reader.readuntil(END)
        waits.append(time.perf_counter() - start)
        assert answer.startswith(b"HTTP/1.1 200")
    writer.close()
    return waits


async def _replay(port: int) -> float:
    """How long a handler that replays many runs takes until its output."""
    runs = [
        make_frame(pb.RunEntryMessage(name="step", value=b"%d" % number))
        for number in range(ENTRIES)
    ]
    input_frame = make_frame(pb.InputEntryMessage(value=b"%d" % ENTRIES))
    request = _request(port, "steps", _start(ENTRIES + 1), input_frame, *runs)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    start = time.perf_counter()
    writer.write(request)
    answer = await reader.readuntil(END)
    seconds = time.perf_counter() - start
    writer.close()
    output = _parse_frames(answer)[0].message()
    assert output.value == b"%d" % sum(range(ENTRIES))
    return seconds


def _start(entries: int) -> Frame:
    return make_frame(pb.StartMessage(id=bytes(16), debug_id="inv_1bench", known_entries=entries))


def _request(port: int, handler: str, *frames: Frame) -> bytes:
    body = b"".join(encode(frame) for frame in frames)
    head = (
        f"POST /invoke/Bench/{handler} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"content-type: {format_content_type(NEWEST)}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _parse_frames(answer: bytes) -> list[Frame]:
    """The frames in a chunked answer."""
    chunks, rest = b"", answer.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunks, rest = chunks + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return Decoder().feed(chunks)


def _compute_percentiles(waits: list[float]) -> tuple[float, float]:
    return median(waits), quantiles(waits, n=100)[98]
