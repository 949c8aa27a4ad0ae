"""A Spark cluster: a master, workers on hosts of their own, and a Connect server as the driver."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from iscp_dagster.local.spark import ivy, jars, java
from iscp_dagster.local.spark.server import SparkServer, find_pyspark_folder
from iscp_dagster.local.stack.ports import find_free_port, is_free
from support.services.keeper import Warded, made
from support.services.stack import JAVA_OPTIONS, QUICK, clean_environment, jars_folder, wait_for

START_SECONDS = 120.0
HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
"""Loopback addresses; Spark starts no second attempt of a task on the host of the first."""
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
SMALL = ("-XX:+UseSerialGC", *QUICK.split())
"""Java options for processes that do little."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.task.duration.threshold": "2s",
}


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    remote: str
    folder: Path

    def executors(self) -> list[int]:
        """Return the process ids of its executors."""
        return [
            process.pid
            for process in psutil.process_iter(["cmdline", "cwd"])
            if EXECUTOR in (process.info["cmdline"] or ())
            and self.folder in Path(process.info["cwd"] or "/").parents
        ]


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Run a cluster with an executor of one core on each host, until the end of the block."""
    runtime = java.find(os.environ)
    port, connect = find_free_port(), find_free_port()
    master = f"spark://127.0.0.1:{port}"
    spark_jars = f"{find_pyspark_folder() / 'jars'}/*"
    small = [str(runtime.program), *runtime.list_options(), "-Xmx256m", *SMALL]
    small += ["-cp", spark_jars]
    environment = {
        "SPARK_HOME": str(find_pyspark_folder()),
        # bin/load-spark-env.sh sets this for a worker.
        "SPARK_SCALA_VERSION": "2.13",
        "JAVA_HOME": str(_java_home(made(folder / "java"), runtime)),
        "SPARK_LOCAL_DIRS": str(made(folder / "local")),
    }
    with ExitStack() as stack:

        def start(name: str, host: str, command: list[str], **more: str) -> Warded:
            variables = environment | {"SPARK_LOCAL_IP": host} | more
            process = Warded(command, made(folder / name) / "log", **variables)
            stack.callback(process.stop)
            return process

        address = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        process = start("master", "127.0.0.1", [*small, MASTER, *address])
        _wait_until(lambda: not is_free(port), process)
        for host in HOSTS:
            options = ["--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0"]
            options += ["--work-dir", str(folder / f"worker-{host}")]
            start(f"at-{host}", host, [*small, WORKER, *options, master])
        delta = jars.ensure(jars_folder(), runtime, os.environ, ivy.fetch)
        server = _make_server(runtime, connect, folder, delta)
        variables = server.build_environment(clean_environment(folder)).items()
        process = start(
            "connect",
            "127.0.0.1",
            list(_use_master(master, server.build_command(), delta)),
            **{name: value for name, value in variables if os.environ.get(name) != value},
        )
        cluster = Cluster(f"sc://127.0.0.1:{connect}", folder)
        _wait_until(lambda: not is_free(connect), process)
        _wait_until(lambda: len(cluster.executors()) == len(HOSTS), process)
        yield cluster


def _wait_until(is_ready: Callable[[], bool], process: Warded) -> None:
    def check() -> bool:
        assert process.runs(), process.told
        return is_ready()

    wait_for(check, START_SECONDS, lambda: process.told, every=0.05)


def _make_server(runtime: java.Java, port: int, folder: Path, delta: Sequence[Path]) -> SparkServer:
    server = SparkServer(
        java=runtime,
        port=port,
        jars=delta,
        home=made(folder / "home"),
        memory="1g",
        cores=2,
        python=sys.executable,
        java_options=JAVA_OPTIONS.split(),
    )
    server.prepare()
    return server


def _use_master(master: str, command: tuple[str, ...], delta: Sequence[Path]) -> Iterator[str]:
    """Yield the command with another master, and the settings that its executors need."""
    more = SPECULATION | {
        # With it a standalone cluster would need a shared secret.
        "spark.authenticate": "false",
        "spark.executor.memory": "600m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": " ".join(SMALL),
        "spark.jars": ",".join(map(str, delta)),
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    for part in command:
        if part == "spark-internal":
            for name, value in more.items():
                yield from ("--conf", f"{name}={value}")
        yield master if part.startswith("local[") else part


def _java_home(folder: Path, runtime: java.Java) -> Path:
    """Make a Java home whose `java` drops Spark's option for a module that this Java lacks."""
    program = made(folder / "bin") / "java"
    missing = "" if runtime.vector else "--add-modules=jdk.incubator.vector"
    program.write_text(
        f"""#!/bin/bash
kept=()
for each in "$@"; do
    [ "$each" = "{missing}" ] || kept+=("$each")
done
exec {shlex.quote(str(runtime.program))} "${{kept[@]}}"
"""
    )
    program.chmod(0o755)
    return folder
