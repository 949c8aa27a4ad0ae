"""The daemon of Python workers: what it forks, and that it ends only without live workers."""

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
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON, "pyspark.worker"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield process, struct.unpack("!i", process.stdout.read(4))[0]
        process.kill()


def gone(process, seconds):
    """Whether the process ends in time."""
    handle = os.pidfd_open(process.pid)
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def test_one_that_nobody_asks_ends(daemon):
    process, _ = daemon
    assert gone(process, 30)


def test_one_whose_worker_lives_stays_and_ends_after_it(daemon):
    process, port = daemon
    with socket.create_connection(("127.0.0.1", port)) as worker:
        pid = struct.unpack("!i", worker.recv(4, socket.MSG_WAITALL))[0]
        assert not gone(process, 1.5)
        os.kill(pid, 0)
    assert gone(process, 30)


def test_what_forks_has_imported_what_tasks_need_and_has_no_other_thread_of_python_s():
    code = (
        "import sys, threading; from iscp_dagster.local.spark import daemon; "
        "daemon.import_modules()"
    )
    code += "; print(threading.active_count(), *sorted(set(daemon.PRELOADED) - set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["1"]


def test_each_worker_draws_random_numbers_of_its_own():
    code = """
import os
from iscp_dagster.local.spark import daemon
daemon.import_modules()
import numpy
for _ in range(2):
    if not os.fork():
        print(numpy.random.rand(), flush=True)
        os._exit(0)
    os.wait()
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert len(set(run.stdout.split())) == 2
