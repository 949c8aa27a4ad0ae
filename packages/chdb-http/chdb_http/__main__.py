"""`python -m chdb_http`: chDB, ClickHouse's own engine, behind ClickHouse's HTTP interface."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from pathlib import Path

from asgi_guards.admission import Admission, parse_names, parse_origins
from chdb_http.engine.confine import Reach, confine_process
from chdb_http.errors import StartError
from chdb_http.http.auth import DEFAULT_USER, Account

_REMOTE = re.compile(r"[a-z0-9._-]+(:[0-9]{1,5})?")
_MAX_CONNECTIONS = 100
# Seconds for which a thread that reads a statement keeps Python's lock from the event loop.
_SWITCH_SECONDS = 0.0005
# uvicorn logs this for a response that failed while it streamed, which is cut off on purpose.
_BROKEN_OFF = "ASGI callable returned without completing response."


def main(argv: list[str] | None = None) -> int:
    """Run the server; 0 after a signal, 1 with one line on stderr when it cannot start."""
    options = _build_parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.msg != _BROKEN_OFF)
    try:
        _serve(options)
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _serve(options: argparse.Namespace) -> None:
    reach = Reach(
        data=options.path.expanduser().resolve(),
        paths=tuple(path.expanduser().resolve() for path in options.allowed_path),
        hosts=_parse_hosts(options.remote_host),
        any_port=options.config_file is not None,
    )
    account = _build_account(options.user, options.password_env)
    admission = _build_admission(options)
    sys.setswitchinterval(_SWITCH_SECONDS)
    config_file = options.config_file and options.config_file.expanduser().resolve()
    files = [config_file] if config_file else []
    if not confine_process(reach, *files, shown_variables=options.shown_variable):
        logging.getLogger(__name__).warning(
            "The kernel has no Landlock: what a query can access is limited only by the engine's "
            "rights and a check of the query's text; do not let strangers query this server"
        )
    # Importing the engine starts threads, which must be confined too.
    from chdb_http.http.server import ServerConfig, serve

    config = ServerConfig(
        reach=reach,
        config_file=config_file,
        host=options.host,
        port=options.port,
        account=account,
        max_connections=options.max_connections,
        admission=admission,
    )
    serve(config, _print_address)


def _parse_hosts(names: list[str]) -> tuple[str, ...]:
    """The remote hosts. Raises StartError for anything but `name[:port]`."""
    hosts = tuple(sorted(parse_names(" ".join(names))))
    for host in hosts:
        if not _REMOTE.fullmatch(host):
            raise StartError(f"the remote host {host!r} is invalid; write name or name:port")
    return hosts


def _build_admission(options: argparse.Namespace) -> Admission:
    """Which requests are admitted. Raises StartError for an invalid origin."""
    try:
        origins = parse_origins(" ".join(options.allowed_origin))
    except ValueError as error:
        raise StartError(str(error)) from error
    return Admission(
        hosts=parse_names(" ".join(options.allowed_host)),
        origins=origins,
        hosts_setting="--allowed-host",
        origins_setting="--allowed-origin",
    )


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chdb_http", description=__doc__)
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
    for option, metavar, description in (
        ("--allowed-host", "NAME[:PORT]", "Host header to accept besides the address"),
        ("--allowed-origin", "SCHEME://HOST[:PORT]", "origin whose web pages may use the server"),
        ("--remote-host", "NAME[:PORT]", "host that url() and s3() may connect to"),
    ):
        parser.add_argument(
            option,
            action="append",
            default=[],
            metavar=metavar,
            help=f"{description}; several: repeat it, or use commas",
        )
    parser.add_argument(
        "--shown-variable",
        action="append",
        default=[],
        metavar="NAME",
        help="variable that /proc/<pid>/environ still shows; repeatable",
    )
    parser.add_argument(
        "--allowed-path",
        action="append",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="folder that file() may use besides user_files; repeatable",
    )
    return parser


def _build_account(user: str | None, variable: str | None) -> Account | None:
    if variable is None:
        if user is not None:
            raise StartError(f"--user {user} has no password; add --password-env VARIABLE")
        return None
    password = os.environ.get(variable)
    if not password:
        raise StartError(
            f"--password-env {variable}: the variable is empty; put the password in it"
        )
    return Account(user=user or DEFAULT_USER, password=password)


def _print_address(host: str, port: int) -> None:
    sys.stdout.write(f"listening on {host}:{port}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    # A thread that the engine still holds must not keep the process alive.
    os._exit(code)
