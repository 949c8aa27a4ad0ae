"""A ZooKeeper from PySpark's jars, and an embedded ClickHouse whose KeeperMap tables live in it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.local.spark import java
from iscp_dagster.local.spark.server import find_pyspark_folder
from iscp_dagster.local.stack.ports import find_free_port
from support.services.clickhouse_servers import START_SECONDS, Server, Warded, made
from support.services.stack import QUICK, wait_for

MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# Only the jars that ZooKeeper needs, of three hundred: it starts in half the time.
JARS = ("zookeeper-*", "netty-*", "slf4j-api-*", "metrics-core-*", "snappy-*", "commons-io-*")
PREFIX = "/iscp_tests"


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
        paths = [str(path) for name in JARS for path in sorted(jars.glob(f"{name}.jar"))]
        command = [str(java.find(os.environ).program), "-Xmx128m", "-XX:+UseSerialGC"]
        command += [*QUICK.split(), "-Dzookeeper.admin.enableServer=false"]
        command += ["-cp", ":".join(paths), MAIN_CLASS, str(config)]
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
    def endpoint(self) -> ClickHouseEndpoint:
        return ClickHouseEndpoint.parse(self.url)


@contextmanager
def running_keeper(folder: Path) -> Iterator[Keeper]:
    """Run a ZooKeeper and a ClickHouse that uses it, until the end of the block."""
    zookeeper = ZooKeeper(folder=made(folder / "zookeeper"))
    zookeeper.begin()
    config = (
        f"<keeper_map_path_prefix>{PREFIX}</keeper_map_path_prefix><zookeeper>"
        f"<node><host>127.0.0.1</host><port>{zookeeper.port}</port></node>"
        "<session_timeout_ms>10000</session_timeout_ms></zookeeper>"
    )
    server = Server(made(folder / "clickhouse"), config)
    server.begin()
    try:
        zookeeper.await_ready()
        server.await_ready()
        yield Keeper(zookeeper=zookeeper, url=server.url)
    finally:
        server.stop()
        zookeeper.stop()
