"""An S3-compatible server (moto) with one bucket, in a separate process."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from iscp_dagster.delta.log.files import open_store
from support.services.clickhouse_servers import START_SECONDS, Warded, answers
from support.services.stack import wait_for

LAKE = "s3://lake"
SECRET = "a secret of tests"
_REQUEST = re.compile(r'"(?:\x1b\[\d+m)*(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP')


def leading_to(port: int) -> dict[str, str]:
    """Return the variables by which delta-rs, and Spark with S3A, find the store."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


@dataclass
class ObjectStore:
    """The store, with the log of its requests."""

    port: int
    log: Path
    warded: Warded
    lake: str = LAKE

    @property
    def environment(self) -> dict[str, str]:
        return leading_to(self.port)

    def asked(self) -> list[tuple[str, str]]:
        """Return (method, path) of each request so far."""
        return _REQUEST.findall(self.log.read_text())

    def remove(self, name: str) -> None:
        """Delete a file of the lake."""
        open_store(self.lake, self.environment).delete_file(name)


@contextmanager
def running_store(folder: Path, port: int) -> Iterator[ObjectStore]:
    """Run it in a separate process: deltalake blocks all threads of this one while it asks."""
    log = folder / "store.log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    store = ObjectStore(port, log, Warded(command, log))
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(url), START_SECONDS, lambda: store.warded.told)
        httpx.put(f"{url}/lake").raise_for_status()
        yield store
    finally:
        store.warded.stop()
