"""Where ClickHouse is, and clients for it."""

from __future__ import annotations

import http.client
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from iscp_dagster.clickhouse.connect.complete_results import COMPLETE_RESULT_SETTINGS
from iscp_dagster.clickhouse.connect.failures import map_error
from iscp_dagster.model.declared.names import check_database
from iscp_dagster.model.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

SCHEMES = ("http", "https")


@dataclass(frozen=True, kw_only=True)
class ClickHouseEndpoint:
    """A ClickHouse HTTP interface. Its repr omits the password."""

    host: str
    port: int
    secure: bool = False
    user: str = "default"
    password: str = field(default="", repr=False)
    connect_timeout: float = 10
    """Seconds."""
    query_timeout: float = 600
    """Seconds."""
    insert_quorum: str = ""
    """How many replicas must confirm an insert: a number, or `auto` for a majority."""
    database: str = ""
    """The database of index tables here; empty: the one in their source's name."""

    @classmethod
    def parse(cls, url: str, **timeouts: float) -> ClickHouseEndpoint:
        """Read `http[s]://[user:password@]host[:port][/?database=NAME&insert_quorum=N]`.

        Raises ConfigError on anything else.
        """
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES or not parts.hostname:
            redacted = f"{parts.scheme}://{parts.hostname or ''}"
            raise ConfigError(
                f"CLICKHOUSE_URL {redacted!r} is not http[s]://[user:password@]host[:port]."
            )
        try:
            port = parts.port
        except ValueError:
            # The text after a colon may be part of an unquoted password: do not show it.
            raise ConfigError(
                f"The port in the CLICKHOUSE_URL of {parts.hostname!r} is not a number; write "
                "http[s]://[user:password@]host[:port], and percent-encode the password."
            ) from None
        if parts.path not in {"", "/"} or parts.fragment:
            raise ConfigError(
                f"The CLICKHOUSE_URL of {parts.hostname!r} has a path, {parts.path!r}, which is "
                "not allowed: an index lies in its source table's database, or in the one in "
                "?database=NAME. Write http[s]://[user:password@]host[:port]; a proxy that "
                "serves ClickHouse below a path needs a host or port of its own."
            )
        settings = _parse_settings(parts.query)
        secure = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=port or (8443 if secure else 8123),
            secure=secure,
            user=unquote(parts.username or "default"),
            password=unquote(parts.password or ""),
            insert_quorum=settings.get("insert_quorum", ""),
            database=settings.get("database", ""),
            **timeouts,
        )

    @property
    def server(self) -> str:
        """The server's URL, without a database."""
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """The address to show in messages."""
        return f"{self.server}/?database={self.database}" if self.database else self.server

    def resolve_database(self, database: str) -> str:
        """Return the database that holds the indexes of sources in `database`."""
        return self.database or database

    @property
    def insert_settings(self) -> dict[str, str]:
        """Settings that make an insert durable on a cluster (ClickHouse docs, "insert_quorum")."""
        if not self.insert_quorum:
            return {}
        # Sequentially consistent reads need inserts that are not parallel.
        return {"insert_quorum": self.insert_quorum, "insert_quorum_parallel": "0"}

    @property
    def read_settings(self) -> dict[str, int]:
        """Settings that make a read see every such insert, whichever replica answers."""
        return {"select_sequential_consistency": 1} if self.insert_quorum else {}

    def get_client(self) -> Client:
        """Return the process's client for this endpoint, created on first use; thread-safe."""
        return get_shared_client(self)

    def ping(self) -> None:
        """Raise UnavailableError if no server answers within `connect_timeout`.

        On a server that hangs, a query would wait for the longer `query_timeout`.
        """
        connection_class = (
            http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        )
        connection = connection_class(self.host, self.port, timeout=self.connect_timeout)
        try:
            connection.request("GET", "/ping")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(
                f"ClickHouse at {self.address} did not answer (ping): {error}. "
                "Start it (`iscp up`), or set CLICKHOUSE_URL."
            ) from error
        finally:
            connection.close()

    def connect(self, **settings: Any) -> Client:
        """Return a new client with `settings` that never gets truncated results.

        Raises UnavailableError when nothing answers.
        """
        from clickhouse_connect import get_client

        with self.translate_errors("connect"):
            return get_client(
                host=self.host,
                port=self.port,
                username=self.user,
                password=self.password,
                interface="https" if self.secure else "http",
                compress=False,
                autogenerate_session_id=False,
                connect_timeout=self.connect_timeout,
                send_receive_timeout=self.query_timeout,
                settings={**COMPLETE_RESULT_SETTINGS, **settings},
            )

    @contextmanager
    def translate_errors(self, action: str) -> Iterator[None]:
        """Turn the client's errors into this package's; the message says what was being done."""
        try:
            yield
        except Exception as error:
            mapped = map_error(error, self.address, action)
            if mapped is None:
                raise
            raise mapped from error


def split_urls(text: str) -> list[str]:
    """Split CLICKHOUSE_URLS at whitespace and at commas before the next URL."""
    return [url for url in re.split(r"[\s,]+(?=https?://)|\s+", text.strip()) if url]


def parse_endpoints(url: str, urls: str = "", **timeouts: float) -> tuple[ClickHouseEndpoint, ...]:
    """Return the servers in CLICKHOUSE_URLS, in order, else the one in CLICKHOUSE_URL.

    Raises ConfigError if two of them are the same, or if CLICKHOUSE_URL is set but not the first.
    """
    endpoints = tuple(
        ClickHouseEndpoint.parse(server_url, **timeouts) for server_url in split_urls(urls) or [url]
    )
    _check_duplicates(endpoints)
    first = ClickHouseEndpoint.parse(url, **timeouts) if url else endpoints[0]
    if first.address != endpoints[0].address:
        raise ConfigError(
            f"CLICKHOUSE_URL is {first.address}, but the first of CLICKHOUSE_URLS is "
            f"{endpoints[0].address}; set only one of them, or make them agree."
        )
    return endpoints


def _check_duplicates(shards: Sequence[ClickHouseEndpoint]) -> None:
    servers = Counter(shard.server for shard in shards)
    counts = Counter((shard.server, shard.database) for shard in shards)
    for shard in shards:
        if servers[shard.server] > 1 and not shard.database:
            raise ConfigError(
                f"CLICKHOUSE_URLS names {shard.server} {servers[shard.server]} times, but not "
                "always with a database: shards on one server each need a database of their own. "
                f"Write {shard.server}/?database=NAME for each, or name other servers."
            )
        if counts[shard.server, shard.database] > 1:
            raise ConfigError(
                f"CLICKHOUSE_URLS names {shard.address} twice, but each shard needs a server or a "
                "database of its own. Change one of them."
            )


def _parse_settings(query: str) -> dict[str, str]:
    """Parse the settings in a URL's query. Raises ConfigError for invalid ones."""
    pairs = parse_qsl(query, keep_blank_values=True)
    settings = dict(pairs)
    quorum = settings.get("insert_quorum", "")
    unknown = sorted({*settings} - {"insert_quorum", "database"})
    if unknown or len(settings) < len(pairs) or not (quorum in {"", "auto"} or quorum.isdigit()):
        raise ConfigError(
            f"CLICKHOUSE_URL has invalid settings ({', '.join(unknown or settings)}); it takes "
            "database=NAME and insert_quorum=N (or auto), once each."
        )
    if "database" in settings:
        check_database(settings["database"])
    return settings


@lru_cache(maxsize=64)
def get_shared_client(endpoint: ClickHouseEndpoint) -> Client:
    """Return the one client per endpoint and process; Spark's Python workers are reused."""
    return endpoint.connect()
