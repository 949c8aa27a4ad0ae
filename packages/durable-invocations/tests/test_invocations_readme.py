"""The first example of the README does what it says, in the processes that it starts."""

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
    """Serve an app as the README does, on a port of its own; yield address and process."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        command = [sys.executable, "-m", "uvicorn", app, "--fd", str(place.fileno())]
        with subprocess.Popen(
            [*command, "--log-level", "error"], cwd=folder, pass_fds=[place.fileno()]
        ) as process:
            try:
                yield f"http://127.0.0.1:{place.getsockname()[1]}", process
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
        asked = {"timeout": SECONDS}
        made = httpx.post(f"{url}/admin/deployments", json={"uri": handlers}, **asked)
        assert made.is_success, made.text
        answer = httpx.post(f"{url}/Greeter/greet", json="Ada", **asked)
        assert answer.json() == "Hello, Ada, of 3 letters!"
        with Client(url) as client:
            again = {"idempotency_key": "ada-1", "seconds": SECONDS}
            assert client.call("Greeter", "greet", "Ada", **again) == "Hello, Ada, of 3 letters!"


def test_a_runtime_that_is_killed_goes_on_with_what_it_kept(folder):
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
