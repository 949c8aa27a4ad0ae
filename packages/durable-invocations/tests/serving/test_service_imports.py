"""The modules that Python imports for a module that declares services."""

from __future__ import annotations

import subprocess
import sys

import durable_invocations as exported
from durable_invocations.serving.declarations.serde import BYTES

HEAVY = {
    *("dagster", "pyspark", "sqlalchemy", "clickhouse_connect", "chdb", "deltalake", "pyarrow"),
    *("pandas", "httpx", "graphql", "uvicorn", "hypercorn"),
}


def list_packages(code: str) -> set[str]:
    """The packages that are imported by this code."""
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return {module.partition(".")[0] for module in run.stdout.split()}


def test_the_package_alone_imports_neither_server_nor_protocol():
    packages = list_packages("import durable_invocations")
    assert not packages & (HEAVY | {"starlette", "google", "pydantic"})


def test_serving_imports_none_of_the_heavy_packages():
    names = ", ".join(sorted({*exported.__all__} - {"Client", "runtime_app"}))
    packages = list_packages(f"from durable_invocations import {names}")
    assert not packages & HEAVY
    assert "starlette" in packages


def test_every_exported_name_exists():
    assert set(exported.__all__) <= set(dir(exported))
    names = set(exported.__all__) - {"BYTES"}
    assert all(getattr(exported, name).__name__ == name for name in names)
    assert exported.BYTES is BYTES
