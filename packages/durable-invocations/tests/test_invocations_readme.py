"""The first example of the README does what the README says, in processes of its own."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from durable_invocations import Client
from durable_invocations.errors import UnavailableError

SECONDS = 60


def write_files(folder):
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    for name, body in re.findall(
        r'^```python title="(\S+)"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL
    ):
        (folder / name).write_text(body, encoding="utf-8")


@contextmanager
def serving(folder, app):
    """Serve an app as the README does, but on a free port; the address and the process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-m", "uvicorn", app, "--fd", str(listening.fileno())]
        with subprocess.Popen(
            [*command, "--log-level", "error"], cwd=folder, pass_fds=[listening.fileno()]
        ) as process:
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}", process
            finally:
                process.kill()


@pytest.fixture
def folder(tmp_path):
    write_files(tmp_path)
    return tmp_path


def test_ada_is_greeted_by_http_and_from_python(folder):
    with (
        serving(folder, "greeter:app") as (handlers, _),
        serving(folder, "runtime:app") as (url, _),
    ):
        registered = httpx.post(f"{url}/admin/deployments", json={"uri": handlers}, timeout=SECONDS)
        assert registered.is_success, registered.text
        answer = httpx.post(f"{url}/Greeter/greet", json="Ada", timeout=SECONDS)
        assert answer.json() == "Hello, Ada, of 3 letters!"
        with Client(url) as client:
            options = {"idempotency_key": "ada-1", "seconds": SECONDS}
            assert client.call("Greeter", "greet", "Ada", **options) == "Hello, Ada, of 3 letters!"


def test_a_runtime_that_was_killed_continues_its_invocations(folder):
    with serving(folder, "greeter:app") as (handlers, _):
        with serving(folder, "runtime:app") as (url, process), Client(url) as client:
            client.register(handlers)
            sent = client.send("Greeter", "greet", "Ada")
            os.kill(process.pid, signal.SIGKILL)
            process.wait(SECONDS)
        with pytest.raises(UnavailableError), Client(url) as client:
            client.check_health()
        with serving(folder, "runtime:app") as (url, _), Client(url) as client:
            assert client.attach(sent.id, seconds=SECONDS) == "Hello, Ada, of 3 letters!"
