"""What a module that declares services makes Python import."""

from __future__ import annotations

import subprocess
import sys

import durable_invocations as exported
from durable_invocations.serving.declarations.serde import BYTES

HEAVY = {
    *("dagster", "pyspark", "sqlalchemy", "clickhouse_connect", "chdb", "deltalake", "pyarrow"),
    *("pandas", "httpx", "graphql", "uvicorn", "hypercorn"),
}


def loaded_by(code: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(run.stdout.split())


def test_the_package_alone_brings_neither_server_nor_protocol():
    loaded = {each.partition(".")[0] for each in loaded_by("import durable_invocations")}
    assert not loaded & (HEAVY | {"starlette", "google", "pydantic"})


def test_serving_brings_nothing_of_the_rest():
    names = ", ".join(sorted({*exported.__all__} - {"Client", "runtime_app"}))
    loaded = loaded_by(f"from durable_invocations import {names}")
    assert not {each.partition(".")[0] for each in loaded} & HEAVY
    assert "starlette" in loaded


def test_every_exported_name_is_there():
    assert set(exported.__all__) <= set(dir(exported))
    named = set(exported.__all__) - {"BYTES"}
    assert all(getattr(exported, name).__name__ == name for name in named)
    assert exported.BYTES is BYTES
