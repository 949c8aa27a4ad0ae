"""docs/invocations.md: its examples run, and its tables and numbers are the code's."""

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
from support.errors import assert_names
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
            script = lines.replace("http://127.0.0.1:4080", runtime)
            script = script.replace("http://127.0.0.1:9080", service.url)
            script = script.replace("./iscp", f"{sys.executable} -m iscp_dagster.cli.main")
            variables = {**environ, "ISCP_INVOCATIONS_URL": runtime}
            run_script = run_in_terminal if terminal else run_piped
            result = run_script(script, variables)
            assert result.returncode == 0, result.stdout + result.stderr
            return result.stdout

        run.url = runtime
        yield run


@pytest.fixture
def client(shell):
    with Client(shell.url) as client:
        yield client


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
        output = b""
        # Linux ends a terminal that nobody writes to any more with an error.
        with suppress(OSError):
            while chunk := os.read(ours, 4096):
                output += chunk
    os.close(ours)
    stdout = output.decode().replace("\r\n", "\n")
    return subprocess.CompletedProcess(lines, process.returncode, stdout, "")


def parse_documents(text):
    """Return the JSON documents that stand one after the other."""
    decoder, documents = json.JSONDecoder(), []
    while text:
        document, end = decoder.raw_decode(text)
        documents.append(document)
        text = text[end:].lstrip()
    return documents


def find_lines(part):
    """Return the one block of commands with that part."""
    (lines,) = [block for block in SHELL if part in block]
    return lines


def test_the_first_invocations_print_what_the_page_says(shell):
    registered, hello, total = parse_documents(shell(find_lines("/admin/deployments")))
    assert [service["name"] for service in registered["services"]] == ["Counter", "Greeter"]
    assert f"print `{json.dumps(hello)}` and `{total}`" in PAGE


def test_a_link_of_dagsters_pages_leads_to_an_invocation_and_invokes_nothing(shell, client):
    """Such as the link of a service consumer's materialization."""
    headers = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}
    headers |= {"Sec-Fetch-Dest": "document"}
    id_ = client.send("Greeter", "greet", "Ada").id
    page = f"{shell.url}/admin/invocations/{id_}"
    assert httpx.get(page, headers=headers, trust_env=False).json()["id"] == id_
    framed = {**headers, "Sec-Fetch-Dest": "iframe"}
    assert httpx.get(page, headers=framed, trust_env=False).status_code == 403
    handler = f"{shell.url}/Greeter/greet"
    assert httpx.post(handler, headers=headers, json="x", trust_env=False).status_code == 403
    assert httpx.get(handler, headers=headers, trust_env=False).status_code == 405


def test_an_idempotency_key_and_a_delay_work_as_the_page_says(shell, client):
    sent, hello, later = parse_documents(shell(find_lines("idempotency-key")))
    assert f'{{"invocationId": "inv_1…", "status": "{sent["status"]}"}}' in PAGE
    assert hello == "Hello Ada"
    assert client.attach(sent["invocationId"]) == "Hello Ada"
    assert client.attach(later["invocationId"], seconds=DEADLINE) == 7


def test_a_waiting_invocation_is_shown_and_resolved(shell, client):
    id_ = client.send("Greeter", "approve", "order 7").id
    until(lambda: client.invocation(id_)["status"] == "suspended")
    awakeable = client.invocation(id_)["journal"][1]["detail"]["id"]
    lines = find_lines("invocations resolve").replace("inv_1…", id_).replace("prom_1…", awakeable)
    output = shell(lines, terminal=True)
    assert client.attach(id_, seconds=DEADLINE) == "order 7: yes"
    (drawn,) = re.findall(r"```text\n(#.*?)```", PAGE, re.DOTALL)
    words = list_words(drawn)
    assert list_words(output[output.index("#") :])[: len(words)] == words
    assert_names(output, awakeable)


def test_the_runtime_runs_alone_until_it_is_terminated(tmp_path):
    """Without a token it listens on loopback alone, and ends without output."""
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


def test_an_asset_invokes_once_for_a_run_and_its_retries(shell, client, monkeypatch):
    (code,) = re.findall(r'```python title="greetings.py"\n(.*?)```', PAGE, re.DOTALL)
    monkeypatch.setenv("ISCP_INVOCATIONS_URL", shell.url)
    monkeypatch.delenv("ISCP_INVOCATIONS_TOKEN", raising=False)
    names = {}
    exec(compile(code, "greetings.py", "exec", dont_inherit=True), names)
    with dg.DagsterInstance.ephemeral() as instance:
        run = dg.materialize([names["greeting"]], instance=instance)
    assert run.output_for_node("greeting") == "Hello Ada"
    assert not client.send("Greeter", "greet", "Ada", idempotency_key=run.run_id).is_new


def test_every_paused_invocation_is_resumed(shell, client, monkeypatch):
    (code,) = re.findall(r'```python title="resume_paused.py"\n(.*?)```', PAGE, re.DOTALL)
    monkeypatch.setenv("ISCP_INVOCATIONS_URL", shell.url)
    scheduled = client.send("Greeter", "greet", "Ada", delay=3_600).id
    # More than a list has by default.
    waiting = [client.send("Greeter", "approve", "x").id for _ in range(101)]
    assert all(client.pause(id_) for id_ in waiting)
    exec(code, {})
    assert client.invocations(status="paused", limit=10_000) == []
    assert client.invocation(scheduled)["status"] == "scheduled"
    for id_ in (scheduled, *waiting):
        client.kill(id_)


def test_the_table_of_the_clients_methods_is_that_of_the_code():
    table = PAGE.partition("| method | what it does |\n")[2].partition("\n\n")[0]
    methods = re.findall(
        r"`(\w+)\(([^)]*)\)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))
    )
    public = {name for name in vars(Client) if not name.startswith("_")}
    unlisted = {"of", "close", "change_invocation", "check_health"}
    assert {name for name, _ in methods} == public - unlisted
    for name, arguments in methods:
        signature = inspect.signature(getattr(Client, name))
        keywords = set(re.findall(r"(\w+)=", arguments))
        filters = {"service", "handler", "key", "status"} if name == "invocations" else set()
        assert keywords <= {*signature.parameters, *filters}


def list_words(table):
    """Return the words of a table of a journal, without its times and ids."""
    return re.sub(r"\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}|(?<=prom_1)\S+", "", table).split()


def test_every_status_of_an_answer_that_the_code_gives_is_on_the_page():
    (table,) = re.findall(r"\| status \| why \|\n\|---\|---\|\n(.*?)\n\n", PAGE, re.DOTALL)
    listed = {int(status) for status in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    # The guard refuses foreign pages, the router a method, and the store what a status forbids.
    others = {HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED, transaction.CONFLICT}
    codes = {code for code in vars(refusals).values() if isinstance(code, int)}
    assert listed == others | codes


def test_every_status_of_an_invocation_is_on_the_page():
    (table,) = re.findall(r"\| status \| an invocation.*?\n\n", PAGE, re.DOTALL)
    listed = re.findall(r"^\| ([a-z ]+) \| (?!an)", table, re.MULTILINE)
    assert listed == [status.label for status in Status]


def test_every_command_and_change_is_on_the_page():
    commands = load("invocations", COMMANDS["invocations"]).commands
    assert set(commands) <= set(re.findall(r"`([a-z]+)[^`]*`", PAGE))
    assert [change for change in CHANGES if f"/{change}`" not in PAGE] == []
    options = {
        name for each in commands["serve"].params for name in each.opts + each.secondary_opts
    }
    assert set(re.findall(r"`(--[a-z-]+)", PAGE.partition("## Running it")[2])) <= options
    assert isinstance(commands["serve"], typer.core.TyperCommand)


def test_the_numbers_are_those_of_the_code():
    policy, bounds = RetryPolicy(), IngressBounds()
    for phrase in (
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
        assert phrase in PAGE.replace("\n", " "), phrase
