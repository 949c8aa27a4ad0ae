"""The stack's own secrets: ClickHouse's password, Spark's token, and one that signs webhooks.

They are made at the first start. Each is a file of the home that only its owner may read. Servers
and their users get them through the environment; the only other file with a secret is the netrc,
which holds the password.
"""

from __future__ import annotations

import base64
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from iscp_dagster.model.errors import SetupError

PASSWORD_FILE = "clickhouse.password"  # noqa: S105
TOKEN_FILE = "spark.token"  # noqa: S105
WEBHOOK_FILE = "webhook.secret"
NETRC_FILE = "netrc"
_BYTES = 24
_OWNER_ONLY = 0o600
_OTHERS = 0o077


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """The secrets that the stack's own services require; empty when there are none."""

    password: str = field(default="", repr=False)
    """The password of ClickHouse's user `default`."""
    spark_token: str = field(default="", repr=False)
    webhook: str = field(default="", repr=False)
    """Signs what is delivered to receivers that know it, such as those on this machine."""


def ensure_secrets(home: Path) -> Secrets:
    """The secrets of a home. Makes those that are missing, and writes a netrc for curl.

    Raises SetupError for a file that other users may read.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    new_secrets = {
        PASSWORD_FILE: secrets.token_urlsafe(_BYTES),
        TOKEN_FILE: secrets.token_urlsafe(_BYTES),
        WEBHOOK_FILE: f"whsec_{base64.b64encode(secrets.token_bytes(_BYTES)).decode()}",
    }
    for name, secret in new_secrets.items():
        with suppress(FileExistsError):
            _write_file(home / name, secret, os.O_EXCL)
    stored = read(home)
    machines = [f"machine {host} login default" for host in ("127.0.0.1", "localhost")]
    lines = [f"{machine} password {stored.password}\n" for machine in machines]
    _write_file(home / NETRC_FILE, "".join(lines), os.O_TRUNC)
    return stored


def read(home: Path) -> Secrets:
    """The secrets of a home, empty if there are none. Raises SetupError as `ensure_secrets`."""
    return Secrets(
        password=_read_file(home / PASSWORD_FILE),
        spark_token=_read_file(home / TOKEN_FILE),
        webhook=_read_file(home / WEBHOOK_FILE),
    )


def _write_file(path: Path, text: str, flag: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flag, _OWNER_ONLY)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(descriptor, _OWNER_ONLY)
        file.write(text)


def _read_file(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            if os.fstat(file.fileno()).st_mode & _OTHERS:
                raise SetupError(
                    f"other users may read {path}; run `chmod 600` on it, or remove it and run "
                    "`iscp up`"
                )
            return file.read().strip()
    except FileNotFoundError:
        return ""
