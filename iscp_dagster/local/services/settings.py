"""Where the embedded stack lives and how its services are reached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from iscp_dagster.local.services.credentials import Secrets
from iscp_dagster.model.imports import ASSETS
from iscp_dagster.model.variables import (
    CLICKHOUSE_URL,
    CLICKHOUSE_URLS,
    DAGSTER_HOME,
    EVENT_BATCH_SIZE,
    HOME,
    INVOCATIONS_URL,
    LAKE,
    LOG_URL,
    SPARK_REMOTE,
)
from iscp_dagster.spark import remote

HOST = "127.0.0.1"
CLICKHOUSE = "clickhouse"
SPARK = "spark"
DAGSTER = "dagster"
GRAPHQL = "graphql"
INVOCATIONS = "invocations"
SERVICES = (CLICKHOUSE, SPARK, DAGSTER, GRAPHQL, INVOCATIONS)
CODE = "code"
RUNS = "runs"
DAEMON = "daemon"
PARTS = {
    CLICKHOUSE: (CLICKHOUSE,),
    SPARK: (SPARK,),
    DAGSTER: (CODE, RUNS, DAEMON, DAGSTER),
    GRAPHQL: (GRAPHQL,),
    INVOCATIONS: (INVOCATIONS,),
}
"""The supervisor's children that make up each service; `dagster` is also its webserver's name."""

ADDRESS_VARIABLES = (CLICKHOUSE_URL, CLICKHOUSE_URLS, SPARK_REMOTE)
SHOWN_PARAMETERS = ("database", "insert_quorum")
"""The query parameters of a URL that may be shown."""
_NO_PROXY = ("127.0.0.1", "localhost")
_EVENTS_TOGETHER = 200


def get_repository() -> Path:
    """The folder that holds workspace.yaml and dagster.yaml."""
    return Path(__file__).resolve().parents[3]


def get_module_folder() -> Path:
    """Where the stack's Python looks for modules first, as the command line does.

    That is the working directory if `ISCP_ASSETS` names what declares the tables.
    """
    return Path.cwd() if os.environ.get(ASSETS) else get_repository()


def is_clone() -> bool:
    """Whether the package runs from a clone of its repository."""
    return (get_repository() / "workspace.yaml").is_file()


def get_home(environ: Mapping[str, str]) -> Path:
    """`ISCP_HOME`, made absolute; else `.iscp` in the clone or, outside one, the current folder."""
    folder = environ.get(HOME)
    if folder:
        return Path(folder).expanduser().absolute()
    return (get_repository() if is_clone() else Path.cwd()) / ".iscp"


@dataclass(frozen=True, kw_only=True)
class StackSettings:
    """One embedded stack: its home folder, its ports, and what the user runs elsewhere.

    `clickhouse_url` and `spark_remote` are set when the user names services of their own; the
    stack then starts none in their place. `services` says which children to start.
    """

    home: Path
    clickhouse_port: int
    spark_port: int
    dagster_port: int
    graphql_port: int
    invocations_port: int
    clickhouse_url: str | None = None
    clickhouse_urls: str = ""
    """The servers of sharded indexes, `clickhouse_url` first."""
    spark_remote: str | None = None
    log_url: str | None = None
    services: tuple[str, ...] = SERVICES
    requested: frozenset[str] = frozenset()
    """The services whose port the user requested; others may get another at the next start."""
    secrets: Secrets = field(default_factory=Secrets)
    """The secrets that the stack's own services require."""

    @property
    def clickhouse_address_with_password(self) -> str:
        """The ClickHouse that runs write to, with its password."""
        own = f"http://{HOST}:{self.clickhouse_port}"
        return self.clickhouse_url or add_password(own, self.secrets.password)

    @property
    def spark_address_with_token(self) -> str:
        """The Spark Connect endpoint that runs use, with its token."""
        own = f"sc://{remote.LOCAL}:{self.spark_port}"
        return self.spark_remote or remote.add_token(own, self.secrets.spark_token)

    @property
    def dagster(self) -> str:
        return f"http://{HOST}:{self.dagster_port}"

    @property
    def graphql(self) -> str:
        return f"http://{HOST}:{self.graphql_port}/graphql"

    @property
    def invocations(self) -> str:
        return f"http://{HOST}:{self.invocations_port}"

    @property
    def log(self) -> str:
        """The SQLAlchemy address of the ISCP log."""
        return self.log_url or f"sqlite:///{self.home / 'iscp_log.sqlite'}"

    @property
    def dagster_home(self) -> Path:
        return self.home / "dagster"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def default_lake(self) -> Path:
        """The lake's root unless ISCP_LAKE names another."""
        return self.home / "lake"


def add_password(address: str, password: str) -> str:
    """ClickHouse's address with the password of its user `default`, if there is one."""
    return address.replace("://", f"://default:{password}@", 1) if password else address


def redact_address(address: str) -> str:
    """The address without secrets, fit to print and to store."""
    if address.startswith(remote.SCHEME):
        return remote.redact_address(address)
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme.startswith("sqlite"):
        return address
    parameters = [pair for pair in parse_qsl(parts.query) if pair[0] in SHOWN_PARAMETERS]
    return parts._replace(netloc=host, query=urlencode(parameters), fragment="").geturl()


def build_child_environment(
    settings: StackSettings, base: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment in which the stack's children, the demo and the tests run.

    `base` without variables that would mislead a child, plus the addresses of the stack's services.
    """
    environment = dict(base)
    environment.pop("SPARK_HOME", None)
    environment.pop("SPARK_CONNECT_MODE_ENABLED", None)
    environment |= {
        HOME: str(settings.home),
        CLICKHOUSE_URL: settings.clickhouse_address_with_password,
        SPARK_REMOTE: settings.spark_address_with_token,
        LOG_URL: settings.log,
        LAKE: base.get(LAKE, str(settings.default_lake)),
        DAGSTER_HOME: str(settings.dagster_home),
        EVENT_BATCH_SIZE: base.get(EVENT_BATCH_SIZE, str(_EVENTS_TOGETHER)),
        "PYTHONUNBUFFERED": "1",
        **({CLICKHOUSE_URLS: settings.clickhouse_urls} if settings.clickhouse_urls else {}),
        **({INVOCATIONS_URL: settings.invocations} if INVOCATIONS in settings.services else {}),
    }
    for name in ("no_proxy", "NO_PROXY"):
        environment[name] = ",".join(filter(None, (base.get(name), *_NO_PROXY)))
    return environment
