"""`python -m iscp_dagster.local.clickhouse`: the embedded ClickHouse server."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from pathlib import Path

from iscp_dagster.local.clickhouse.engine.confine import Reach, confine
from iscp_dagster.local.clickhouse.http.auth import DEFAULT_USER, Account
from iscp_dagster.model.errors import ConfigError, IscpError
from iscp_dagster.web.admission import (
    HOSTS_VARIABLE,
    Admission,
    allowed_hosts,
    names_in,
    origins_in,
)

ORIGINS_VARIABLE = "ISCP_CLICKHOUSE_ORIGINS"
PATHS_VARIABLE = "ISCP_CLICKHOUSE_PATHS"
REMOTE_VARIABLE = "ISCP_CLICKHOUSE_REMOTE_HOSTS"
_REMOTE = re.compile(r"[a-z0-9._-]+(:[0-9]{1,5})?")
_MAX_CONNECTIONS = 100
# Seconds for which a thread that reads a statement keeps Python's lock from the event loop.
_SWITCH_SECONDS = 0.0005
# uvicorn logs this for a response that failed while it streamed, which is cut off on purpose.
_BROKEN_OFF = "ASGI callable returned without completing response."


def main(argv: list[str] | None = None) -> int:
    """Run the server; 0 after a signal, 1 with one line on stderr when it cannot start."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.msg != _BROKEN_OFF)
    try:
        _serve(options)
    except IscpError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _serve(options: argparse.Namespace) -> None:
    reach = Reach(
        data=options.path.expanduser().resolve(),
        paths=_paths(options.allowed_path or os.environ.get(PATHS_VARIABLE, "").split(os.pathsep)),
        hosts=_hosts(" ".join(options.remote_host) or os.environ.get(REMOTE_VARIABLE, "")),
        any_port=options.config_file is not None,
    )
    account = _account(options.user, options.password_env)
    admission = Admission(
        hosts=names_in(" ".join(options.allowed_host)) or allowed_hosts(os.environ),
        origins=origins_in(
            " ".join(options.allowed_origin) or os.environ.get(ORIGINS_VARIABLE, "")
        ),
        setting=ORIGINS_VARIABLE,
    )
    sys.setswitchinterval(_SWITCH_SECONDS)
    config_file = options.config_file and options.config_file.expanduser().resolve()
    if not confine(reach, *([config_file] if config_file else [])):
        logging.getLogger(__name__).warning(
            "The kernel has no Landlock: what a query can access is limited only by the engine's "
            "rights and a check of the query's text; do not let strangers query this server"
        )
    # Importing the engine starts threads, which must be confined too.
    from iscp_dagster.local.clickhouse.http.server import ServerConfig, serve

    config = ServerConfig(
        reach=reach,
        config_file=config_file,
        host=options.host,
        port=options.port,
        account=account,
        max_connections=options.max_connections,
        admission=admission,
    )
    serve(config, _announce)


def _paths(named: list[str]) -> tuple[Path, ...]:
    return tuple(Path(path).expanduser().resolve() for path in named if path)


def _hosts(text: str) -> tuple[str, ...]:
    """The remote hosts in a setting. Raises ConfigError for anything but `name[:port]`."""
    found = tuple(sorted(names_in(text)))
    for host in found:
        if not _REMOTE.fullmatch(host):
            raise ConfigError(f"the remote host {host!r} is invalid; write name or name:port")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="iscp_dagster.local.clickhouse", description=__doc__)
    parser.add_argument("--path", type=Path, required=True, help="data folder")
    parser.add_argument("--config-file", type=Path, help="ClickHouse's own configuration, XML")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8123, help="0 takes a free port")
    parser.add_argument(
        "--user", default=None, help=f"needs --password-env; default: {DEFAULT_USER}"
    )
    parser.add_argument("--password-env", default=None, help="variable that holds the password")
    parser.add_argument(
        "--max-connections", type=int, default=_MAX_CONNECTIONS, help="most statements at once"
    )
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME[:PORT]",
        help=f"Host header to accept besides the address; default: {HOSTS_VARIABLE}",
    )
    parser.add_argument(
        "--allowed-origin",
        action="append",
        default=[],
        metavar="SCHEME://HOST[:PORT]",
        help=f"origin whose web pages may use the server; default: {ORIGINS_VARIABLE}",
    )
    parser.add_argument(
        "--allowed-path",
        action="append",
        default=[],
        metavar="FOLDER",
        help=f"folder that file() may use besides user_files; default: {PATHS_VARIABLE}",
    )
    parser.add_argument(
        "--remote-host",
        action="append",
        default=[],
        metavar="NAME[:PORT]",
        help=f"host that url() and s3() may connect to; default: {REMOTE_VARIABLE}",
    )
    return parser


def _account(user: str | None, variable: str | None) -> Account | None:
    if variable is None:
        if user is not None:
            raise ConfigError(f"--user {user} has no password; add --password-env VARIABLE")
        return None
    password = os.environ.get(variable)
    if not password:
        raise ConfigError(
            f"--password-env {variable}: the variable is empty; put the password in it"
        )
    return Account(user=user or DEFAULT_USER, password=password)


def _announce(host: str, port: int) -> None:
    sys.stdout.write(f"listening on {host}:{port}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    # A thread that the engine still holds must not keep the process alive.
    os._exit(code)
