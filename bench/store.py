"""A snapshot from an S3-compatible store, a server of moto's on this machine."""

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
from bench.report import Report
from bench.setting import Setting
from iscp_dagster import Mirror
from iscp_dagster.delta.log.files import opened
from iscp_dagster.local.stack.ports import free_port

LAKE = "s3://lake/source"
PATIENCE = 60.0
OURS, RUST = "S3: this pipeline", "S3: delta-rs"


def measure(
    environ: Mapping[str, str], folder: Path, report: Report, rows: int, rounds: int
) -> None:
    setting = Setting(environ, folder / "store", rows)
    with running(folder):
        copy_files(setting.path, "", LocalFileSystem(), opened(LAKE, {}))
        setting.path = LAKE
        for number in range(rounds + 1):
            scratch = report if number else Report("warm-up")
            source = setting.source(Mirror())
            with scratch.timed(OURS):
                delivered = setting.synchronize(source)
            assert delivered == rows, delivered
            setting.forget(source)
            table, shape = setting.peer_table()
            with scratch.timed(RUST):
                peers.delta_rs_snapshot(setting, shape)
            assert setting.count(table) == rows
    report.row(OURS, rows)
    report.row(RUST, rows)
    report.ratio("S3 against delta-rs", report.median(RUST) / report.median(OURS), "at least 1")
    setting.clean()


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """The server with a bucket `lake`, as this process's environment then says."""
    port = free_port()
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
