"""The Spark Connect server as a child of the stack."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

from iscp_dagster.local.services.service import Service, port_probe
from iscp_dagster.local.services.settings import (
    SPARK,
    StackSettings,
    child_environment,
    without_password,
)
from iscp_dagster.local.services.spark_health import SparkHealth
from iscp_dagster.local.spark import ivy, jars, java
from iscp_dagster.local.spark.server import SparkServer, default_cores, default_memory, java_options
from iscp_dagster.spark.remote import TOKEN_VARIABLE


def needs_fetch(settings: StackSettings, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether Delta's jars are still to be fetched."""
    return jars.present(jars.folder(settings.home, environ)) is None


def fetch(settings: StackSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Fetch Delta's jars when they are not there; SetupError when they cannot be had."""
    jars.ensure(jars.folder(settings.home, environ), java.find(environ), environ, ivy.fetch)


def service(settings: StackSettings, environ: Mapping[str, str] = os.environ) -> Service:
    """A warmed Connect server; fetches Delta's jars first when they are not there."""
    runtime = java.find(environ)
    server = SparkServer(
        java=runtime,
        port=settings.spark_port,
        jars=jars.ensure(jars.folder(settings.home, environ), runtime, environ, ivy.fetch),
        home=settings.home,
        memory=default_memory(environ),
        cores=default_cores(),
        python=sys.executable,
        java_options=java_options(environ),
    )
    shutil.rmtree(server.local, ignore_errors=True)
    server.prepare()
    return Service(
        name=SPARK,
        command=server.command(),
        address=without_password(settings.spark),
        environment=server.environment(child_environment(settings))
        | {TOKEN_VARIABLE: settings.secrets.spark_token},
        folder=settings.home,
        log=settings.logs / "spark.log",
        probe=port_probe(settings.spark_port),
        check=SparkHealth(settings.spark).problem,
        warm=(sys.executable, "-m", "iscp_dagster.spark.warm", str(settings.scratch)),
        warm_environment=child_environment(settings),
        start_seconds=300.0,
        stop_seconds=10.0,
    )
