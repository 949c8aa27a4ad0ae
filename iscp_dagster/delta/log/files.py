"""The files of a Delta log: one small port, backed by a local folder or an object store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol
from urllib.parse import unquote, urlparse

from iscp_dagster.delta.log.storage_errors import translate_store_error, wrap_store_errors

LOG_FOLDER = "_delta_log"
STORES = frozenset({"s3", "s3a"})
"""The schemes of stores with S3's protocol."""
PATIENCE: Mapping[str, str] = MappingProxyType(
    {"max_retries": "3", "retry_timeout": "10s", "connect_timeout": "5s", "timeout": "30s"}
)
"""How long to wait for a store unless the options say otherwise; a look has a minute in all."""
MISSING = (FileNotFoundError, NotADirectoryError)


class FileMark(NamedTuple):
    """The identity of one write of a file, and its time in nanoseconds since 1970."""

    mtime_ns: int
    identity: str

    @property
    def micros(self) -> int:
        """The modification time as Delta reads it: whole milliseconds, in microseconds."""
        return self.mtime_ns // 1_000_000 * 1_000


class LogFiles(Protocol):
    """Names are relative to the table's folder. A missing file is None, never an error.

    Raises UnavailableError for what cannot be read now, SourceError for what never can.
    """

    local: ClassVar[bool]
    """Whether a stat of a file costs microseconds; otherwise it is a request."""

    def read_mark(self, name: str) -> FileMark | None: ...

    def read(self, name: str) -> bytes | None: ...

    def list_names(self) -> list[str]:
        """The names in the log folder, without the folder; empty when there is none."""
        ...

    def find_missing(self, names: list[str]) -> str | None:
        """The first of these data files known to be gone; None if none is."""
        ...


@dataclass(frozen=True)
class LocalFiles:
    """A local folder: a stat of a file costs microseconds."""

    local: ClassVar[bool] = True
    root: str

    def read_mark(self, name: str) -> FileMark | None:
        try:
            stat = os.stat(f"{self.root}/{name}")  # noqa: PTH116 - the idle path, four times as fast
        except MISSING:
            return None
        except OSError as error:
            raise translate_store_error(self.root, error) from error
        # One number for time and inode: a cursor holds it for every table.
        return FileMark(stat.st_mtime_ns, f"{stat.st_mtime_ns ^ stat.st_ino:x}")

    def read(self, name: str) -> bytes | None:
        try:
            with wrap_store_errors(self.root):
                return Path(self.root, name).read_bytes()
        except MISSING:
            return None

    def list_names(self) -> list[str]:
        try:
            with wrap_store_errors(self.root):
                return os.listdir(Path(self.root, LOG_FOLDER))  # noqa: PTH208 - names are enough
        except MISSING:
            return []

    def find_missing(self, names: list[str]) -> str | None:
        with wrap_store_errors(self.root):
            return next((name for name in names if not self._has_file(unquote(name))), None)

    def _has_file(self, name: str) -> bool:
        path = to_local_path(name) if ":" in name.partition("/")[0] else name
        try:
            return path is None or bool(Path(self.root, path).stat())
        except MISSING:
            return False


@dataclass(frozen=True)
class ObjectFiles:
    """An object store through deltalake: each call is a request of 10-50 ms.

    deltalake blocks all other threads of the process while it opens or lists files, however long
    the store hangs, but not while it gets a file's mark: so that comes first.
    """

    local: ClassVar[bool] = False
    url: str
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def read_mark(self, name: str) -> FileMark | None:
        info = self._get_info(name)
        return info and FileMark(info.mtime_ns or 0, f"{info.mtime_ns or 0:x}.{info.size:x}")

    def read(self, name: str) -> bytes | None:
        if (info := self._get_info(name)) is None:
            return None
        try:
            store = open_store(self.url, self.options, {name: info.size})
            with wrap_store_errors(self.url), store.open_input_file(name) as stream:
                return bytes(stream.read())
        except MISSING:
            return None

    def _get_info(self, name: str) -> Any:
        """The store's information on a file; None if there is no such file."""
        with wrap_store_errors(self.url):
            info = self._store.get_file_info(name)
        return info if info.is_file else None

    def list_names(self) -> list[str]:
        from pyarrow.fs import FileSelector

        self.read_mark(LOG_FOLDER)
        selector = FileSelector(LOG_FOLDER, allow_not_found=True)
        with wrap_store_errors(self.url):
            return [info.base_name for info in self._store.get_file_info(selector)]

    def find_missing(self, names: list[str]) -> str | None:  # noqa: ARG002 - each would be a request
        return None

    @cached_property
    def _store(self) -> Any:
        """The store, kept for its open connections."""
        return open_store(self.url, self.options)


def open_store(url: str, options: Mapping[str, str], sizes: Mapping[str, int] | None = None) -> Any:
    """The object store below `url` as an Arrow file system; `options` are deltalake's.

    A file whose size is given in `sizes` costs one request less.
    """
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    return PyFileSystem(DeltaStorageHandler(url, {**PATIENCE, **options}, dict(sizes or {})))


def get_store_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings that deltalake reads from an environment for S3, to hand to another process."""
    return {name: value for name, value in environ.items() if name.startswith("AWS_")}


def to_local_path(location: str) -> str | None:
    """The folder that a path or a file:// URL names, absolute; None for another store's URL."""
    if "://" not in location and not location.startswith("file:"):
        return str(Path(location).absolute())
    url = urlparse(location)
    return unquote(url.path) if url.scheme == "file" else None


def to_spark_path(location: str) -> str:
    """The location for Spark, which does not decode percent escapes in a file's URL."""
    folder = to_local_path(location) if location.startswith("file:") else None
    return location if folder is None else f"file://{folder}"


def open_log_files(location: str, options: dict[str, str] | None = None) -> LogFiles:
    """The files of the table at `location`: local ones directly, others through deltalake."""
    folder = to_local_path(location)
    return ObjectFiles(location, dict(options or {})) if folder is None else LocalFiles(folder)
