"""`iscp serve` as a process: tokens, its log, its end; and the schema that it prints."""

import json
import signal
import socket
import subprocess
import sys

import httpx
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from graphql import build_schema
from typer.testing import CliRunner

from iscp_dagster.cli.main import app
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.serve.web import server
from support.errors import assert_names, raises_naming
from support.services.stack import clean_environment

SECRET, LATER = "a-token-that-no-log-shows", "a-later-token"
IDS = "{ shop_tickets { id } }"
TABLES = """
from iscp_dagster import FullText, Mirror, SourceTable, Vector
tickets = SourceTable(
    "shop.tickets",
    key="id",
    tenant="customer",
    indexes=[Mirror(), FullText("body"), Vector("v", dimension=2), Mirror(name="later")],
)
"""


@pytest.fixture(scope="module")
def folder(shop, tmp_path_factory):
    """Declare the shop's table in a module, with a Delta table that has its schema."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "served_tables.py").write_text(TABLES)
    fields = pa.schema([("customer", pa.string()), ("photo", pa.binary())])
    write_deltalake(folder / "shop" / "tickets", fields.empty_table(), partition_by=["customer"])
    return folder


@pytest.fixture
def environ(shop, folder):
    return clean_environment(folder / "home") | {
        "CLICKHOUSE_URL": shop.endpoint.server,
        "ISCP_ASSETS": "served_tables",
        "ISCP_LAKE": str(folder),
    }


def ask(url, token, query=IDS):
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.post(url, json={"query": query}, headers=headers)


def test_a_server_serves_by_its_tokens_and_logs_none(environ, folder):
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({SECRET: ["acme"]}))
    command = [sys.executable, "-m", "iscp_dagster.cli.main", "serve", "--port", "0"]
    command += ["--host", "0.0.0.0", "--tokens", str(tokens)]
    with subprocess.Popen(
        command, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        line = process.stdout.readline()
        url = line.split()[-1].replace("0.0.0.0", "127.0.0.1")
        try:
            assert len(ask(url, SECRET).json()["data"]["shop_tickets"]) == 3
            assert ask(url, LATER).status_code == 401
            tokens.write_text(json.dumps({LATER: "*"}))
            assert ask(url, SECRET).status_code == 401
            assert len(ask(url, LATER).json()["data"]["shop_tickets"]) == 5
            tokens.write_text("{")
            failure = ask(url, LATER)
            assert (failure.status_code, "tokens.json" in failure.text) == (500, False)
        finally:
            process.send_signal(signal.SIGTERM)
            rest, errors = process.communicate(timeout=30)
    assert process.returncode in {0, -signal.SIGTERM}
    assert_names(errors, tokens, "JSON")
    for token in (SECRET, LATER):
        assert token not in line + rest + errors


def test_the_schema_is_printed_with_what_is_not_built_yet(environ, folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    for name in ("CLICKHOUSE_URLS", "SPARK_REMOTE", "ISCP_LOG_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CLICKHOUSE_URL", "ISCP_ASSETS", "ISCP_LAKE", "ISCP_HOME"):
        monkeypatch.setenv(name, environ[name])
    printed = CliRunner().invoke(app, ["serve", "--print-schema"])
    assert printed.exit_code == 0, printed.output
    schema = build_schema(printed.stdout)
    assert {"shop_tickets", "shop_tickets_text", "_tables"} <= set(schema.query_type.fields)
    assert str(schema.type_map["shop_tickets"].fields["photo"].type) == "Bytes"
    assert_names(schema.query_type.description, "shop.tickets/later")
    assert printed.stdout == server.render_schema(environ) + "\n"


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["--host", "0.0.0.0"], ["--host '0.0.0.0'", "--tokens"]),
        (["--tokens", "missing.json"], ["missing.json", "No such file or directory"]),
        (["--tokens", "no_module_of_that_name:tokens"], ["no_module_of_that_name:tokens"]),
    ],
)
def test_a_server_that_would_be_open_or_useless_does_not_start(
    environ, monkeypatch, arguments, values
):
    monkeypatch.setenv("ISCP_HOME", environ["ISCP_HOME"])
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert type(result.exception) is ConfigError
    assert_names(str(result.exception), *values)


def test_a_taken_port_is_named(shop):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with raises_naming(ConfigError, "127.0.0.1", port, "--port"):
            server.serve(shop.settings(), "127.0.0.1", port, print)
