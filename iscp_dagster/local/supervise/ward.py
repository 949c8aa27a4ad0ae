"""Runs one command and lets no process of it outlive the supervisor.

Usage: `python -I -S ward.py GRACE_SECONDS COMMAND ARGUMENT...`

Standard input is a pipe that only the supervisor holds: its end of file, however the supervisor
ended, makes the ward stop the command and every process below it. The first line on
standard output is the command's process id. The command's own output goes to the ward's standard
error. The ward's exit status is the command's, or 128 plus the signal that ended it.

Imports nothing but small standard modules, so that a ward costs little time and memory.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_ORPHAN_GRACE = 2.0
_SWEEP = 0.05
_LINUX = sys.platform == "linux"
_ENDED = {b"Z", b"X"}


class _Stop(Exception):  # noqa: N818  (a request, not an error)
    """The supervisor is gone, or asks the ward to stop."""


def main(arguments: list[str]) -> int:
    """Run the command to its end, or until the supervisor's pipe closes."""
    grace, command = float(arguments[0]), arguments[1:]
    _call_prctl(_SUBREAPER, 1)
    wakeup = _watch_signals()
    child = _start_command(command)
    try:
        _report_pid(child)
        status = _wait_for_child(child, wakeup, deadline=None)
    except _Stop:
        status = _terminate_child(child, wakeup, grace)
    _end_orphans(child)
    return status


def _watch_signals() -> int:
    """Turn stop signals and SIGCHLD into bytes of a pipe; return its reading end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for signum in (*_STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(signum, lambda *_: None)
    return reader


def _start_command(command: list[str]) -> int:
    # Block signals until the child has reset its handlers, which would swallow them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    ward = os.getpid()
    child = os.fork()
    if child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        return child
    try:
        _execute_command(command, ward)
    except OSError as problem:
        os.write(2, f"cannot start {command[0]}: {problem}\n".encode())
    os._exit(127)


def _execute_command(command: list[str], ward: int) -> None:
    """Replace the forked process by the command, in a session of its own."""
    os.setsid()
    _call_prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != ward:
        os._exit(128 + signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    # A shell starts background jobs with signals ignored, and a child inherits that.
    for signum in (*_STOP_SIGNALS, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.closerange(3, 256)
    os.execvp(command[0], command)  # noqa: S606


def _report_pid(child: int) -> None:
    try:
        os.write(1, b"%d\n" % child)
        os.close(1)
    except OSError as problem:
        raise _Stop from problem


def _wait_for_child(child: int, wakeup: int, deadline: float | None) -> int:
    """The child's exit status; raises _Stop on a request to stop or after the deadline."""
    watched = [wakeup] if deadline is not None else [wakeup, 0]
    while True:
        status = _collect_ended(child)
        if status is not None:
            return status
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise _Stop
        readable, _, _ = select.select(watched, [], [], remaining)
        if deadline is None and _is_stop_requested(readable, wakeup):
            raise _Stop


def _is_stop_requested(readable: list[int], wakeup: int) -> bool:
    if 0 in readable and not os.read(0, 4096):
        return True
    numbers = os.read(wakeup, 4096) if wakeup in readable else b""
    return any(signum in _STOP_SIGNALS for signum in numbers)


def _collect_ended(child: int) -> int | None:
    """Collect every ended process; the child's status when it is among them."""
    exit_code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return exit_code
        if pid == 0:
            return exit_code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            exit_code = code if code >= 0 else 128 - code


def _terminate_child(child: int, wakeup: int, grace: float) -> int:
    """Ask the child to stop, wait for at most `grace` seconds, then kill it."""
    _send_signal(child, signal.SIGTERM)
    try:
        return _wait_for_child(child, wakeup, deadline=time.monotonic() + grace)
    except _Stop:
        _send_signal(child, signal.SIGKILL)
        return 128 + signal.SIGKILL


def _end_orphans(child: int) -> None:
    """End the processes that the child left behind: by SIGTERM, then by SIGKILL."""
    for orphan in _list_living_descendants(child):
        _send_signal(orphan, signal.SIGTERM)
    deadline = time.monotonic() + _ORPHAN_GRACE
    while orphans := _list_living_descendants(child):
        if time.monotonic() > deadline:
            for orphan in orphans:
                _send_signal(orphan, signal.SIGKILL)
        time.sleep(_SWEEP)
        _collect_ended(child)
    _collect_ended(child)


def _list_living_descendants(child: int) -> list[int]:
    """Every living process below the ward; without Linux's /proc, the child's group."""
    if not _LINUX:
        return _list_group(child)
    return find_descendants(
        os.getpid(), [process for process in list_processes() if process[3] not in _ENDED]
    )


def find_descendants(ancestor: int, process_table: list[tuple[int, int, int, bytes]]) -> list[int]:
    """The ids of the processes in `process_table` that descend from `ancestor`."""
    children: dict[int, list[int]] = {}
    for pid, parent, _, _ in process_table:
        children.setdefault(parent, []).append(pid)
    descendants: list[int] = []
    level = children.get(ancestor, [])
    while level:
        descendants += level
        level = [child for pid in level for child in children.get(pid, [])]
    return descendants


def list_processes() -> list[tuple[int, int, int, bytes]]:
    """(process id, parent's id, session, state) of each process, from Linux's /proc."""
    process_table = []
    for name in os.listdir("/proc"):  # noqa: PTH208  (pathlib is slow to import)
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
        except OSError:
            continue
        process_table.append((int(name), int(parent), int(session), state))
    return process_table


def _list_group(child: int) -> list[int]:
    try:
        os.killpg(child, 0)
    except OSError:
        return []
    return [-child]


def _send_signal(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return


def _call_prctl(option: int, value: int) -> None:
    if not _LINUX:
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
