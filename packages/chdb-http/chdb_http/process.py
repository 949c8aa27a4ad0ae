"""A server as a child process, for tests and programs."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from chdb_http.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chdb_http.http.auth import Account

PASSWORD_VARIABLE = "CHDB_HTTP_PASSWORD"  # noqa: S105 - the variable's name
_READY = "listening on "
_STOP_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class ServerProcess:
    """A started server; call `stop` before the parent ends, or use it in a `with` statement."""

    process: subprocess.Popen[bytes]
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def stop(self) -> int:
        """Ask the server to end, wait, and return its exit code. A repeated call does nothing."""
        self.process.terminate()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self._wait_exit()

    def kill(self) -> int:
        """End the server at once, as a crash would."""
        self.process.kill()
        return self._wait_exit()

    def _wait_exit(self) -> int:
        code = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def launch(
    path: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    account: Account | None = None,
    max_connections: int = 100,
    allowed_hosts: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
    allowed_paths: Sequence[Path] = (),
    remote_hosts: Sequence[str] = (),
    shown_variables: Sequence[str] = (),
    config_file: Path | None = None,
    log: Path | None = None,
    deadline_seconds: float = 60.0,
) -> ServerProcess:
    """Start a server on the data at `path` and wait until it listens; port 0 takes a free one.

    stderr goes to `log`, or to the parent's. Raises `StartError` with the server's own line when
    it ends early or is not ready in time.
    """
    command = [sys.executable, "-m", "chdb_http", "--path", str(path)]
    command += ["--host", host, "--port", str(port), "--max-connections", str(max_connections)]
    command += [part for name in allowed_hosts for part in ("--allowed-host", name)]
    command += [part for origin in allowed_origins for part in ("--allowed-origin", origin)]
    command += [part for path_ in allowed_paths for part in ("--allowed-path", str(path_))]
    command += [part for name in remote_hosts for part in ("--remote-host", name)]
    command += [part for name in shown_variables for part in ("--shown-variable", name)]
    command += [] if config_file is None else ["--config-file", str(config_file)]
    environment = dict(os.environ)
    if account is not None:
        command += ["--user", account.user, "--password-env", PASSWORD_VARIABLE]
        environment[PASSWORD_VARIABLE] = account.password
    error_file: Any = None if log is None else log.open("ab")
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=error_file, env=environment
        )
    finally:
        if error_file is not None:
            error_file.close()
    return _wait_ready(process, host, log, deadline_seconds)


def _wait_ready(
    process: subprocess.Popen[bytes], host: str, log: Path | None, seconds: float
) -> ServerProcess:
    line = _read_first_line(process, time.monotonic() + seconds)
    if line.startswith(_READY):
        return ServerProcess(process=process, host=host, port=int(line.rpartition(":")[2]))
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
    lines = log.read_text(errors="replace").strip().splitlines() if log and log.exists() else []
    reason = lines[-1] if lines else f"exit code {process.returncode}; see its stderr"
    raise StartError(f"The ClickHouse server did not start: {reason}")


def _read_first_line(process: subprocess.Popen[bytes], deadline: float) -> str:
    if process.stdout is None:
        return ""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        ready = selector.select(max(deadline - time.monotonic(), 0))
    return process.stdout.readline().decode().strip() if ready else ""
