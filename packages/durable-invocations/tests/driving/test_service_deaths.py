"""Service endpoints that are killed with kill -9 in the middle of a stream."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.store.views import Status
from runtime_support.endpoints import killable_service
from runtime_support.errors import assert_names
from runtime_support.runtimes.sqlite_runtime import running, until

SERVERS = {
    "uvicorn": ["--port", "{}", "--no-access-log"],
    "hypercorn": ["--workers", "0", "--bind", "127.0.0.1:{}"],
}
PATIENT = RetryPolicy(initial=0.05, factor=1, cap=0.05, attempts=None)


@contextmanager
def serve_service(server, folder, port=0):
    """A process of the service, and its port."""
    command = [sys.executable, "-m", server, "killable_service:app"]
    command += [option.format(port) for option in SERVERS[server]]
    cwd = Path(killable_service.__file__).parent
    environment = os.environ | {"MORTAL_FOLDER": str(folder)}
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            line = next(line for line in process.stderr if "unning on http" in line)
            yield process, int(line.partition("127.0.0.1:")[2].split()[0])
        finally:
            process.kill()


def read_effects(folder):
    path = folder / "effects"
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("server", SERVERS)
async def test_an_invocation_survives_the_death_of_its_service_in_a_step(tmp_path, server):
    """Acknowledged steps are not executed again; the interrupted one is."""
    async with running(tmp_path, policy=PATIENT) as driver:
        with serve_service(server, tmp_path) as (process, port):
            url = f"http://127.0.0.1:{port}"
            await driver.runtime.register(url)
            id_ = await driver.submit("Mortal/steps")
            await until(lambda: "wait" in read_effects(tmp_path))
            process.send_signal(signal.SIGKILL)
            waiting = await driver.until(id_, Status.BACKING_OFF)
        (tmp_path / "go").touch()
        with serve_service(server, tmp_path, port):
            result = await driver.end(id_)
    assert json.loads(result.value) == ["one", "waited", "two"]
    assert read_effects(tmp_path) == ["one", "wait", "wait", "two"]
    assert_names(waiting.error.message, url)
