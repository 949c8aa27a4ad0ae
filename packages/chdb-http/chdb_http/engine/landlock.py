"""Has the kernel limit what this process may open, by Linux's Landlock.

A query can reach files in many ways (`file()`, table engines, disks, backups, `INFILE`), and the
engine as chDB runs it confines few of them. The kernel confines them all, for every thread and
later child too (kernel doc: userspace-api/landlock; linux/landlock.h).
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from chdb_http.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH, _NET_PORT = 1, 2
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS of linux/prctl.h
_ALL_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_CONNECT_TCP = 1 << 1
_SINCE_NET, _SINCE_SCOPE = 4, 6
_ABSTRACT_SOCKETS_AND_SIGNALS = 3


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PortRule(ctypes.Structure):
    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def get_abi_version() -> int:
    """The kernel's Landlock ABI; 0 when it has none, or it is switched off."""
    if not sys.platform.startswith("linux"):
        return 0
    abi = ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION_FLAG)
    return max(0, int(abi))


def limit_process(
    *, read: Iterable[Path], write: Iterable[Path], connect: Iterable[int] | None
) -> None:
    """Limit this thread, and what it starts, to opening these files and running no program.

    From ABI 4 on, TCP connections are limited to the ports `connect`, unless it is None. What is
    open stays open. Paths that cannot be opened are left out. The limits cannot be undone. Raises
    StartError when the kernel refuses.
    """
    abi = get_abi_version()
    handled = _ALL_FILES[max(level for level in _ALL_FILES if level <= abi)]
    ruleset = _Ruleset(
        files=handled,
        net=_CONNECT_TCP if abi >= _SINCE_NET and connect is not None else 0,
        scoped=_ABSTRACT_SOCKETS_AND_SIGNALS if abi >= _SINCE_SCOPE else 0,
    )
    descriptor = _call_kernel(
        _CREATE, ctypes.byref(ruleset), ctypes.c_size_t(ctypes.sizeof(ruleset)), 0
    )
    try:
        for path in read:
            _allow_path(descriptor, path, handled & (_READ_FILE | _READ_DIR))
        for path in write:
            _allow_path(descriptor, path, handled & ~_EXECUTE)
        for port in (connect or ()) if ruleset.net else ():
            rule = _PortRule(allowed=_CONNECT_TCP, port=port)
            _call_kernel(_ADD_RULE, descriptor, _NET_PORT, ctypes.byref(rule), 0)
        _check_result(ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _call_kernel(_RESTRICT, descriptor, 0)
    finally:
        os.close(descriptor)


def _allow_path(ruleset: int, path: Path, rights: int) -> None:
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            allowed = rights if path.is_dir() else rights & _ON_FILES
            beneath = _PathRule(allowed=allowed, parent=parent)
            _call_kernel(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(beneath), 0)
        finally:
            os.close(parent)


def _call_kernel(number: int, *arguments: object) -> int:
    return _check_result(int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)))


def _check_result(result: int) -> int:
    if result < 0:
        name = errno.errorcode.get(ctypes.get_errno(), "unknown")
        raise StartError(
            f"the kernel's Landlock refuses to confine ClickHouse ({name}): a sandbox around this "
            "process forbids it, for instance a container's seccomp profile; allow it there"
        )
    return result
