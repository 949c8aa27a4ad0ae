"""Requests that take too long, or are too many at a time."""

from threading import Event

import anyio
import httpx
import pytest

from iscp_dagster.serve.catalog import ServedCatalog
from iscp_dagster.serve.graph.schemas import SchemaCache
from iscp_dagster.serve.reads.caps import Caps
from iscp_dagster.serve.web import graphql_http
from iscp_dagster.serve.web.app import GraphQLServerSettings, create_app
from iscp_dagster.serve.web.graphql_http import HttpBounds

ASKED = {"query": "{ _tables }"}


class Blocked:
    """A look for the catalog that waits until the test lets it go."""

    def __init__(self):
        self.asked, self.go = Event(), Event()

    def __call__(self):
        self.asked.set()
        assert self.go.wait(30)
        return ServedCatalog()


@pytest.fixture
def blocked():
    look = Blocked()
    yield look
    look.go.set()


def client_of(look, **bounds):
    app = create_app(
        GraphQLServerSettings(
            schemas=SchemaCache(load=look), bounds=HttpBounds(**bounds), environ={}
        )
    )
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def code(answer):
    return answer.status_code, answer.json()["errors"][0]["extensions"]["code"]


async def test_a_query_that_takes_too_long_is_answered_all_the_same(blocked, monkeypatch):
    monkeypatch.setattr(graphql_http, "_GRACE_SECONDS", 0)
    async with client_of(blocked, caps=Caps(seconds=0.05)) as client:
        answer = await client.post("/graphql", json=ASKED)
    assert code(answer) == (504, "TIMEOUT")


async def test_a_body_that_does_not_come_is_not_waited_for(blocked, monkeypatch):
    monkeypatch.setattr(graphql_http, "_BODY_SECONDS", 0.05)

    async def never():
        yield b"{"
        await anyio.sleep_forever()

    headers = {"Content-Type": "application/json"}
    async with client_of(blocked) as client:
        answer = await client.post("/graphql", content=never(), headers=headers)
    assert code(answer) == (408, "REQUEST_TIMEOUT")


@pytest.mark.parametrize(("asked", "bound"), [(2, {"wait_seconds": 0.05}), (3, {"max_waiting": 1})])
async def test_so_many_requests_wait_for_a_place_and_only_so_long(blocked, asked, bound):
    """The time of a request itself begins with the place."""
    answers = []

    async def ask(client):
        answers.append(await client.post("/graphql", json=ASKED))

    client = client_of(blocked, max_running=1, **bound)
    async with client, anyio.create_task_group() as tasks:
        for _ in range(asked):
            tasks.start_soon(ask, client)
        while not answers:  # noqa: ASYNC110 - an answer is no event
            await anyio.sleep(0.01)
        blocked.go.set()
    async with client_of(blocked, max_running=1) as client:
        await ask(client)
    sent_away, *others = answers
    assert code(sent_away) == (503, "OVERLOADED")
    assert sent_away.headers["retry-after"] == "1"
    assert [each.status_code for each in others] == [200] * asked
    assert [each.json() for each in others] == [{"data": {"_tables": []}}] * asked


async def test_many_requests_at_once_are_answered_one_after_the_other(blocked):
    answers = []

    async def ask(client):
        answers.append((await client.post("/graphql", json=ASKED)).status_code)

    blocked.go.set()
    async with client_of(blocked) as client, anyio.create_task_group() as tasks:
        for _ in range(500):
            tasks.start_soon(ask, client)
    assert answers == [200] * 500
