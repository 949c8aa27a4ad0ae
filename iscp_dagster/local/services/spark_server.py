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
from iscp_dagster.local.spark import ivy, jars, java, s3a
from iscp_dagster.local.spark.server import SparkServer, default_cores, default_memory, java_options
from iscp_dagster.spark.remote import TOKEN_VARIABLE

DELTA = "Delta Lake"
STORES = "Hadoop's S3A"
MODULES = {DELTA: jars.MODULES, STORES: s3a.MODULES}
"""The modules that Spark always needs, and those it needs to read tables in S3."""


def lacking(settings: StackSettings, environ: Mapping[str, str]) -> list[str]:
    """The names in `MODULES` whose jars are missing."""
    where = jars.folder(settings.home, environ)
    return [name for name, modules in MODULES.items() if jars.present(where, modules) is None]


def fetch(settings: StackSettings, name: str, environ: Mapping[str, str]) -> None:
    """Fetch the jars of that name in `MODULES` if any is missing. Raises SetupError on failure."""
    where = jars.folder(settings.home, environ)
    jars.ensure(where, java.find(environ), environ, ivy.fetch, MODULES[name])


def service(settings: StackSettings, environ: Mapping[str, str] = os.environ) -> Service:
    """A warmed Connect server; fetches Delta's jars first if any is missing.

    It reads tables in S3 if the jars for that are there.
    """
    runtime, where = java.find(environ), jars.folder(settings.home, environ)
    delta = jars.ensure(where, runtime, environ, ivy.fetch)
    stores = jars.present(where, s3a.MODULES) or ()
    server = SparkServer(
        java=runtime,
        port=settings.spark_port,
        jars=[*delta, *stores],
        home=settings.home,
        memory=default_memory(environ),
        cores=default_cores(),
        python=sys.executable,
        java_options=java_options(environ),
        more=s3a.settings(environ) if stores else {},
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
        warm=(sys.executable, "-m", "iscp_dagster.spark.warm"),
        warm_environment=child_environment(settings),
        start_seconds=300.0,
        stop_seconds=10.0,
    )
