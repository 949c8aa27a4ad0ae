"""Requests that take too long, or are too many at a time."""

from threading import Event

import anyio
import httpx
import pytest

from iscp_dagster.serve.catalog import ServedCatalog
from iscp_dagster.serve.graph.schema_cache import SchemaCache
from iscp_dagster.serve.reads.caps import Caps
from iscp_dagster.serve.web import graphql_http
from iscp_dagster.serve.web.app import GraphQLServerSettings, create_app
from iscp_dagster.serve.web.graphql_http import HttpBounds

QUERY = {"query": "{ _tables }"}


class BlockedCatalog:
    """A reading of the catalog that waits until the test lets it go."""

    def __init__(self):
        self.go = Event()

    def __call__(self):
        assert self.go.wait(30)
        return ServedCatalog()


@pytest.fixture
def blocked():
    catalog = BlockedCatalog()
    yield catalog
    catalog.go.set()


def make_client(catalog, **bounds):
    options = {"schemas": SchemaCache(load=catalog), "bounds": HttpBounds(**bounds)}
    app = create_app(GraphQLServerSettings(**options, environ={}))
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def get_status_and_code(answer):
    return answer.status_code, answer.json()["errors"][0]["extensions"]["code"]


async def test_a_query_that_takes_too_long_is_answered_all_the_same(blocked, monkeypatch):
    monkeypatch.setattr(graphql_http, "_GRACE_SECONDS", 0)
    async with make_client(blocked, caps=Caps(seconds=0.05)) as client:
        answer = await client.post("/graphql", json=QUERY)
    assert get_status_and_code(answer) == (504, "TIMEOUT")


async def test_a_body_that_does_not_come_is_not_waited_for(blocked, monkeypatch):
    monkeypatch.setattr(graphql_http, "_BODY_SECONDS", 0.05)

    async def send_never():
        yield b"{"
        await anyio.sleep_forever()

    headers = {"Content-Type": "application/json"}
    async with make_client(blocked) as client:
        answer = await client.post("/graphql", content=send_never(), headers=headers)
    assert get_status_and_code(answer) == (408, "REQUEST_TIMEOUT")


async def ask(client, answers):
    answers.append(await client.post("/graphql", json=QUERY))


@pytest.mark.parametrize(
    ("requests", "bound"), [(2, {"wait_seconds": 0.05}), (3, {"max_waiting": 1})]
)
async def test_only_so_many_requests_wait_and_only_so_long(blocked, requests, bound):
    """The time of a request itself begins when it has a place."""
    answers = []
    client = make_client(blocked, max_running=1, **bound)
    async with client, anyio.create_task_group() as tasks:
        for _ in range(requests):
            tasks.start_soon(ask, client, answers)
        while not answers:  # noqa: ASYNC110 - an answer is no event
            await anyio.sleep(0.01)
        blocked.go.set()
    async with make_client(blocked, max_running=1) as client:
        await ask(client, answers)
    refused, *others = answers
    assert get_status_and_code(refused) == (503, "OVERLOADED")
    assert refused.headers["retry-after"] == "1"
    answered = (200, {"data": {"_tables": []}})
    assert [(each.status_code, each.json()) for each in others] == [answered] * requests


async def test_many_requests_at_once_are_answered_one_after_the_other(blocked):
    answers = []
    blocked.go.set()
    async with make_client(blocked) as client, anyio.create_task_group() as tasks:
        for _ in range(500):
            tasks.start_soon(ask, client, answers)
    assert [each.status_code for each in answers] == [200] * 500
