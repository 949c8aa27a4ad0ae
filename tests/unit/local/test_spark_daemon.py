"""The daemon of Python workers: its forks, and that it ends only without live workers."""

import os
import select
import socket
import struct
import subprocess
import sys

import pytest

DAEMON = "from iscp_dagster.local.spark.daemon import main; main(0.3, 0.02)"
NAMED = "0123456789"


@pytest.fixture
def daemon():
    """Run a daemon that ends after 0.3 seconds without workers; give it and its port."""
    environment = os.environ | {"PYTHON_WORKER_FACTORY_SECRET": NAMED, "SPARK_REUSE_WORKER": "1"}
    command = [sys.executable, "-c", DAEMON, "pyspark.worker"]
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE) | {"stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        yield process, struct.unpack("!i", process.stdout.read(4))[0]
        process.kill()


def ends_within(process, seconds):
    """Return whether the process ends in time."""
    handle = os.pidfd_open(process.pid)
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def test_a_daemon_without_requests_ends(daemon):
    process, _ = daemon
    assert ends_within(process, 30)


def test_a_daemon_ends_only_after_its_last_worker(daemon):
    process, port = daemon
    with socket.create_connection(("127.0.0.1", port)) as worker:
        pid = struct.unpack("!i", worker.recv(4, socket.MSG_WAITALL))[0]
        assert not ends_within(process, 1)
        os.kill(pid, 0)
    assert ends_within(process, 30)


def test_the_daemon_has_one_thread_and_the_tasks_modules_and_each_worker_random_numbers():
    code = """
import os, sys, threading
from iscp_dagster.local.spark import daemon
daemon.import_modules()
print(threading.active_count(), sorted(set(daemon.PRELOADED) - set(sys.modules)), flush=True)
import numpy
for _ in range(2):
    if not os.fork():
        print(numpy.random.rand(), flush=True)
        os._exit(0)
    os.wait()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    state, *drawn = done.stdout.splitlines()
    assert state == "1 []"
    assert len(set(drawn)) == 2
