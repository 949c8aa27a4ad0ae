"""A started stack for tests: real services under one supervisor that cannot outlive the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from iscp_dagster.local.services import state
from iscp_dagster.local.services.lock import HomeLocks
from iscp_dagster.local.services.settings import CLICKHOUSE, DAGSTER, SPARK
from iscp_dagster.local.services.state import Condition, ServiceState, StackState
from iscp_dagster.local.spark.server import JAVA_OPTIONS_VARIABLE
from iscp_dagster.local.stack.environment import add_stack_variables
from iscp_dagster.local.stack.ports import VARIABLES, find_free_port
from iscp_dagster.local.supervise import ward
from iscp_dagster.spark.session import disconnect
from support.paths import ROOT
from support.services import insert_gate

_UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
QUICK = f"-XX:TieredStopAtLevel=1 {_UNVERIFIED}"
"""Java options for tests: a process lives too briefly to gain from the second compiler, and the
jars' classes need not be verified, which takes a second or two of each start.
"""
_PLAIN_FILES = (
    "-Dspark.hadoop.fs.file.impl=org.apache.hadoop.fs.RawLocalFileSystem "
    "-Dspark.hadoop.fs.AbstractFileSystem.file.impl=org.apache.hadoop.fs.local.RawLocalFs "
    # S3A's buffers on disk need files with checksums.
    "-Dspark.hadoop.fs.s3a.fast.upload.buffer=bytebuffer"
)
JAVA_OPTIONS = f"{QUICK} -Dspark.sql.codegen.factoryMode=NO_CODEGEN {_PLAIN_FILES}"
"""The tests' Spark reads too few rows to gain from generated code, which costs a fifth of its
time. Without a file of checksums beside each file it starts half as many `chmod`.
"""
START_SECONDS = 400.0
STOP_SECONDS = 90.0
COMMAND_SECONDS = 1_800
"""The longest that a command takes: the demo, on a slow machine that does other things too."""
GONE_SECONDS = 60.0
PARTS = (
    *("dagster_webserver", "dagster._daemon", "api grpc", "runs.server", "SparkConnectServer"),
    *("serve --patient", "invocations serve --follow"),
)
"""Parts of the commands of a whole stack's processes, besides its ClickHouse."""
_POLL, _LONGEST_POLL = 0.05, 0.5
PROJECT = ("assets", "iscp_dagster", "resources", "dagster.yaml", "workspace.yaml")
# Dropped, since otherwise each of many processes takes half a second to compile the package.
_UNWRITTEN = "PYTHONDONTWRITEBYTECODE"
_OF_THE_STACK = ("ISCP_", "DAGSTER_", "SPARK_", "CLICKHOUSE_", "PYSPARK_")


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A running stack; addresses of services that were not asked for lead nowhere."""

    home: Path
    supervisor: int

    @property
    def clickhouse_url(self) -> str:
        """With the password, if the stack started it."""
        return add_stack_variables({"ISCP_HOME": str(self.home)}).get("CLICKHOUSE_URL", "")

    @property
    def spark_remote(self) -> str:
        """With the token, if the stack started it."""
        return add_stack_variables({"ISCP_HOME": str(self.home)}).get("SPARK_REMOTE", "")

    @property
    def dagster_url(self) -> str:
        return self.service(DAGSTER).address

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which the stack's own children run."""
        variables = add_stack_variables({"ISCP_HOME": str(self.home)})
        addresses = {name: variables.get(name) for name in ("CLICKHOUSE_URL", "SPARK_REMOTE")}
        return clean_environment(self.home) | {
            "ISCP_LOG_URL": f"sqlite:///{self.home / 'iscp_log.sqlite'}",
            "DAGSTER_HOME": str(self.home / "dagster"),
            **{name: address for name, address in addresses.items() if address},
        }

    def state(self) -> StackState:
        current = state.read(self.home)
        assert current is not None
        return current

    def service(self, name: str) -> ServiceState:
        return self.state().get_service(name)

    def pid(self, name: str) -> int:
        """Return the service's own process, for tests that kill it."""
        pid = self.service(name).pid
        assert pid is not None, self.state()
        return pid

    def await_restart(self, name: str, restarts: int, seconds: float = START_SECONDS) -> None:
        """Wait until the service has come back at least that many times and is ready."""

        def back() -> bool:
            now = self.service(name)
            return now.restarts >= restarts and now.condition is Condition.READY

        wait_for(back, seconds, lambda: str(self.state()))


def jars_folder() -> Path:
    """Return where tests keep Delta's jars, so that a fresh home need not fetch them again."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ISCP_JARS") or cache / "iscp_dagster" / "jars")


def clean_environment(home: Path, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return this process's environment with the given home, without variables of other stacks."""
    kept = {name: value for name, value in base.items() if not name.startswith(_OF_THE_STACK)}
    kept.pop(_UNWRITTEN, None)
    return kept | {
        "ISCP_HOME": str(home),
        "ISCP_JARS": str(jars_folder()),
        "ISCP_CLICKHOUSE_REMOTE_HOSTS": insert_gate.ADDRESS,
        JAVA_OPTIONS_VARIABLE: JAVA_OPTIONS,
    }


def copied_project(folder: Path) -> Path:
    """Copy the project into `folder`, for tests that declare tables of their own."""
    for name in PROJECT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def free_ports() -> dict[str, str]:
    """Ports of the stack's own for every service, as environment variables."""
    return {name: str(find_free_port()) for name in VARIABLES.values()}


@contextmanager
def running_stack(
    home: Path,
    services: tuple[str, ...] = (CLICKHOUSE, SPARK),
    *,
    extra: Mapping[str, str] | None = None,
) -> Iterator[Stack]:
    """Run a stack in `home` with the given services, until the end of the block.

    Its supervisor runs under a ward of this process, so that it ends even when the tests are
    killed. `extra` adds to its environment.
    """
    home.mkdir(parents=True, exist_ok=True)
    options = [part for name in services for part in ("--service", name)]
    environment = clean_environment(home) | free_ports() | dict(extra or {})
    log = home / "up.log"
    command = [sys.executable, "-m", "iscp_dagster.cli.main", "up", *options]
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [sys.executable, "-I", "-S", ward.__file__, str(STOP_SECONDS), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=environment,
            cwd=home,
            start_new_session=True,
        ) as supervisor,
    ):
        assert supervisor.stdout is not None
        assert supervisor.stdin is not None
        try:
            pid = int(supervisor.stdout.readline())
            _await_ready(home, supervisor, pid, log)
            yield Stack(home=home, supervisor=pid)
        finally:
            # Else PySpark asks a missing server again and again when this process ends.
            disconnect()
            supervisor.stdin.close()
            supervisor.wait(STOP_SECONDS + START_SECONDS)
            assert HomeLocks(home).wait_gone(STOP_SECONDS)


def _await_ready(home: Path, supervisor: subprocess.Popen[bytes], pid: int, log: Path) -> None:
    def ready() -> bool:
        assert supervisor.poll() is None, log.read_text()
        now = state.read(home)
        return now is not None and now.supervisor == pid and now.condition is Condition.READY

    wait_for(ready, START_SECONDS, log.read_text)


def processes_of(home: Path) -> set[int]:
    """Return every living process with this home in its environment."""
    found = ((each.pid, each.info["environ"] or {}) for each in psutil.process_iter(["environ"]))
    return {pid for pid, environment in found if environment.get("ISCP_HOME") == str(home)}


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def commands_of(pids: set[int]) -> list[str]:
    return [command for command in map(command_of, pids) if command]


def assert_nothing_left(home: Path) -> None:
    assert HomeLocks(home).wait_gone(GONE_SECONDS)
    # The supervisor releases its locks a moment before it ends.
    wait_for(
        lambda: not processes_of(home), GONE_SECONDS, lambda: str(commands_of(processes_of(home)))
    )


def assert_runs(home: Path, parts: Collection[str]) -> None:
    """Check that each part is in a command of the home's processes."""
    running = commands_of(processes_of(home))
    for part in parts:
        assert any(part in command for command in running), running


def iscp(
    environment: Mapping[str, str], folder: Path, *arguments: str, stderr: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run an `iscp` command in a folder; return how it ended."""
    return subprocess.run(
        [sys.executable, "-m", "iscp_dagster.cli.main", *arguments],
        env=dict(environment),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


def query(url: str, sql: str) -> str:
    """Return ClickHouse's answer."""
    return httpx.post(url, content=sql, timeout=60).raise_for_status().text.strip()


def wait_for(condition, seconds: float, told=lambda: "", *, every: float | None = None) -> None:
    """Wait until the condition holds; fail after `seconds` with the text of `told`.

    Checks every `every` seconds, or less and less often without it.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, told()
        time.sleep(every or min(max(waited / 10, _POLL), _LONGEST_POLL))
