"""From a confirmed change to the messages of many subscribers, and what idle ones cost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench.report import BenchReport
from iscp_dagster import SourceTable
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.kinds.changes import Changes
from iscp_dagster.clickhouse.tables.ddl import SETTINGS, IndexShape
from iscp_dagster.joblog.iterations import Iteration, WrittenStep
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.declared.images import IMAGE_FIELDS
from iscp_dagster.model.declared.schema import DeltaField, Primitive
from iscp_dagster.model.jobs import JobID, NewJob
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec

SOURCE = SourceTable("bench.trades", key="id", tenant="desk", indexes=[Changes(name="big")])
FIELDS = tuple(
    DeltaField(name=name, type=Primitive(type_), nullable=False)
    for name, type_ in (("desk", "string"), ("id", "long"), ("amount", "long"))
)
COLUMNS = (
    *("desk", "id", "amount", "_change", "_image", "_fields", "_ordinal"),
    *("_version", "_timestamp", "_deleted"),
)
NAME = JobID(db="bench", table="trades", job="big")
ROWS = 500_000
TALKING, PER_SECOND, SECONDS = 200, 20, 15
PER_COMMIT = 5
"""Changes of one commit: an iteration brings several."""
IDLE = 1_000
QUERY = "subscription { bench_big(snapshot: false) { operation data { id amount } cursor } }"


def measure(folder: Path, report: BenchReport) -> None:
    with _run_clickhouse(folder) as url, _run_server(folder, url) as (server, port):
        deck = _ChangeWriter(url, folder)
        asyncio.run(_measure_active(deck, server, port, report))
        asyncio.run(_measure_idle(deck, server, port, report))


@contextmanager
def _run_clickhouse(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "chdb_http", "--path", str(folder / "ch")]
    command += ["--host", "127.0.0.1", "--port", "0", "--max-connections", "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = process.stdout.readline().split()[-1]
        try:
            _fill(ClickHouseEndpoint.parse(f"http://{address}"))
            yield f"http://{address}"
        finally:
            process.terminate()


def _fill(endpoint: ClickHouseEndpoint) -> None:
    """Make the index with ROWS rows of one tenant at version 1."""
    index, client = SOURCE.indexes[0], endpoint.get_client()
    shape = IndexShape(source=SOURCE, index=index, fields=[*FIELDS, *IMAGE_FIELDS])
    for statement in (*shape.render_create_statements(), *shape.render_view_statements()):
        client.command(statement, settings=SETTINGS)
    into = f"INSERT INTO {shape.qualify_name(shape.rows)} ({', '.join(COLUMNS)}) "
    stamp = "1, toDateTime64(0, 6, 'UTC'), 0"
    client.command(f"{into} SELECT 'a', 0, 0, -1, 0, [], 0, {stamp}")
    client.command(f"{into} SELECT 'a', number, 1, 0, 1, [], 0, {stamp} FROM numbers({ROWS})")


@contextmanager
def _run_server(folder: Path, url: str) -> Iterator[tuple[int, int]]:
    """Serve in a process of its own; yields its id and its port."""
    _log(folder)
    command = [sys.executable, "-m", "bench.subscriptions", url, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.terminate()


def _log(folder: Path) -> SqlLog:
    log = SqlLog(f"sqlite:///{folder}/log.db")
    log.ensure()
    return log


class _ChangeWriter:
    """Writes changes and confirms them, as an iteration does."""

    def __init__(self, url: str, folder: Path) -> None:
        self.client = ClickHouseEndpoint.parse(url).get_client()
        self.log, self.version, self.next = _log(folder), 1, 0
        consumer = ConsumerInfo(type="changes", db=NAME.db, table=NAME.table, job=NAME.job)
        spec = JobSpec(detail=IterationDetail(consumer=consumer))
        self.log.register_many([NewJob(tenant="a", name=NAME, table_id="t", spec=spec)])
        self._reach()

    def commit_changes(self) -> tuple[list[int], float]:
        """Change rows in one commit; returns their keys, and when it was confirmed."""
        self.version += 1
        at, keys = datetime.now(timezone.utc), range(self.next, self.next + PER_COMMIT)
        self.next += PER_COMMIT
        rows = [
            ("a", key, amount, 2, image, ["amount"], ordinal, self.version, at, 0)
            for ordinal, key in enumerate(keys)
            for image, amount in ((0, 1), (1, self.version))
        ]
        self.client.insert("bench.trades_big__rows", rows, column_names=COLUMNS)
        self._reach()
        return list(keys), time.time()

    def _reach(self) -> None:
        (job,) = self.log.list_jobs(name=NAME)
        to = Moment(self.version, self.version)
        (claim,) = self.log.claim_jobs(Iteration.from_jobs([job], to), "run", {})
        self.log.complete([WrittenStep(claim=claim, to=to, counts={})])

    def count_queries(self) -> int:
        """How many queries ClickHouse has answered, this one too."""
        result = self.client.query("SELECT value FROM system.events WHERE event = 'Query'")
        return int(result.result_rows[0][0])


async def _measure_active(deck: _ChangeWriter, server: int, port: int, report: BenchReport) -> None:
    """Measure the time from each change to each subscriber's message."""
    sockets = [await _open_subscription(port) for _ in range(TALKING)]
    await asyncio.to_thread(deck.commit_changes)
    await asyncio.gather(*(_take(socket, PER_COMMIT) for socket in sockets))
    confirmed: dict[int, float] = {}
    received: list[tuple[int, float]] = []
    listening = [asyncio.create_task(_listen(socket, received)) for socket in sockets]
    before, cpu_seconds = await asyncio.to_thread(deck.count_queries), read_cpu_seconds(server)
    start = time.monotonic()
    for number in range(PER_SECOND * SECONDS // PER_COMMIT):
        due = start + number * PER_COMMIT / PER_SECOND
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        keys, at = await asyncio.to_thread(deck.commit_changes)
        confirmed |= dict.fromkeys(keys, at)
    seconds, queries = (
        time.monotonic() - start,
        await asyncio.to_thread(deck.count_queries) - before,
    )
    await asyncio.wait_for(asyncio.gather(*listening), 60)
    cpu_seconds = read_cpu_seconds(server) - cpu_seconds
    delays = sorted(at - confirmed[key] for key, at in received)
    cuts = quantiles(delays, n=100)
    rate = len(confirmed) / seconds
    report.add_fact(f"{TALKING} subscribers, {rate:.1f} changes/s: messages", f"{len(received):,}")
    report.add_fact(
        "  change -> message, p50, p99, worst",
        f"{cuts[49] * 1e3:.0f} ms, {cuts[98] * 1e3:.0f} ms, {delays[-1] * 1e3:.0f} ms",
    )
    report.add_ratio("p99 in half seconds", cuts[98] / 0.5, "at most 1")
    report.add_fact(
        "  the server's processor time, each message", f"{cpu_seconds / len(received) * 1e6:.0f} us"
    )
    report.add_fact("  queries of ClickHouse a change", f"{queries / len(confirmed):.1f}")
    await asyncio.gather(*(socket.close() for socket in sockets))


async def _take(socket: Any, messages: int) -> None:
    for _ in range(messages):
        await socket.recv()


async def _listen(socket: Any, received: list[tuple[int, float]]) -> None:
    for _ in range(PER_SECOND * SECONDS):
        text = await socket.recv()
        at = time.time()
        received.append((int(json.loads(text)["payload"]["data"]["bench_big"]["data"]["id"]), at))


async def _open_subscription(port: int) -> Any:
    from websockets.asyncio.client import connect

    url = f"ws://127.0.0.1:{port}/graphql"
    socket = await connect(url, subprotocols=["graphql-transport-ws"], compression=None)
    await socket.send(json.dumps({"type": "connection_init"}))
    await socket.recv()
    message = {"type": "subscribe", "id": "1", "payload": {"query": QUERY}}
    await socket.send(json.dumps(message))
    return socket


async def _measure_idle(deck: _ChangeWriter, server: int, port: int, report: BenchReport) -> None:
    before = _read_memory(server)
    sockets = [await _open_subscription(port) for _ in range(IDLE)]
    await asyncio.to_thread(deck.commit_changes)
    await asyncio.gather(*(socket.recv() for socket in sockets))
    kilobytes = (_read_memory(server) - before) / IDLE
    report.add_fact(f"{IDLE:,} idle subscribers: memory of the server, each", f"{kilobytes:.0f} kB")
    queries, cpu_seconds = await asyncio.to_thread(deck.count_queries), read_cpu_seconds(server)
    await asyncio.sleep(10)
    cpu_seconds = read_cpu_seconds(server) - cpu_seconds
    queries = await asyncio.to_thread(deck.count_queries) - queries - 1
    report.add_fact(
        "  in 10 s: queries of ClickHouse, processor time", f"{queries}, {cpu_seconds:.2f} s"
    )
    await asyncio.gather(*(socket.close() for socket in sockets))


def read_cpu_seconds(process: int) -> float:
    """Seconds that the process has computed."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_memory(process: int) -> int:
    """Kilobytes that the process holds."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def _serve(url: str, folder: str) -> None:
    from socket import create_server

    import uvicorn
    from starlette.routing import WebSocketRoute

    from iscp_dagster.serve.access import OpenAccess
    from iscp_dagster.serve.catalog import read_catalog
    from iscp_dagster.serve.graph.schema_cache import SchemaCache
    from iscp_dagster.serve.live.service import SubscriptionService
    from iscp_dagster.serve.live.transport.socket import SocketServer
    from iscp_dagster.serve.web.app import GRAPHQL_PATH, GraphQLServerSettings, create_app

    endpoint = ClickHouseEndpoint.parse(url)
    live = SubscriptionService(log=SqlLog(f"sqlite:///{folder}/log.db"))
    schemas = SchemaCache(
        load=lambda: read_catalog([SOURCE], [endpoint], lambda *_: ()), subscribe=live.subscribe
    )
    sockets = SocketServer(schemas=schemas, access=OpenAccess())
    routes = [WebSocketRoute(GRAPHQL_PATH, sockets.serve_websocket)]
    app = create_app(
        GraphQLServerSettings(
            schemas=schemas, routes=routes, background=[sockets.watch_connections]
        )
    )
    with create_server(("127.0.0.1", 0), backlog=1024) as listener:
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(app, log_level="warning", ws_per_message_deflate=False)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    _serve(*sys.argv[1:])
