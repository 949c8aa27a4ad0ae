"""The Spark Connect server as a child of the stack."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

from iscp_dagster.local.services.service import Service, make_port_probe
from iscp_dagster.local.services.settings import (
    SPARK,
    StackSettings,
    build_child_environment,
    redact_address,
)
from iscp_dagster.local.services.spark_health import SparkHealth
from iscp_dagster.local.spark import ivy, jars, java, s3a
from iscp_dagster.local.spark.server import (
    SparkServer,
    get_default_cores,
    get_default_memory,
    parse_java_options,
)
from iscp_dagster.spark.remote import TOKEN_VARIABLE

DELTA = "Delta Lake"
STORES = "Hadoop's S3A"
MODULES = {DELTA: jars.MODULES, STORES: s3a.MODULES}
"""The modules that Spark always needs, and those it needs to read tables in S3."""


def find_missing_modules(settings: StackSettings, environ: Mapping[str, str]) -> list[str]:
    """The names in `MODULES` whose jars are missing."""
    folder = jars.get_folder(settings.home, environ)
    return [name for name, modules in MODULES.items() if jars.find_jars(folder, modules) is None]


def fetch(settings: StackSettings, name: str, environ: Mapping[str, str]) -> None:
    """Fetch the jars of that name in `MODULES` if any is missing. Raises SetupError on failure."""
    folder = jars.get_folder(settings.home, environ)
    jars.ensure(folder, java.find(environ), environ, ivy.fetch, MODULES[name])


def build_service(settings: StackSettings, environ: Mapping[str, str] = os.environ) -> Service:
    """A warmed Connect server; fetches Delta's jars first if any is missing.

    It reads tables in S3 if the jars for that are there.
    """
    runtime, folder = java.find(environ), jars.get_folder(settings.home, environ)
    delta_jars = jars.ensure(folder, runtime, environ, ivy.fetch)
    s3_jars = jars.find_jars(folder, s3a.MODULES) or ()
    server = SparkServer(
        java=runtime,
        port=settings.spark_port,
        jars=[*delta_jars, *s3_jars],
        home=settings.home,
        memory=get_default_memory(environ),
        cores=get_default_cores(),
        python=sys.executable,
        java_options=parse_java_options(environ),
        extra_settings=s3a.build_settings(environ) if s3_jars else {},
    )
    shutil.rmtree(server.local, ignore_errors=True)
    server.prepare()
    return Service(
        name=SPARK,
        command=server.build_command(),
        address=redact_address(settings.spark_address_with_token),
        environment=server.build_environment(build_child_environment(settings))
        | {TOKEN_VARIABLE: settings.secrets.spark_token},
        folder=settings.home,
        log=settings.logs / "spark.log",
        probe=make_port_probe(settings.spark_port),
        check=SparkHealth(settings.spark_address_with_token).find_problem,
        warm=(sys.executable, "-m", "iscp_dagster.spark.warm"),
        warm_environment=build_child_environment(settings),
        start_seconds=300.0,
        stop_seconds=10.0,
    )
