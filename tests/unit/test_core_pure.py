"""The core stays pure."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import iscp_dagster.core

EDGES = {"dagster", "pyspark", "sqlalchemy", "clickhouse_connect", "chdb", "deltalake", "pyarrow"}


def test_the_core_imports_no_edge():
    modules = [
        f"iscp_dagster.core.{m.name}" for m in pkgutil.iter_modules(iscp_dagster.core.__path__)
    ]
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {module.partition(".")[0] for module in run.stdout.split()}
    assert not loaded & EDGES
    assert "iscp_dagster.core.triggers" in run.stdout
