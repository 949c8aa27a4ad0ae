"""Embedded ClickHouse servers that a test stops and starts again, each on its own port.

Like other servers of tests they run under a ward, so that they cannot outlive the tests.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint, get_shared_client
from iscp_dagster.clickhouse.connect.quoting import quote_identifier
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.local.supervise import ward
from support.services import insert_gate
from support.services.stack import clean_environment, wait_for

START_SECONDS = 60.0
STOP_SECONDS = 10.0


class Warded:
    """A command under a ward; its output goes to a log file."""

    def __init__(self, command: Sequence[str], log: Path, **environment: str) -> None:
        self.log = log
        with log.open("ab") as output:
            self._ward = subprocess.Popen(
                [sys.executable, "-I", "-S", ward.__file__, str(STOP_SECONDS), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=clean_environment(log.parent) | environment,
                cwd=log.parent,
                start_new_session=True,
            )

    @property
    def told(self) -> str:
        """The text of its log."""
        return self.log.read_text(errors="replace")

    def runs(self) -> bool:
        return self._ward.poll() is None

    def stop(self) -> None:
        self._ward.stdin.close()
        # A forked child of the tests may also hold the pipe open.
        self._ward.terminate()
        self._ward.wait(3 * STOP_SECONDS)
        self._ward.stdout.close()


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
    def endpoint(self) -> ClickHouseEndpoint:
        return ClickHouseEndpoint.parse(self.url)

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
        ping = f"{self.url}/ping"
        wait_for(lambda: answers(ping), START_SECONDS, lambda: self._warded.told, every=0.02)

    def start(self) -> None:
        self.begin()
        self.await_ready()

    def stop(self) -> None:
        self._warded.stop()
        get_shared_client.cache_clear()
        assert not answers(f"{self.url}/ping")


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


@contextmanager
def drop_new_databases(endpoint: ClickHouseEndpoint) -> Iterator[None]:
    """Drop, at the end of the block, the databases that were made in it."""
    kept = _list_databases(endpoint)
    yield
    for database in _list_databases(endpoint) - kept:
        endpoint.get_client().command(f"DROP DATABASE {quote_identifier(database)}")


def _list_databases(endpoint: ClickHouseEndpoint) -> set[str]:
    rows = endpoint.get_client().query("SELECT name FROM system.databases").result_rows
    return {name for (name,) in rows}


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder
