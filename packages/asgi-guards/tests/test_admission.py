"""Which requests the guard lets in."""

import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from asgi_guards.admission import Admission, Guard, parse_names, parse_origins

LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def client(**admission):
    async def page(_):
        return PlainTextResponse("shown")

    async def socket(websocket):
        await websocket.accept()
        await websocket.close()

    routes = [
        Route("/runs", page, methods=["GET", "POST"]),
        Route("/graphql", page, methods=["GET", "POST"]),
        Route("/below/graphql", page),
        WebSocketRoute("/graphql", socket),
    ]
    guard = Middleware(Guard, admission=Admission(**admission))
    return TestClient(Starlette(routes=routes, middleware=[guard]), "http://10.0.0.7:3000")


def test_a_link_leads_to_a_page_and_to_no_query():
    ui = client(links=True)
    assert ui.get("/runs", headers=LINK).text == "shown"
    assert ui.get("/graphql?query=x", headers=LINK).status_code == 403
    assert ui.get("/below/graphql?query=x", headers=LINK).status_code == 403
    assert ui.post("/runs", headers=LINK).status_code == 403
    framed = {**LINK, "Sec-Fetch-Dest": "iframe"}
    assert ui.get("/runs", headers=framed).status_code == 403
    assert client().get("/runs", headers=LINK).status_code == 403


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Origin": "null"}]
)
def test_a_foreign_page_opens_no_websocket(headers):
    with (
        pytest.raises(WebSocketDisconnect),
        client(links=True).websocket_connect("/graphql", headers=headers),
    ):
        pass


def test_a_page_of_its_own_opens_a_websocket():
    own = {"Origin": "http://10.0.0.7:3000", "Host": "10.0.0.7:3000"}
    ui = client(hosts=frozenset({"10.0.0.7"}))
    with ui.websocket_connect("/graphql", headers=own):
        pass


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("dagster.example", "https://dagster.example"),
        ("dagster.example", "https://dagster.example:443"),
        ("DAGSTER.example.:8443", "https://dagster.example:8443"),
        ("[::1]:3000", "http://[::1]:3000"),
    ],
)
def test_a_page_behind_a_proxy_is_its_own(host, origin):
    ui = client(hosts=frozenset({"dagster.example", "::1"}))
    assert ui.post("/graphql", headers={"Host": host, "Origin": origin}).status_code == 200


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("dagster.example", "https://evil.example"),
        ("dagster.example", "https://dagster.example:8443"),
        ("dagster.example:99999999999999999999", "https://dagster.example"),
        ("", "https://dagster.example"),
        ("dagster.example, evil.example", "https://evil.example"),
        ("evil.example@dagster.example", "https://dagster.example"),
    ],
)
def test_a_page_elsewhere_is_not(host, origin):
    ui = client(hosts=frozenset({"dagster.example"}), hosts_setting="ALLOWED_HOSTS")
    refused = ui.post("/graphql", headers={"Host": host, "Origin": origin})
    assert refused.status_code == 403
    assert "open this server's own address." in refused.text or "add the name to" in refused.text


def test_a_refused_page_is_told_the_setting_that_allows_it():
    server = client(hosts_setting="ALLOWED_HOSTS", origins_setting="ALLOWED_ORIGINS")
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        refused = server.get("/ping", headers={"Host": "10.0.0.7:3000", **headers})
        assert refused.status_code == 403
        assert "add that page's origin to ALLOWED_ORIGINS." in refused.text
    rebound = {"Host": "evil.example"}
    assert "or add the name to ALLOWED_HOSTS." in server.get("/ping", headers=rebound).text
    unnamed = client().get("/ping", headers=rebound)
    assert "use the address that it listens on." in unnamed.text


def test_names_are_read_from_a_setting():
    assert parse_names("A.example., b:1  c") == {"a.example", "b:1", "c"}
    assert parse_names("") == frozenset()
    assert parse_origins("https://A.example, http://b:1") == {"https://a.example", "http://b:1"}


@pytest.mark.parametrize("text", ["*", "null", "board.example", "https://a.example/path"])
def test_what_is_no_origin_is_refused(text):
    with pytest.raises(ValueError, match="scheme://host"):
        parse_origins(text)


def test_the_example_of_the_readme():
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names = {"__name__": "example"}
    exec(example, names)
    served = TestClient(names["app"], "http://127.0.0.1:8000")
    assert served.get("/").text == "hello\n"
    assert served.get("/", headers={"Origin": "http://evil.example"}).status_code == 403
