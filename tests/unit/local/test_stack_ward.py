"""The ward: no process below it outlives it, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from iscp_dagster.local.supervise import ward
from support.services.stack import wait_for

WARD = [sys.executable, "-I", "-S", ward.__file__]
# A command that leaves a grandchild in its own session, ignoring SIGTERM, and writes its id.
_LEAVES_ONE = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(sys.argv[1] + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(600)
    os._exit(0)
os.wait()
if sys.argv[2] == "stay":
    time.sleep(600)
"""
_WAITS = """
import sys, time
open(sys.argv[1], "w").close()
time.sleep(600)
"""
_DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN){_WAITS}"
_COUNTS_IGNORED_SIGNALS = """
import signal
numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
print(list(map(signal.getsignal, numbers)).count(signal.SIG_IGN), flush=True)
"""


def start(code: str, *arguments: str, grace: float = 5.0, **options) -> subprocess.Popen[bytes]:
    command = [*WARD, str(grace), sys.executable, "-c", code, *arguments]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, **pipes, **options)


def end(process: subprocess.Popen[bytes]) -> int:
    """Close the supervisor's pipe, as the supervisor's death would."""
    process.stdin.close()
    status = process.wait(20)
    process.stdout.close()
    process.stderr.close()
    return status


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != b"Z"


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(7)", 7), ("os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)],
    ids=["a status", "a signal"],
)
def test_it_says_the_command_s_process_id_and_ends_with_its_status(code, status) -> None:
    process = start(f"import os; os.write(2, str(os.getpid()).encode()); {code}")
    assert process.wait(20) == status
    assert process.stderr.read() == process.stdout.readline().strip()
    end(process)


def test_a_missing_command_is_an_error_and_not_a_hang() -> None:
    command = [*WARD, "1", "/no/such/program"]
    process = subprocess.run(command, input=b"", capture_output=True, check=False, timeout=20)
    assert process.returncode in {127, 128 + signal.SIGTERM}


@pytest.mark.parametrize(
    ("code", "grace", "number"),
    [(_WAITS, 20.0, signal.SIGTERM), (_DEAF, 0.2, signal.SIGKILL)],
    ids=["by SIGTERM", "by SIGKILL after the grace if it ignores SIGTERM"],
)
def test_the_closed_pipe_ends_the_command(tmp_path: Path, code, grace, number) -> None:
    process = start(code, str(tmp_path / "up"), grace=grace)
    pid = int(process.stdout.readline())
    wait_for((tmp_path / "up").exists, 20)
    assert end(process) == 128 + number
    assert not is_alive(pid)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stay", "leave"])
def test_a_daemon_of_the_command_is_found_and_killed(tmp_path: Path, how: str) -> None:
    process = start(_LEAVES_ONE, str(tmp_path / "daemon"), how)
    wait_for((tmp_path / "daemon").exists, 20)
    daemon = int((tmp_path / "daemon").read_text())
    end(process)
    assert not is_alive(daemon)


@pytest.mark.parametrize(
    ("number", "seconds"),
    [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGHUP, 0), (signal.SIGKILL, 20)],
)
def test_the_command_ends_with_the_ward_or_soon_after_it_was_killed(number, seconds) -> None:
    process = start("import time; time.sleep(600)")
    pid = int(process.stdout.readline())
    process.send_signal(number)
    process.wait(20)
    wait_for(lambda: not is_alive(pid), seconds)
    end(process)


def test_signals_that_a_shell_ignores_are_not_ignored_by_the_command() -> None:
    def ignore() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    process = start(_COUNTS_IGNORED_SIGNALS, preexec_fn=ignore)
    process.wait(20)
    assert process.stderr.read().strip() == b"0"
    end(process)
