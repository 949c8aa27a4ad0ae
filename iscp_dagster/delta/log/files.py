"""The files of a Delta log: one small port, a local folder behind it or an object store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol
from urllib.parse import unquote, urlparse

from iscp_dagster.delta.log.unreadable import asking, unreadable

LOG_FOLDER = "_delta_log"
STORES = frozenset({"s3", "s3a"})
"""The schemes of stores that speak S3's language."""
PATIENCE: Mapping[str, str] = MappingProxyType(
    {"max_retries": "3", "retry_timeout": "10s", "connect_timeout": "5s", "timeout": "30s"}
)
"""How long a store is waited for where the options do not say; a look has a minute for all."""
MISSING = (FileNotFoundError, NotADirectoryError)


class FileMark(NamedTuple):
    """What tells one writing of a file from the next, and when it was: nanoseconds since 1970."""

    mtime_ns: int
    identity: str

    @property
    def micros(self) -> int:
        """The modification time as Delta takes it: whole milliseconds, in microseconds."""
        return self.mtime_ns // 1_000_000 * 1_000


class LogFiles(Protocol):
    """Names are relative to the table's folder. A missing file is None, never an error.

    What cannot be read now raises UnavailableError, a location that no store has SourceError.
    """

    local: ClassVar[bool]
    """Whether a look at a file costs microseconds; a request otherwise."""

    def mark(self, name: str) -> FileMark | None: ...

    def read(self, name: str) -> bytes | None: ...

    def names(self) -> list[str]:
        """The names in the log folder, without the folder; empty when there is none."""
        ...

    def missing(self, names: list[str]) -> str | None:
        """The first of the data files that is surely gone; None when that is not known."""
        ...


@dataclass(frozen=True)
class LocalFiles:
    """A folder of this machine: a look at a file costs microseconds."""

    local: ClassVar[bool] = True
    root: str

    def mark(self, name: str) -> FileMark | None:
        try:
            stat = os.stat(f"{self.root}/{name}")  # noqa: PTH116 - the idle path, four times as fast
        except MISSING:
            return None
        except OSError as error:
            raise unreadable(self.root, error) from error
        # One number for both: a cursor holds it for every table.
        return FileMark(stat.st_mtime_ns, f"{stat.st_mtime_ns ^ stat.st_ino:x}")

    def read(self, name: str) -> bytes | None:
        try:
            with asking(self.root):
                return Path(self.root, name).read_bytes()
        except MISSING:
            return None

    def names(self) -> list[str]:
        try:
            with asking(self.root):
                return os.listdir(Path(self.root, LOG_FOLDER))  # noqa: PTH208 - names are enough
        except MISSING:
            return []

    def missing(self, names: list[str]) -> str | None:
        with asking(self.root):
            return next((name for name in names if not self._exists(unquote(name))), None)

    def _exists(self, name: str) -> bool:
        path = local_path(name) if ":" in name.partition("/")[0] else name
        try:
            return path is None or bool(Path(self.root, path).stat())
        except MISSING:
            return False


@dataclass(frozen=True)
class ObjectFiles:
    """An object store through deltalake: each look is a request, 10-50 ms far away.

    While deltalake opens or lists files no other thread of the process goes on, be it for as long
    as a store hangs. While it asks for a file's mark they do: so that comes first.
    """

    local: ClassVar[bool] = False
    url: str
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def mark(self, name: str) -> FileMark | None:
        info = self._asked(name)
        return info and FileMark(info.mtime_ns or 0, f"{info.mtime_ns or 0:x}.{info.size:x}")

    def read(self, name: str) -> bytes | None:
        if (info := self._asked(name)) is None:
            return None
        try:
            store = opened(self.url, self.options, {name: info.size})
            with asking(self.url), store.open_input_file(name) as stream:
                return bytes(stream.read())
        except MISSING:
            return None

    def _asked(self, name: str) -> Any:
        """What the store says of a file; None: there is none."""
        with asking(self.url):
            info = self._store.get_file_info(name)
        return info if info.is_file else None

    def names(self) -> list[str]:
        from pyarrow.fs import FileSelector

        self.mark(LOG_FOLDER)
        selector = FileSelector(LOG_FOLDER, allow_not_found=True)
        with asking(self.url):
            return [info.base_name for info in self._store.get_file_info(selector)]

    def missing(self, names: list[str]) -> str | None:  # noqa: ARG002 - a request each is too dear
        return None

    @cached_property
    def _store(self) -> Any:
        """With the connections that it holds open."""
        return opened(self.url, self.options)


def opened(url: str, options: Mapping[str, str], sizes: Mapping[str, int] | None = None) -> Any:
    """An object store below `url` as Arrow's file system; `options` are deltalake's.

    A file whose size is known costs one request less.
    """
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    return PyFileSystem(DeltaStorageHandler(url, {**PATIENCE, **options}, dict(sizes or {})))


def settings_of(environ: Mapping[str, str]) -> dict[str, str]:
    """What deltalake takes of an environment for S3, so that another process has it as well."""
    return {name: value for name, value in environ.items() if name.startswith("AWS_")}


def local_path(location: str) -> str | None:
    """The folder that a path or a file:// URL names, absolute; None for another store's URL."""
    if "://" not in location and not location.startswith("file:"):
        return str(Path(location).absolute())
    url = urlparse(location)
    return unquote(url.path) if url.scheme == "file" else None


def log_files(location: str, options: dict[str, str] | None = None) -> LogFiles:
    """The files of the table at `location`: local ones directly, others through deltalake."""
    folder = local_path(location)
    return ObjectFiles(location, dict(options or {})) if folder is None else LocalFiles(folder)
