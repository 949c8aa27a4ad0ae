"""GraphiQL, as browsers see it at the address of queries."""

import json

from starlette.testclient import TestClient

from iscp_dagster.model.declared.images import ChangeKind
from iscp_dagster.serve.access import FileAccess
from iscp_dagster.serve.web import graphiql
from iscp_dagster.serve.web.app import create_app
from support.live.subscription_server import BIG
from support.services.stack import wait_for

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
ASK = "document.querySelector('.graphiql-execute-button').click()"
SUBSCRIPTION = f"subscription Followed {{ {BIG} {{ operation data {{ id value }} }} }}"


def test_a_browser_sees_the_editor_where_programs_ask_queries(shop_client):
    page = shop_client.get("/graphql", headers=BROWSER)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    for name in (*graphiql._SCRIPTS, *graphiql._STYLES, graphiql._START):
        assert f'"/graphql/graphiql/{name}"' in page.text
        assert shop_client.get(f"/graphql/graphiql/{name}").status_code == 200
    for name in ("other.js", "..%2F..%2Findex.html", "%2Fetc%2Fpasswd"):
        assert shop_client.get(f"/graphql/graphiql/{name}").status_code == 404
    query = {"query": "{ _tables }"}
    answer = shop_client.get(
        "/graphql", params=query, headers={**BROWSER, "Authorization": "Bearer of-both"}
    )
    assert "shop_tickets" in answer.json()["data"]["_tables"]
    assert shop_client.get("/graphql", headers={"Accept": "*/*"}).status_code == 401


def test_without_its_files_the_page_names_the_extra_to_install(shop, monkeypatch):
    monkeypatch.setattr(graphiql, "find_spec", lambda _name: None)
    client = TestClient(create_app(shop.settings()))
    page = client.get("/graphql", headers=BROWSER)
    assert (page.status_code, "iscp_dagster[local]" in page.text) == (404, True)
    assert client.post("/graphql", json={"query": "{ _tables }"}).status_code == 200


def write(browser, query):
    """Write the query into the editor, and wait until that has read the operation's name."""
    editor = "document.querySelector('.graphiql-query-editor .CodeMirror').CodeMirror"
    browser.evaluate(f"{editor}.setValue({json.dumps(query)})")
    kept = "localStorage.getItem('graphiql:tabState')"
    wait_for(lambda: '"operationName":"Followed"' in (browser.evaluate(kept) or ""), 10)


def test_the_editor_asks_and_subscribes(table, browser):
    with table.serve() as served:
        browser.read(f"http://127.0.0.1:{served.port}/graphql", lambda text: "_tables" in text)
        browser.evaluate(ASK)
        browser.wait(lambda text: f'"{BIG}"' in text)
        write(browser, SUBSCRIPTION)
        browser.evaluate(ASK)
        browser.wait(lambda text: '"INSERT"' in text)
        table.change("acme", (1, ChangeKind.UPDATE, 10, 26))
        browser.wait(lambda text: '"UPDATE"' in text)
    assert browser.errors == []


def test_the_editor_takes_a_token(table, browser, tmp_path):
    (tmp_path / "tokens.json").write_text('{"of-acme": ["acme"]}')
    with table.serve(access=FileAccess(tmp_path / "tokens.json")) as served:
        browser.read(f"http://127.0.0.1:{served.port}/graphql", lambda text: '"Bearer "' in text)
        browser.evaluate(ASK)
        browser.wait(lambda text: "UNAUTHENTICATED" in text)
        shown = "document.querySelector('.graphiql-editor-tool :not(.hidden) > .CodeMirror')"
        headers = json.dumps({"Authorization": "Bearer of-acme"})
        browser.evaluate(f"{shown}.CodeMirror.setValue({json.dumps(headers)})")
        browser.evaluate(ASK)
        browser.wait(lambda text: '"data"' in text)
