"""Histories of Delta tables that Spark wrote once, kept in tests/golden/histories.

Spark takes a second of processor time for each small commit, and writes the same each time. A
history is kept with its statements and the versions of Spark and Delta; a test that makes other
statements, or runs with others, fails until it is written again: `ISCP_WRITE_HISTORIES=1`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.paths import GOLDEN

WRITE = "ISCP_WRITE_HISTORIES"
WRITER_SETTINGS = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # Without a limit, VACUUM and RESTORE list folders in thousands of tasks.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
"""Settings of a session that writes the tests' tables."""
_WRITTEN_BY = {"pyspark": version("pyspark"), "delta-spark": version("delta-spark")}


@dataclass
class Kept:
    """A table's history in the archive of that name, which is put at `path`."""

    name: str
    path: Path
    steps: list[tuple[list[str], int]] = field(default_factory=list)
    _at: int = 0

    def __post_init__(self) -> None:
        history = read_archive(self.archive, self.path)
        self.steps = [(each["statements"], each["versions"]) for each in history["steps"]]

    @property
    def archive(self) -> Path:
        return archive_of(self.name)

    def commit(self, statements: Sequence[str]) -> int:
        """Return how many versions these statements, the next ones, made."""
        kept, versions = self.steps[self._at] if self._at < len(self.steps) else ([], 0)
        if kept != list(statements):
            pytest.fail(f"{self.archive} has {kept}, not {statements}; write it again: {WRITE}=1")
        self._at += 1
        return versions


@dataclass
class Written:
    """Commits that are made now to the table at `path`; `keep` makes the archive."""

    run: Callable[[str], object]
    """Runs SQL in which `{t}` is the table."""
    path: Path
    steps: list[tuple[list[str], int]] = field(default_factory=list)

    def commit(self, statements: Sequence[str]) -> int:
        """Run the statements and return how many versions they made."""
        before = self._latest()
        for statement in statements:
            self.run(statement)
        versions = self._latest() - before
        self.steps.append((list(statements), versions))
        return versions

    def _latest(self) -> int:
        names = (each.stem for each in (self.path / "_delta_log").glob("*.json"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def keep(self, name: str) -> None:
        steps = [{"statements": each, "versions": versions} for each, versions in self.steps]
        write_archive(archive_of(name), self.path, steps=steps)


@dataclass
class KeptSpark:
    """A session that runs the statements of one test: Spark ran them once, now their files come.

    For each statement the archive has the files that it added to the table whose path it names.
    """

    name: str
    spark: Callable[[], Any]
    """Gives the session of Spark that runs the statements while the archive is written."""
    folder: Path
    """Where the files are until the archive is written."""
    _steps: list[dict[str, Any]] = field(default_factory=list)
    _at: int = 0

    @property
    def archive(self) -> Path:
        return archive_of(f"spark/{self.name}")

    def sql(self, statement: str) -> Any:
        """Do to the table what the statement does."""
        found = re.search(r"delta`?\.`([^`]+)`", statement)
        assert found is not None, statement
        text = statement.replace(found[1], "{path}")
        self.write(text, Path(found[1]), lambda spark: spark.sql(statement).collect())
        return SimpleNamespace(collect=list)

    def write(self, text: str, path: Path, run: Callable[[Any], object]) -> None:
        """Do to the table at `path` what `run` does with Spark; the text tells it from others."""
        if to_be_written():
            self._record(text, path, run)
        else:
            self._replay(text, path)

    def _record(self, text: str, path: Path, run: Callable[[Any], object]) -> None:
        before = _list_files(path)
        run(self.spark())
        after = _list_files(path)
        kept = self.folder / str(len(self._steps))
        for name in (name for name, stat in after.items() if before.get(name) != stat):
            (kept / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path / name, kept / name)
        self._steps.append({"statement": text, "gone": sorted(before.keys() - after.keys())})

    def _replay(self, text: str, path: Path) -> None:
        if not self._steps:
            self._steps = read_archive(self.archive, self.folder)["steps"]
        step = self._steps[self._at] if self._at < len(self._steps) else {"statement": None}
        if step["statement"] != text:
            was = step["statement"]
            pytest.fail(f"{self.archive} has {was}, not {text}; write it again: {WRITE}=1")
        if (kept := self.folder / str(self._at)).exists():
            shutil.copytree(kept, path, dirs_exist_ok=True)
        for name in step["gone"]:
            (path / name).unlink()
        self._at += 1

    def close(self) -> None:
        """Write the archive, where that is to be done."""
        if self._steps and to_be_written():
            write_archive(self.archive, self.folder, steps=self._steps)


def _list_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file but the checksums beside files."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    kept = [file for file in files if not (file.name.startswith(".") and file.suffix == ".crc")]
    found = {str(file.relative_to(folder)): file.stat() for file in kept}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


def read_archive(archive: Path, folder: Path) -> dict[str, Any]:
    """Extract the archive; return its history."""
    if not archive.exists():
        pytest.fail(f"{archive} is not there; write it: {WRITE}=1")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    file = folder / "history.json"
    history: dict[str, Any] = json.loads(file.read_text())
    file.unlink()
    if history["by"] != _WRITTEN_BY:
        pytest.fail(f"{archive} is of {history['by']}; write it again: {WRITE}=1")
    return history


def write_archive(target: Path, folder: Path, **history: Any) -> None:
    """Archive the files of the folder, and their history; a file with several links once."""
    told = folder / "history.json"
    told.write_text(json.dumps({"by": _WRITTEN_BY, **history}, indent=1))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:xz") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.add(file, str(file.relative_to(folder)), filter=_clear_owner)
    told.unlink()


def archive_of(name: str) -> Path:
    return GOLDEN / "histories" / f"{name}.tar.xz"


def to_be_written() -> bool:
    return os.environ.get(WRITE) == "1"


def _clear_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
