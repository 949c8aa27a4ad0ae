"""What docs/invocations.md says: its examples are run, its tables are those of the code."""

import importlib.util
import inspect
import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from http import HTTPStatus

import dagster as dg
import httpx
import pytest
import typer

from durable_invocations.client.client import Client
from durable_invocations.ingress import refusals, tokens
from durable_invocations.ingress.admin import CHANGES
from durable_invocations.ingress.invoking import IngressBounds
from durable_invocations.runtime.owners import SILENT_SECONDS
from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.sql import transaction
from durable_invocations.runtime.sql.store import RETENTION
from durable_invocations.runtime.store.views import Status
from iscp_dagster.cli.main import COMMANDS, load
from runtime_support.endpoints.asgi_servers import uvicorn_of
from runtime_support.runtimes.live_runtime import DEADLINE, until
from support.invocations.runtime_server import runtime_of
from support.paths import DOCS, ROOT

PAGE = (DOCS / "invocations.md").read_text(encoding="utf-8")
SHELL = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def greeting(tmp_path_factory):
    """The page's service, imported from a file of its own."""
    (code,) = re.findall(r'```python title="greeting.py"\n(.*?)```', PAGE, re.DOTALL)
    file = tmp_path_factory.mktemp("greeting") / "greeting.py"
    file.write_text(code)
    spec = importlib.util.spec_from_file_location("greeting", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["greeting"] = module
    spec.loader.exec_module(module)
    yield module.app
    del sys.modules["greeting"]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('log')}/log.sqlite"


@pytest.fixture(scope="module")
def shell(greeting, log, tmp_path_factory):
    """Run lines of the page against servers that stand at the ports it names."""
    environ = {"PATH": "/usr/bin:/bin:/usr/local/bin", "ISCP_LOG_URL": log, "no_proxy": "*"}
    environ["ISCP_HOME"] = str(tmp_path_factory.mktemp("home"))
    with runtime_of(log) as runtime, uvicorn_of(greeting) as service:

        def run(lines, *, terminal=False):
            ran = lines.replace("http://127.0.0.1:4080", runtime)
            ran = ran.replace("http://127.0.0.1:9080", service.url)
            ran = ran.replace("./iscp", f"{sys.executable} -m iscp_dagster.cli.main")
            told = {**environ, "ISCP_INVOCATIONS_URL": runtime}
            done = run_in_terminal(ran, told) if terminal else run_piped(ran, told)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        run.url = runtime
        yield run


def run_piped(lines, environ):
    return subprocess.run(
        ["bash", "-ec", lines],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
        timeout=60,
        cwd=ROOT,
    )


def run_in_terminal(lines, environ):
    """Run the lines with a terminal of 80 columns as stdout."""
    ours, theirs = pty.openpty()
    shown = {**environ, "COLUMNS": "80", "TERM": "dumb"}
    with subprocess.Popen(
        ["bash", "-ec", lines], stdout=theirs, stderr=subprocess.STDOUT, env=shown, cwd=ROOT
    ) as process:
        os.close(theirs)
        said = b""
        # Linux ends a terminal that nobody writes to any more with an error.
        with suppress(OSError):
            while chunk := os.read(ours, 4096):
                said += chunk
    os.close(ours)
    stdout = said.decode().replace("\r\n", "\n")
    return subprocess.CompletedProcess(lines, process.returncode, stdout, "")


def documents(text):
    """JSON documents that stand one after the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        found.append(document)
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


def test_the_first_invocations_print_what_the_page_says(shell):
    (lines,) = [each for each in SHELL if "/admin/deployments" in each]
    registered, hello, total = documents(shell(lines))
    assert [each["name"] for each in registered["services"]] == ["Counter", "Greeter"]
    assert f"print `{json.dumps(hello)}` and `{total}`" in PAGE


def test_a_link_of_dagsters_pages_leads_to_an_invocation_and_invokes_nothing(shell):
    """As that of a service consumer's materialization does."""
    followed = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}
    followed |= {"Sec-Fetch-Dest": "document"}
    with Client(shell.url) as client:
        id_ = client.send("Greeter", "greet", "Ada").id
    page = f"{shell.url}/admin/invocations/{id_}"
    assert httpx.get(page, headers=followed, trust_env=False).json()["id"] == id_
    framed = {**followed, "Sec-Fetch-Dest": "iframe"}
    assert httpx.get(page, headers=framed, trust_env=False).status_code == 403
    place = f"{shell.url}/Greeter/greet"
    assert httpx.post(place, headers=followed, json="x", trust_env=False).status_code == 403
    assert httpx.get(place, headers=followed, trust_env=False).status_code == 405


def test_an_idempotency_key_and_a_delay_are_as_the_page_says(shell):
    (lines,) = [each for each in SHELL if "idempotency-key" in each]
    sent, hello, later = documents(shell(lines))
    assert f'{{"invocationId": "inv_1…", "status": "{sent["status"]}"}}' in PAGE
    assert hello == "Hello Ada"
    with Client(shell.url) as client:
        assert client.attach(sent["invocationId"]) == "Hello Ada"
        assert client.attach(later["invocationId"], seconds=DEADLINE) == 7


def test_an_invocation_that_waits_is_shown_and_resolved(shell):
    (lines,) = [each for each in SHELL if "invocations resolve" in each]
    with Client(shell.url) as client:
        id_ = client.send("Greeter", "approve", "order 7").id
        until(lambda: client.invocation(id_)["status"] == "suspended")
        awakeable = client.invocation(id_)["journal"][1]["detail"]["id"]
        filled = lines.replace("inv_1…", id_).replace("prom_1…", awakeable)
        said = shell(filled, terminal=True)
        assert client.attach(id_, seconds=DEADLINE) == "order 7: yes"
    (drawn,) = re.findall(r"```text\n(#.*?)```", PAGE, re.DOTALL)
    assert outline(drawn) == outline(said[said.index("#") :])[: len(outline(drawn))]
    assert f"{awakeable} is resolved." in said


def test_the_runtime_runs_alone_until_it_is_told_to_end(tmp_path):
    """Without a token it listens on loopback alone, and ends without a word."""
    command = [sys.executable, "-m", "iscp_dagster.cli.main", "invocations", "serve", "--port", "0"]
    own = {"ISCP_LOG_URL": f"sqlite:///{tmp_path}/log.sqlite", "ISCP_HOME": str(tmp_path)}
    with subprocess.Popen(
        [*command, "--no-own-services", "--keep", "7d"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", **own},
        cwd=ROOT,
    ) as process:
        try:
            url = process.stdout.readline().split()[-1]
            with Client(url) as client:
                client.check_health()
                assert client.services() == []
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    assert url.startswith("http://127.0.0.1:")
    assert (out, err) == ("", "")
    assert process.returncode in {0, -signal.SIGTERM}


def test_an_asset_invokes_once_for_a_run_and_its_retries(shell, monkeypatch):
    (code,) = re.findall(r'```python title="greetings.py"\n(.*?)```', PAGE, re.DOTALL)
    monkeypatch.setenv("ISCP_INVOCATIONS_URL", shell.url)
    monkeypatch.delenv("ISCP_INVOCATIONS_TOKEN", raising=False)
    space = {}
    exec(compile(code, "greetings.py", "exec", dont_inherit=True), space)
    with dg.DagsterInstance.ephemeral() as instance:
        run = dg.materialize([space["greeting"]], instance=instance)
    assert run.output_for_node("greeting") == "Hello Ada"
    with Client(shell.url) as client:
        made = client.send("Greeter", "greet", "Ada", idempotency_key=run.run_id)
    assert not made.is_new


def test_all_that_is_paused_goes_on(shell, monkeypatch):
    (code,) = re.findall(r'```python title="resume_paused.py"\n(.*?)```', PAGE, re.DOTALL)
    monkeypatch.setenv("ISCP_INVOCATIONS_URL", shell.url)
    with Client(shell.url) as client:
        # More than a list has by default.
        sent = [client.send("Greeter", "greet", "Ada", delay=3_600).id for _ in range(3)]
        waiting = [client.send("Greeter", "approve", "x").id for _ in range(101)]
        paused = [id_ for id_ in waiting if client.pause(id_)]
        assert len(paused) == len(waiting)
        exec(code, {})
        left = client.invocations(status="paused", limit=10_000)
        assert left == []
        assert client.invocation(sent[0])["status"] == "scheduled"
        for id_ in (*sent, *waiting):
            client.kill(id_)


def test_the_table_of_the_clients_methods_is_that_of_the_code():
    table = PAGE.partition("| method | what it does |\n")[2].partition("\n\n")[0]
    said = re.findall(
        r"`(\w+)\(([^)]*)\)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))
    )
    public = {name for name in vars(Client) if not name.startswith("_")}
    assert {name for name, _ in said} == public - {
        "of",
        "close",
        "change_invocation",
        "check_health",
    }
    for name, arguments in said:
        signature = inspect.signature(getattr(Client, name))
        keywords = set(re.findall(r"(\w+)=", arguments))
        free = {"service", "handler", "key", "status"} if name == "invocations" else set()
        assert keywords <= {*signature.parameters, *free}


def outline(table):
    """The words of a table of a journal, but for its times and ids."""
    known = re.sub(r"\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}|(?<=prom_1)\S+", "", table)
    return known.split()


def test_every_status_of_an_answer_that_the_code_gives_is_on_the_page():
    (table,) = re.findall(r"\| status \| why \|\n\|---\|---\|\n(.*?)\n\n", PAGE, re.DOTALL)
    listed = {int(each) for each in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    held = {each for each in vars(refusals).values() if isinstance(each, int)}
    # The guard refuses foreign pages, the router a method, and the store what a status forbids.
    assert listed == {
        *held,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.METHOD_NOT_ALLOWED,
        transaction.CONFLICT,
    }


def test_every_status_of_an_invocation_is_on_the_page():
    (table,) = re.findall(r"\| status \| an invocation.*?\n\n", PAGE, re.DOTALL)
    assert re.findall(r"^\| ([a-z ]+) \| (?!an)", table, re.MULTILINE) == [
        each.label for each in Status
    ]


def test_every_command_and_change_is_on_the_page():
    commands = load("invocations", COMMANDS["invocations"]).commands
    named = set(re.findall(r"`([a-z]+)[^`]*`", PAGE))
    assert set(commands) <= named
    assert {f"/{change}`" for change in CHANGES if f"/{change}`" not in PAGE} == set()
    options = {
        name for each in commands["serve"].params for name in each.opts + each.secondary_opts
    }
    said = set(re.findall(r"`(--[a-z-]+)", PAGE.partition("## Running it")[2]))
    assert said <= options
    assert isinstance(commands["serve"], typer.core.TyperCommand)


def test_the_numbers_are_those_of_the_code():
    policy, bounds = RetryPolicy(), IngressBounds()
    for said in (
        f"made again after {policy.initial * 1000:.0f} ms",
        {2.0: "then after twice as long each time"}[policy.factor],
        {60.0: "up to a minute"}[policy.cap],
        f"after {policy.attempts} attempts",
        {1: "is kept for a day"}[RETENTION.days],
        f"{bounds.waiting:,} requests wait",
        f"more than {bounds.body // 1024**2} MiB",
        f"at least {tokens.SHORTEST} characters",
        {10.0: "within about ten seconds"}[SILENT_SECONDS],
    ):
        assert said in PAGE.replace("\n", " "), said
