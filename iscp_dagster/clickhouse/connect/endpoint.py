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

from iscp_dagster.clickhouse.connect.failures import mapped
from iscp_dagster.clickhouse.connect.whole import WHOLE
from iscp_dagster.model.declared.names import checked_database
from iscp_dagster.model.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

SCHEMES = ("http", "https")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A ClickHouse HTTP interface. The password is in no representation of it."""

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
    """How many replicas must have an insert before it is done: a number, or `auto` for most."""
    database: str = ""
    """Where index tables lie here, instead of in the database that their source is named by."""

    @classmethod
    def parse(cls, url: str, **timeouts: float) -> Endpoint:
        """Read `http[s]://[user:password@]host[:port][/?database=NAME&insert_quorum=N]`.

        Raises ConfigError on anything else.
        """
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES or not parts.hostname:
            shown = f"{parts.scheme}://{parts.hostname or ''}"
            raise ConfigError(
                f"CLICKHOUSE_URL {shown!r} is not http[s]://[user:password@]host[:port]."
            )
        try:
            port = parts.port
        except ValueError:
            # The text after a colon may be of a password that should have been quoted.
            raise ConfigError(
                f"The port in the CLICKHOUSE_URL of {parts.hostname!r} is no number; write "
                "http[s]://[user:password@]host[:port], a password percent-encoded."
            ) from None
        if parts.path not in {"", "/"} or parts.fragment:
            raise ConfigError(
                f"The CLICKHOUSE_URL of {parts.hostname!r} has a path, {parts.path!r}, which is "
                "not allowed: an index lies in the database in its source table's name, or in "
                "that of ?database=NAME. Write http[s]://[user:password@]host[:port]; a proxy that "
                "serves ClickHouse below a path needs a host or port of its own."
            )
        asked = _asked(parts.query)
        secure = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=port or (8443 if secure else 8123),
            secure=secure,
            user=unquote(parts.username or "default"),
            password=unquote(parts.password or ""),
            insert_quorum=asked.get("insert_quorum", ""),
            database=asked.get("database", ""),
            **timeouts,
        )

    @property
    def server(self) -> str:
        """Which server it is, for whichever of its databases."""
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """What a message may show."""
        return f"{self.server}/?database={self.database}" if self.database else self.server

    def holds(self, database: str) -> str:
        """The database in which the indexes of a source's `database` lie here."""
        return self.database or database

    @property
    def insert_settings(self) -> dict[str, str]:
        """What makes an insert durable on a cluster (ClickHouse docs, "insert_quorum")."""
        if not self.insert_quorum:
            return {}
        # Reads are in order only after inserts that were.
        return {"insert_quorum": self.insert_quorum, "insert_quorum_parallel": "0"}

    @property
    def read_settings(self) -> dict[str, int]:
        """What makes a read see every such insert, whichever replica answers."""
        return {"select_sequential_consistency": 1} if self.insert_quorum else {}

    def client(self) -> Client:
        """The process's client for this endpoint, made at first use; safe in several threads."""
        return shared_client(self)

    def ping(self) -> None:
        """Raises UnavailableError where no server answers within the time to connect.

        A query would wait for its own, longer time on a server that hangs.
        """
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=self.connect_timeout)
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
        """A new client with `settings`, whose answers are whole.

        Raises UnavailableError when nothing answers.
        """
        from clickhouse_connect import get_client

        with self.errors("connect"):
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
                settings={**WHOLE, **settings},
            )

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turn the client's errors into this package's, named after what was being done."""
        try:
            yield
        except Exception as error:
            known = mapped(error, self.address, doing)
            if known is None:
                raise
            raise known from error


def urls_of(text: str) -> list[str]:
    """The URLs of CLICKHOUSE_URLS, which spaces, or commas before the next one, part."""
    return [url for url in re.split(r"[\s,]+(?=https?://)|\s+", text.strip()) if url]


def endpoints(url: str, urls: str = "", **timeouts: float) -> tuple[Endpoint, ...]:
    """The servers that CLICKHOUSE_URLS names, in order, else the one that CLICKHOUSE_URL does.

    Raises ConfigError for two that are one, and where CLICKHOUSE_URL is set and not the first.
    """
    found = tuple(Endpoint.parse(each, **timeouts) for each in urls_of(urls) or [url])
    _check_apart(found)
    first = Endpoint.parse(url, **timeouts) if url else found[0]
    if first.address != found[0].address:
        raise ConfigError(
            f"CLICKHOUSE_URL is {first.address}, and the first of CLICKHOUSE_URLS is "
            f"{found[0].address}; set one of them alone, or make them agree."
        )
    return found


def _check_apart(shards: Sequence[Endpoint]) -> None:
    servers = Counter(each.server for each in shards)
    places = Counter((each.server, each.database) for each in shards)
    for each in shards:
        if servers[each.server] > 1 and not each.database:
            raise ConfigError(
                f"CLICKHOUSE_URLS names {each.server} {servers[each.server]} times, and not always "
                "with a database: shards of one server are kept apart by a database each. Write "
                f"{each.server}/?database=NAME for each, or name other servers."
            )
        if places[each.server, each.database] > 1:
            raise ConfigError(
                f"CLICKHOUSE_URLS names {each.address} twice, and a shard is a server, or a "
                "database, of its own. Give each another one."
            )


def _asked(query: str) -> dict[str, str]:
    """What a URL's query asks for. Raises ConfigError for what is not taken."""
    pairs = parse_qsl(query, keep_blank_values=True)
    asked = dict(pairs)
    quorum = asked.get("insert_quorum", "")
    strange = sorted({*asked} - {"insert_quorum", "database"})
    if strange or len(asked) < len(pairs) or not (quorum in {"", "auto"} or quorum.isdigit()):
        raise ConfigError(
            f"CLICKHOUSE_URL has invalid settings ({', '.join(strange or asked)}); it may end in "
            "database=NAME and insert_quorum=N, or =auto, once each."
        )
    if "database" in asked:
        checked_database(asked["database"])
    return asked


@lru_cache(maxsize=64)
def shared_client(endpoint: Endpoint) -> Client:
    """One client an endpoint and process: Spark's Python workers are reused."""
    return endpoint.connect()
