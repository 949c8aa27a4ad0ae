"""A snapshot from an S3-compatible store, a moto server on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from pyarrow.fs import LocalFileSystem, copy_files

from bench import peers
from bench.report import BenchReport
from bench.setting import BenchTable
from bench.shapes import compare_with_peer
from iscp_dagster.delta.log.files import open_store
from iscp_dagster.local.stack.ports import find_free_port

LAKE = "s3://lake/source"
PATIENCE = 60.0


def measure(
    environ: Mapping[str, str], folder: Path, report: BenchReport, rows: int, rounds: int
) -> None:
    setting = BenchTable(environ, folder / "store", rows)
    with run_store(folder):
        copy_files(setting.path, "", LocalFileSystem(), open_store(LAKE, {}))
        setting.path = LAKE
        compare_with_peer(setting, report, "S3", rounds, peers.snapshot_with_delta_rs)
    setting.clean()


@contextmanager
def run_store(folder: Path) -> Iterator[None]:
    """Run the server with a bucket `lake`, and set this process's environment to find it."""
    port = find_free_port()
    url = f"http://127.0.0.1:{port}"
    os.environ |= {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "store.log").open("w") as log, subprocess.Popen(command, stderr=log) as server:
        try:
            _await(url)
            httpx.put(f"{url}/lake").raise_for_status()
            yield
        finally:
            server.terminate()


def _await(url: str) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            httpx.get(url)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"No store answers at {url} after {PATIENCE:.0f} s.")
