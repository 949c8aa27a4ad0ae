"""`iscp serve` in a process that tests kill, over a changes index and an ISCP log in SQLite."""

from __future__ import annotations

import random
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.local.stack.ports import find_free_port
from iscp_dagster.model.declared.images import ChangeKind
from support.invocations.asgi_process import Served
from support.live.changes_index import ImageTable, name_of, reach, register
from support.services.stack import clean_environment

DATABASE, FIELD = "clients", "clients_big"
TENANTS = ("acme", "globex")
KEYS = range(1, 31)
BEGINNING = 10
"""The version at which the history begins."""
AT_ONCE = 12
DECLARED = f"""
from iscp_dagster import SourceTable
from iscp_dagster.clickhouse.kinds.changes import Changes

trades = SourceTable("{DATABASE}.trades", key="id", tenant="tenant", indexes=[Changes(name="big")])
"""
Change = tuple[str, int, int]
"""Operation, id and value, as a subscriber gets them."""


@dataclass
class ServedTrades:
    """The server, the table's rows now, and the changes that subscribers must get by tenant."""

    server: Served
    images: ImageTable
    log: SqlLog
    chance: random.Random = field(default_factory=lambda: random.Random(39))
    version: int = BEGINNING
    rows: dict[str, dict[int, int]] = field(
        default_factory=lambda: {tenant: {} for tenant in TENANTS}
    )
    changes: dict[str, list[Change]] = field(default_factory=lambda: defaultdict(list))
    ends: int = 0
    """How many of the server's processes have ended."""
    _value: int = 0

    @property
    def http(self) -> str:
        return f"{self.server.url}/graphql"

    @property
    def websocket(self) -> str:
        return self.http.replace("http", "ws", 1)

    def begin(self) -> None:
        """Give each tenant half of the keys, as a snapshot."""
        register(self.log, *TENANTS, name=name_of(DATABASE))
        for tenant in TENANTS:
            for key in KEYS[::2]:
                self.rows[tenant][key] = self._next()
                self.changes[tenant].append(("INSERT", key, self.rows[tenant][key]))
            self.images.begin(tenant, BEGINNING, sorted(self.rows[tenant].items()))
        reach(self.log, self.version, *TENANTS, name=name_of(DATABASE))

    def commit(self) -> None:
        """Change some rows of one tenant, and confirm it."""
        self.version += 1
        tenant = self.chance.choice(TENANTS)
        keys = sorted(self.chance.sample(KEYS, AT_ONCE))
        rows = [(self.version, at, key, *self._change(tenant, key)) for at, key in enumerate(keys)]
        self.images.write(tenant, rows)
        reach(self.log, self.version, tenant, name=name_of(DATABASE))

    def _change(self, tenant: str, key: int) -> tuple[ChangeKind, int | None, int | None]:
        rows = self.rows[tenant]
        before, after = rows.pop(key, None), self._next()
        if before is not None and self.chance.random() < 0.25:
            self.changes[tenant].append(("DELETE", key, before))
            return ChangeKind.DELETE, before, None
        rows[key] = after
        operation = ChangeKind.INSERT if before is None else ChangeKind.UPDATE
        self.changes[tenant].append((operation.name, key, after))
        return operation, before, after

    def _next(self) -> int:
        self._value += 1
        return self._value

    @property
    def total(self) -> int:
        """How many messages a subscriber gets that asked before the first commit."""
        return sum(map(len, self.changes.values()))

    def restart(self) -> None:
        """Kill the server's process, or every other time ask it to end, and start it again."""
        assert self.server.process is not None
        self.server.process.send_signal(signal.SIGTERM if self.ends % 2 else signal.SIGKILL)
        self.server.process.wait(30)
        self.server.start()
        self.ends += 1


def told_by(messages: Iterable[Mapping[str, Any]]) -> dict[str, list[Change]]:
    """Return the changes of the messages by tenant, in their order."""
    changes: dict[str, list[Change]] = defaultdict(list)
    for message in messages:
        data = message["data"]
        changes[data["tenant"]].append((message["operation"], data["id"], data["value"]))
    return changes


@contextmanager
def serving_trades(clickhouse_url: str, folder: Path) -> Iterator[ServedTrades]:
    """Serve a new history of the trades until the end of the block."""
    images = ImageTable(ClickHouseEndpoint.parse(clickhouse_url), DATABASE)
    (folder / "traded_tables.py").write_text(DECLARED)
    schema = pa.schema([("tenant", pa.string()), ("id", pa.int32()), ("value", pa.int32())])
    lake = folder / DATABASE / "trades"
    write_deltalake(lake, schema.empty_table(), partition_by=["tenant"])
    variables = {
        "CLICKHOUSE_URL": clickhouse_url,
        "ISCP_ASSETS": "traded_tables",
        "ISCP_LAKE": str(folder),
        "ISCP_LOG_URL": f"sqlite:///{folder}/log.db",
    }
    port = find_free_port()
    command = (sys.executable, "-m", "iscp_dagster.cli.main", "serve", "--port", str(port))
    environment = clean_environment(folder / "home") | variables
    server = Served(command, port, folder / "serve.log", folder=folder, environment=environment)
    log = SqlLog(variables["ISCP_LOG_URL"])
    log.ensure()
    trades = ServedTrades(server, images, log)
    try:
        trades.begin()
        server.start()
        yield trades
    finally:
        if server.process is not None:
            server.kill()
        log.engine.dispose()
        images.drop()
