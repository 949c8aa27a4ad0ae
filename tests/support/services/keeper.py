"""A ZooKeeper from PySpark's jars, and an embedded ClickHouse whose KeeperMap tables live in it.

Each runs under a ward, so that neither can outlive the tests.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from iscp_dagster.clickhouse.connect.endpoint import Endpoint
from iscp_dagster.local.spark import java
from iscp_dagster.local.spark.server import find_pyspark_folder
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.local.supervise import ward
from support.services.stack import QUICK, clean_environment, wait_for

START_SECONDS = 60.0
STOP_SECONDS = 10.0
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# Only the jars that ZooKeeper needs, of three hundred: it starts in half the time.
JARS = ("zookeeper-*", "netty-*", "slf4j-api-*", "metrics-core-*", "snappy-*", "commons-io-*")
PREFIX = "/iscp_tests"


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
class ZooKeeper:
    """One ZooKeeper node; it comes back on the same port with the same data."""

    folder: Path
    port: int = field(default_factory=find_free_port)
    _warded: Warded | None = None

    def start(self) -> None:
        """Start, and wait until it answers."""
        self.begin()
        self.await_ready()

    def begin(self) -> None:
        settings = {
            "dataDir": self.folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": 1000,
            "maxClientCnxns": 0,
            "4lw.commands.whitelist": "ruok",
        }
        config = self.folder / "zoo.cfg"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        jars = find_pyspark_folder() / "jars"
        found = [str(path) for name in JARS for path in sorted(jars.glob(f"{name}.jar"))]
        command = [str(java.find(os.environ).program), "-Xmx128m", "-XX:+UseSerialGC"]
        command += [*QUICK.split(), "-Dzookeeper.admin.enableServer=false"]
        command += ["-cp", ":".join(found), MAIN_CLASS, str(config)]
        self._warded = Warded(command, self.folder / "zookeeper.log")

    def await_ready(self) -> None:
        def ready() -> bool:
            assert self._warded.runs(), self._warded.told
            return self._ask(b"ruok") == b"imok"

        wait_for(ready, START_SECONDS, lambda: self._warded.told, every=0.02)

    def stop(self) -> None:
        self._warded.stop()
        assert self._ask(b"ruok") == b""

    def _ask(self, word: bytes) -> bytes:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
                connection.sendall(word)
                return connection.recv(64)
        except OSError:
            return b""


@dataclass(frozen=True)
class Keeper:
    """A running ZooKeeper and its ClickHouse."""

    zookeeper: ZooKeeper
    url: str

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint.parse(self.url)


@contextmanager
def running_keeper(folder: Path) -> Iterator[Keeper]:
    """Run a ZooKeeper and a ClickHouse that uses it, until the end of the block."""
    zookeeper = ZooKeeper(folder=made(folder / "zookeeper"))
    zookeeper.begin()
    port = find_free_port()
    server = clickhouse(made(folder / "clickhouse"), port, zookeeper.port)
    url = f"http://127.0.0.1:{port}"
    try:
        zookeeper.await_ready()
        wait_for(lambda: answers(f"{url}/ping"), START_SECONDS, lambda: server.told, every=0.02)
        yield Keeper(zookeeper=zookeeper, url=url)
    finally:
        server.stop()
        zookeeper.stop()


def clickhouse(folder: Path, port: int, keeper: int) -> Warded:
    config = folder / "keeper.xml"
    config.write_text(
        f"""<clickhouse>
    <keeper_map_path_prefix>{PREFIX}</keeper_map_path_prefix>
    <zookeeper>
        <node><host>127.0.0.1</host><port>{keeper}</port></node>
        <session_timeout_ms>10000</session_timeout_ms>
    </zookeeper>
</clickhouse>
"""
    )
    command = [sys.executable, "-m", "chdb_http"]
    command += ["--path", str(folder / "data"), "--port", str(port), "--config-file", str(config)]
    return Warded(command, folder / "clickhouse.log")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder
