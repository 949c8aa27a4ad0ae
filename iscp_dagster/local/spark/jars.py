"""Fetches the jars that Spark lacks, such as Delta Lake's, once, with the Ivy of pyspark."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from iscp_dagster.local.spark.java import Java
from iscp_dagster.model.errors import SetupError

FOLDER_VARIABLE = "ISCP_JARS"
SETTINGS_VARIABLE = "ISCP_IVY_SETTINGS"


@dataclass(frozen=True, kw_only=True)
class Module:
    """A Maven module."""

    group: str
    name: str
    version: str

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.jar"


_DELTA = "4.4.0"
_UNITY = "0.6.0"
# The modules that delta-spark needs on a full Spark; its POM also names Hadoop clients.
MODULES = (
    Module(group="io.delta", name="delta-spark_4.2_2.13", version=_DELTA),
    Module(group="io.delta", name="delta-storage", version=_DELTA),
    Module(group="io.delta", name="delta-kernel-api", version=_DELTA),
    Module(group="io.delta", name="delta-kernel-defaults", version=_DELTA),
    Module(group="io.delta", name="delta-kernel-unitycatalog", version=_DELTA),
    Module(group="io.unitycatalog", name="unitycatalog-client", version=_UNITY),
    Module(group="io.unitycatalog", name="unitycatalog-hadoop", version=_UNITY),
)

Fetch = Callable[[Java, Sequence[Module], Path, Mapping[str, str]], None]


def get_folder(home: Path, environ: Mapping[str, str]) -> Path:
    """Where the jars are kept: `ISCP_JARS`, or `jars` in the home."""
    folder = environ.get(FOLDER_VARIABLE)
    return Path(folder).expanduser().absolute() if folder else home / "jars"


def find_jars(folder: Path, modules: Sequence[Module] = MODULES) -> tuple[Path, ...] | None:
    """The jars' paths, or None when one is missing."""
    paths = tuple(folder / module.file for module in modules)
    return paths if all(path.is_file() for path in paths) else None


def ensure(
    folder: Path,
    java: Java,
    environ: Mapping[str, str],
    fetch: Fetch,
    modules: Sequence[Module] = MODULES,
) -> tuple[Path, ...]:
    """The jars' paths, fetched if one is missing. Safe to interrupt, repeat and run twice at once.

    Raises SetupError when they cannot be fetched.
    """
    if jars := find_jars(folder, modules):
        return jars
    folder.mkdir(parents=True, exist_ok=True)
    with _lock_folder(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as fresh:
        if jars := find_jars(folder, modules):
            return jars
        fetch(java, modules, Path(fresh), environ)
        return tuple(_keep_jar(Path(fresh) / module.file, folder) for module in modules)


def _keep_jar(jar: Path, folder: Path) -> Path:
    if not jar.is_file():
        raise SetupError(f"{jar.name} was not found in the Maven repository; {describe_remedy()}")
    return Path(shutil.move(jar, folder / jar.name))


def describe_remedy() -> str:
    """What a person can do when the jars cannot be fetched."""
    return (
        "check the network and the proxy variables, name a company mirror with an Ivy settings "
        f"file in {SETTINGS_VARIABLE}, or put the jars into the folder that {FOLDER_VARIABLE} names"
    )


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Let one process at a time fetch into a folder."""
    file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
