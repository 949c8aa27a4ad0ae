"""Confines the engine's process to its data, `user_files`, and what is allowed by name.

Call `confine_process` before importing the engine, since the import starts threads.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import asgi_guards
import chdb_http
from chdb_http.engine import landlock

USER_FILES = "user_files"
"""The folder below the data that `file()`, `deltaLakeLocal` and similar functions read."""
SCRATCH = "scratch"
_WEB_PORTS = (80, 443)
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/sys", "/proc/sys"),
    *("/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/gai.conf"),
    *("/etc/localtime", "/etc/timezone", "/etc/ssl", "/etc/pki", "/etc/ca-certificates"),
    *("/etc/ld.so.cache", "/run/systemd/resolve", "/dev/urandom", "/dev/random", "/dev/zero"),
    *(f"/proc/{name}" for name in ("meminfo", "stat", "cpuinfo", "loadavg", "uptime")),
)
# Files of the process itself, without `environ`, which holds what a shell has exported; `task` has
# one too. The engine reads the statistics of its threads there. If it may not, each statement makes
# and drops several errors, which is a third of its work.
_OWN = ("maps", "statm", "status", "stat", "auxv", "limits", "cgroup", "mountinfo", "task")
_ENVIRONMENT_AT = 47
"""Where `/proc/self/stat` has the address, after the name of the program (proc(5): env_start)."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What queries may access outside of the tables.

    `paths` are folders besides `user_files`; `url()` and `s3()` may connect to
    `hosts`, as `name` or `name:port`. `any_port` is for an engine whose own
    configuration connects it to other servers, such as a Keeper.
    """

    data: Path
    paths: tuple[Path, ...] = ()
    hosts: tuple[str, ...] = ()
    any_port: bool = False

    @property
    def user_files(self) -> Path:
        return self.data / USER_FILES

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.user_files, *self.paths)

    @property
    def ports(self) -> tuple[int, ...] | None:
        """The ports that may be connected to; None for all."""
        named_ports = [host.rpartition(":")[2] for host in self.hosts if ":" in host]
        default_ports = _WEB_PORTS if any(":" not in host for host in self.hosts) else ()
        return None if self.any_port else (*default_ports, *map(int, named_ports))


def confine_process(reach: Reach, *files: Path, shown_variables: Iterable[str] = ()) -> bool:
    """Confine this process to its reach and these files for good.

    `/proc` then shows only the `shown_variables`. False if the kernel has no Landlock.
    """
    for folder in (reach.user_files, reach.data / SCRATCH):
        folder.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(reach.data / SCRATCH)
    os.chdir(reach.user_files)
    if not landlock.get_abi_version():
        return False
    _hide_environment(shown_variables)
    own_files = [Path("/proc/self", name) for name in _OWN]
    _keep_open(own_files)
    read = (*map(Path, _SYSTEM), *_list_python_paths(), *own_files, *files)
    write = (reach.data, *reach.paths, Path("/dev/null"))
    landlock.limit_process(read=read, write=write, connect=reach.ports)
    return True


def _hide_environment(shown: Iterable[str]) -> None:
    """Wipe the memory that `environ` shows, except the variables `shown`.

    The variables keep their values for this process. Call it before there are threads.
    """
    for name, value in os.environb.items():
        # The C library copies a variable that is set again into memory of its own.
        os.putenv(name, value)
    numbers = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    start, end = map(int, numbers.rpartition(")")[2].split()[_ENVIRONMENT_AT:][:2])
    variables = [(name, os.environb.get(name)) for name in map(os.fsencode, shown)]
    environment = b"".join(
        b"%s=%s\0" % (name, value) for name, value in variables if value is not None
    )
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, environment, min(len(environment), end - start))


def _list_python_paths() -> list[Path]:
    """Where this Python's modules are, those of packages installed as editable included."""
    libraries = [Path(path) for path in sys.path if path.endswith("-packages")]
    editable = [Path(path).resolve() for path in (*chdb_http.__path__, *asgi_guards.__path__)]
    # Nix and Bazel make environments of links.
    linked = [
        path.resolve()
        for library in libraries
        if library.is_dir()
        for path in library.iterdir()
        if path.is_symlink()
    ]
    return [Path(sys.prefix), Path(sys.base_prefix), *editable, *libraries, *linked]


def _keep_open(files: list[Path]) -> None:
    """Keep /proc files open: a rule is for an inode, and the kernel may replace unused ones."""
    for file in files:
        if file.exists():
            os.open(file, os.O_PATH | os.O_CLOEXEC)
