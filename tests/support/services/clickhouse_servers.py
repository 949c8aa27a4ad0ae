"""Embedded ClickHouse servers that a test stops and starts again, each on its own port."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from iscp_dagster.clickhouse.connect.endpoint import Endpoint, get_shared_client
from iscp_dagster.local.stack.ports import find_free_port
from support.services import insert_gate
from support.services.keeper import START_SECONDS, Warded, answers, made
from support.services.stack import wait_for


@dataclass
class Server:
    """One ClickHouse; it comes back on the same port with the same data."""

    folder: Path
    config: str = ""
    """XML within <clickhouse>."""
    allowed_paths: tuple[Path, ...] = ()
    """Paths that `file()` reaches besides user_files."""
    port: int = field(default_factory=find_free_port)
    _warded: Warded | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint.parse(self.url)

    def begin(self) -> None:
        command = [sys.executable, "-m", "chdb_http"]
        command += ["--path", str(self.folder / "data"), "--port", str(self.port)]
        command += ["--remote-host", insert_gate.ADDRESS]
        if self.config:
            config = self.folder / "config.xml"
            config.write_text(f"<clickhouse>{self.config}</clickhouse>")
            command += ["--config-file", str(config)]
        for path in self.allowed_paths:
            command += ["--allowed-path", str(path)]
        self._warded = Warded(command, self.folder / "clickhouse.log")

    def await_ready(self) -> None:
        wait_for(lambda: answers(f"{self.url}/ping"), START_SECONDS, self._told, every=0.02)

    def start(self) -> None:
        self.begin()
        self.await_ready()

    def stop(self) -> None:
        self._warded.stop()
        get_shared_client.cache_clear()
        assert not answers(f"{self.url}/ping")

    def _told(self) -> str:
        return self._warded.told


@contextmanager
def running_servers(folder: Path, count: int) -> Iterator[list[Server]]:
    """Run as many servers as asked, until the end of the block."""
    servers = [Server(made(folder / f"server_{number}")) for number in range(count)]
    for server in servers:
        server.begin()
    try:
        for server in servers:
            server.await_ready()
        yield servers
    finally:
        for server in servers:
            server.stop()
