"""Histories of Delta tables that Spark wrote once, kept in tests/golden/histories.

Spark takes a second of processor time for each small commit, and writes the same each time. A
history is kept with its statements and the versions of Spark and Delta; a test that makes other
statements, or runs with others, fails until it is written again: `ISCP_WRITE_HISTORIES=1`.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pytest

from support.paths import GOLDEN

WRITE = "ISCP_WRITE_HISTORIES"
_WRITTEN_BY = {"pyspark": version("pyspark"), "delta-spark": version("delta-spark")}


@dataclass
class Kept:
    """A table's history in the archive of that name, which is put at `path`."""

    name: str
    path: Path
    steps: list[tuple[list[str], int]] = field(default_factory=list)
    _at: int = 0

    def __post_init__(self) -> None:
        if not self.archive.exists():
            pytest.fail(f"{self.archive} is not there; write it: {WRITE}=1")
        with tarfile.open(self.archive) as archive:
            archive.extractall(self.path, filter="data")
        history = json.loads((self.path / "history.json").read_text())
        if history["by"] != _WRITTEN_BY:
            pytest.fail(f"{self.archive} is of {history['by']}; write it again: {WRITE}=1")
        (self.path / "history.json").unlink()
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
    """A table's history while it is written; `keep` makes the archive."""

    run: Callable[[str], object]
    latest: Callable[[], int]
    steps: list[tuple[list[str], int]] = field(default_factory=list)

    def commit(self, statements: Sequence[str]) -> int:
        """Run the statements and return how many versions they made."""
        before = self.latest() if self.steps else -1
        for statement in statements:
            self.run(statement)
        versions = self.latest() - before
        self.steps.append((list(statements), versions))
        return versions

    def keep(self, name: str, path: Path) -> None:
        history = path / "history.json"
        steps = [{"statements": each, "versions": versions} for each, versions in self.steps]
        history.write_text(json.dumps({"by": _WRITTEN_BY, "steps": steps}, indent=1))
        archive_of(name).parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive_of(name), "w:xz") as archive:
            for file in sorted(path.rglob("*")):
                if file.is_file():
                    archive.add(file, str(file.relative_to(path)), filter=_clear_owner)
        history.unlink()


def archive_of(name: str) -> Path:
    return GOLDEN / "histories" / f"{name}.tar.xz"


def to_be_written() -> bool:
    return os.environ.get(WRITE) == "1"


def _clear_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
