"""`iscp serve` as a process: tokens, its log, its end; and the schema that it prints."""

import json
import signal
import subprocess
import sys

import httpx
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from graphql import build_schema

from iscp_dagster.cli.main import app
from iscp_dagster.serve.web import server
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
def place(shop, tmp_path_factory):
    """Declare the shop's table in a module, with a Delta table that has its schema."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "served_tables.py").write_text(TABLES)
    fields = pa.schema([("customer", pa.string()), ("photo", pa.binary())])
    write_deltalake(folder / "shop" / "tickets", fields.empty_table(), partition_by=["customer"])
    return folder


@pytest.fixture
def environ(shop, place):
    return clean_environment(place / "home") | {
        "CLICKHOUSE_URL": shop.endpoint.server,
        "ISCP_ASSETS": "served_tables",
        "ISCP_LAKE": str(place),
    }


def ask(url, token, query=IDS):
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.post(url, json={"query": query}, headers=headers)


def test_a_server_serves_by_its_tokens_and_tells_none(environ, place):
    tokens = place / "tokens.json"
    tokens.write_text(json.dumps({SECRET: ["acme"]}))
    command = [sys.executable, "-m", "iscp_dagster.cli.main", "serve", "--port", "0"]
    command += ["--host", "0.0.0.0", "--tokens", str(tokens)]
    with subprocess.Popen(
        command, env=environ, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = process.stdout.readline()
        url = said.split()[-1].replace("0.0.0.0", "127.0.0.1")
        try:
            assert len(ask(url, SECRET).json()["data"]["shop_tickets"]) == 3
            assert ask(url, LATER).status_code == 401
            tokens.write_text(json.dumps({LATER: "*"}))
            assert ask(url, SECRET).status_code == 401
            assert len(ask(url, LATER).json()["data"]["shop_tickets"]) == 5
            tokens.write_text("{")
            failed = ask(url, LATER)
            assert (failed.status_code, "tokens.json" in failed.text) == (500, False)
        finally:
            process.send_signal(signal.SIGTERM)
            rest, errors = process.communicate(timeout=30)
    assert process.returncode in {0, -signal.SIGTERM}
    assert "tokens.json is not JSON" in errors
    for token in (SECRET, LATER):
        assert token not in said + rest + errors


def test_the_schema_is_printed_with_what_is_not_built_yet(environ, place, monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.syspath_prepend(place)
    for name in ("CLICKHOUSE_URLS", "SPARK_REMOTE", "ISCP_LOG_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CLICKHOUSE_URL", "ISCP_ASSETS", "ISCP_LAKE", "ISCP_HOME"):
        monkeypatch.setenv(name, environ[name])
    printed = CliRunner().invoke(app, ["serve", "--print-schema"])
    assert printed.exit_code == 0, printed.output
    schema = build_schema(printed.stdout)
    assert {"shop_tickets", "shop_tickets_text", "_tables"} <= set(schema.query_type.fields)
    assert str(schema.type_map["shop_tickets"].fields["photo"].type) == "Bytes"
    assert "shop.tickets/later is not built yet." in schema.query_type.description
    assert printed.stdout == server.render_schema(environ) + "\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "--tokens"),
        (["--tokens", "missing.json"], "missing.json cannot be read: No such file"),
        (["--tokens", "no_module_of_that_name:tokens"], "cannot be imported"),
    ],
)
def test_a_server_that_would_be_open_or_useless_does_not_start(
    environ, place, monkeypatch, arguments, said
):
    from typer.testing import CliRunner

    monkeypatch.setenv("ISCP_HOME", environ["ISCP_HOME"])
    failed = CliRunner().invoke(app, ["serve", *arguments])
    assert said in str(failed.exception)


def test_a_taken_port_is_named(shop):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Exception, match=f"127.0.0.1 port {port}: Address already in use"):
            server.serve(shop.settings(), "127.0.0.1", port, print)
