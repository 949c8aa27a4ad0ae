"""A file system so small that a test can fill it."""

from __future__ import annotations

import errno
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.errors import raises_naming

SIZE = "1m"


@contextmanager
def small_disk() -> Iterator[Path]:
    """Give a temporary folder, on a file system of its own if this user may mount one."""
    with tempfile.TemporaryDirectory(prefix="disk") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder]
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        try:
            yield Path(folder)
        finally:
            if mounted:
                subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill the disk to the last byte until the end of the block."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        with raises_naming(OSError, f"Errno {errno.ENOSPC}"):
            while True:
                file.write(bytes(4096))
        try:
            yield
        finally:
            filler.unlink()
