"""The requests that the guard admits."""

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
    answer = ui.post("/graphql", headers={"Host": host, "Origin": origin})
    assert answer.status_code == 403
    assert "Host" in answer.text or "Origin" in answer.text


def test_a_refusal_names_the_setting_that_allows_the_request():
    server = client(hosts_setting="ALLOWED_HOSTS", origins_setting="ALLOWED_ORIGINS")
    for headers, setting in (
        ({"Origin": "http://evil.example"}, "ALLOWED_ORIGINS"),
        ({"Sec-Fetch-Site": "cross-site"}, "ALLOWED_ORIGINS"),
        ({"Host": "evil.example"}, "ALLOWED_HOSTS"),
    ):
        request = {"headers": {"Host": "10.0.0.7:3000", **headers}}
        answer = server.get("/ping", **request)
        assert (answer.status_code, setting in answer.text) == (403, True)
        unnamed = client().get("/ping", **request)
        assert (unnamed.status_code, "ALLOWED" in unnamed.text) == (403, False)


def test_names_are_read_from_a_setting():
    assert parse_names("A.example., b:1  c") == {"a.example", "b:1", "c"}
    assert parse_names("") == frozenset()
    assert parse_origins("https://A.example, http://b:1") == {"https://a.example", "http://b:1"}


@pytest.mark.parametrize("text", ["*", "null", "board.example", "https://a.example/path"])
def test_an_invalid_origin_is_refused(text):
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        parse_origins(text)
    assert type(caught.value) is ValueError


def test_the_example_of_the_readme():
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names = {"__name__": "example"}
    exec(example, names)
    served = TestClient(names["app"], "http://127.0.0.1:8000")
    assert served.get("/").text == "hello\n"
    assert served.get("/", headers={"Origin": "http://evil.example"}).status_code == 403
