"""The guarantees that the KeeperMap store needs, and lost servers and answers."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.parse import urlsplit

import pytest
import urllib3
from clickhouse_connect.driver.exceptions import DatabaseError
from test_states_contract import batch, make_key

from iscp_dagster.batchstates import StateKey, StateWrite, StoredState
from iscp_dagster.batchstates.keepermap import KeeperMapStates
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.connect.failures import ClickHouseError
from iscp_dagster.model.errors import ConfigError, FenceError, SetupError, UnavailableError
from support.errors import raises_naming
from support.services.keeper import START_SECONDS
from support.services.stack import wait_for

pytestmark = pytest.mark.slow

STRICT = {"keeper_map_strict_mode": 1}
THREADS = 4
TURNS = 15
MOST_TURNS = 500


@pytest.fixture
def store(keeper) -> KeeperMapStates:
    store = KeeperMapStates(keeper.endpoint)
    store.ensure()
    return store


# What ClickHouse guarantees (ADR 12).


@pytest.fixture
def table(keeper) -> Iterator[Callable[..., str]]:
    """Give a function that runs a statement on a fresh table :t and returns answer or error."""
    client = keeper.endpoint.get_client()
    name = f"facts_{uuid.uuid4().hex}"

    def run(sql: str, **settings) -> str:
        try:
            answer = client.raw_query(sql.replace(":t", name), settings=settings)
        except DatabaseError as error:
            return f"{error.code} {error}"
        return answer.decode().strip()

    run("CREATE TABLE :t (k String, v String) ENGINE = KeeperMap('/:t') PRIMARY KEY k")
    yield run
    run("DROP TABLE :t SYNC")


def read_rows(table) -> str:
    return table("SELECT * FROM (SELECT k, v FROM :t ORDER BY k)")


def test_a_strict_insert_creates_and_never_overwrites(table):
    assert table("INSERT INTO :t VALUES ('a', '1')", **STRICT) == ""
    assert table("INSERT INTO :t VALUES ('a', '2')", **STRICT).startswith("999 ")
    assert "Node exists" in table("INSERT INTO :t VALUES ('b', '2'), ('a', '2')", **STRICT)
    assert read_rows(table) == "a\t1"
    table("INSERT INTO :t VALUES ('a', '2')")
    assert read_rows(table) == "a\t2"


def test_an_update_of_no_row_says_nothing_and_one_that_throws_for_a_row_writes_none(table):
    assert table("ALTER TABLE :t UPDATE v = '3' WHERE k = 'a'", **STRICT) == ""
    assert read_rows(table) == ""
    table("INSERT INTO :t VALUES ('a', '1'), ('b', '1'), ('c', '2')")
    update = "ALTER TABLE :t UPDATE v = '3' WHERE k IN ('a', 'b', 'c') AND NOT throwIf(v != '1')"
    assert table(update, **STRICT).startswith("395 ")
    assert read_rows(table) == "a\t1\nb\t1\nc\t2"


@pytest.mark.parametrize("strict", [1, 0])
def test_only_strict_updates_are_compared_with_the_version_that_was_read(table, strict):
    """Without strict mode, several of the concurrent updates from one value succeed."""
    table("INSERT INTO :t VALUES ('a', '0')")
    numbers = count(1)

    def contend(seen: str) -> bool:
        update = f"ALTER TABLE :t UPDATE v = '{next(numbers)}' WHERE k = 'a'"
        update += f" AND NOT throwIf(v != '{seen}')"
        return table(update, keeper_map_strict_mode=strict) == ""

    winners = set[int]()
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(TURNS if strict else MOST_TURNS):
            seen = table("SELECT v FROM :t")
            winners.add(sum(pool.map(contend, [seen] * THREADS)))
            if max(winners) > 1:
                break
    assert (winners == {1}) if strict else (max(winners) > 1)


# Lost answers and servers.


class Proxy:
    """Forwards requests; the next `cut` writes are carried out but not answered.

    If `ill` has headers, it answers 500 with them; if `deaf`, it ignores all requests.
    """

    def __init__(self, target: str) -> None:
        self.cut = 0
        self.ill: dict[str, str] | None = None
        self.deaf = False
        self.writes = 0
        self._target = urlsplit(target).netloc
        self._pool = urllib3.PoolManager()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer.pass_on(self)

            def log_message(self, *_) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def pass_on(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if self.deaf:
            request.close_connection = True
            return
        if self.ill is not None:
            self.answer(request, 500, b"out of order", self.ill)
            return
        headers = {name: value for name, value in request.headers.items() if name != "Host"}
        url = f"http://{self._target}{request.path}"
        answer = self._pool.request("POST", url, body=body, headers=headers, retries=False)
        if is_write(request.path.encode() + body):
            self.writes += 1
            if self.cut:
                self.cut -= 1
                request.close_connection = True
                return
        self.answer(request, answer.status, answer.data, dict(answer.headers))

    @staticmethod
    def answer(request, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        request.send_response(status)
        for name, value in (headers or {}).items():
            if name.lower().startswith(("x-clickhouse", "content-type", "content-encoding")):
                request.send_header(name, value)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)


def is_write(request: bytes) -> bool:
    return b"ALTER" in request or b"INSERT" in request


@pytest.fixture
def proxy(keeper) -> Iterator[Proxy]:
    proxy = Proxy(keeper.url)
    thread = threading.Thread(target=proxy.server.serve_forever, args=(0.02,))
    thread.start()
    yield proxy
    proxy.server.shutdown()
    proxy.server.server_close()
    thread.join(START_SECONDS)


def test_a_write_whose_answer_is_lost_is_found_done(store, proxy):
    """Whether or not the client sends it again, the write counts once."""
    key, through = make_key(), KeeperMapStates(ClickHouseEndpoint.parse(proxy.url))
    held = None
    for to in (1, 2):
        proxy.cut = 1
        held = through.write(key, batch(to=to), holder="r1", expected=held)
        assert (held.fence, proxy.cut) == (to, 0)
        assert store.read([key]) == {key: held}


def test_a_write_whose_answer_and_outcome_are_lost_may_be_made_again(store, proxy):
    key, through = make_key(), KeeperMapStates(ClickHouseEndpoint.parse(proxy.url))
    held = None
    for to in (1, 2):
        with break_after_write(proxy), raises_naming(UnavailableError, proxy.url):
            through.write(key, batch(to=to), holder="r1", expected=held)
        (stored,) = store.read([key]).values()
        assert stored.fence == to
        held = through.write(key, batch(to=to), holder="r1", expected=held)
        assert held == stored


def test_an_heir_reads_the_write_whose_answer_was_lost(store, proxy):
    key, through = make_key(), KeeperMapStates(ClickHouseEndpoint.parse(proxy.url))
    with break_after_write(proxy), pytest.raises(UnavailableError):
        through.write(key, batch(to=1), holder="r1", expected=None)
    heir = store.write(key, batch(to=2), holder="heir", expected=store.read([key])[key])
    with raises_naming(FenceError, key.table_id, "fence 2", "heir"):
        through.write(key, batch(to=1), holder="r1", expected=None)
    assert store.read([key]) == {key: heir}


@contextmanager
def break_after_write(proxy: Proxy) -> Iterator[None]:
    """Stop answering once a write is carried out."""
    pass_on = proxy.pass_on

    def pass_on_once(request: BaseHTTPRequestHandler) -> None:
        proxy.cut = 100
        before = proxy.writes
        pass_on(request)
        proxy.deaf = proxy.deaf or proxy.writes > before

    proxy.pass_on = pass_on_once
    yield
    proxy.pass_on, proxy.cut, proxy.deaf = pass_on, 0, False


@pytest.mark.parametrize("header", [{}, {"X-ClickHouse-Exception-Code": "668"}])
def test_a_server_that_answers_500_is_unavailable(proxy, header):
    """ClickHouse answers 668 for a table that was loaded while its Keeper was away."""
    through = KeeperMapStates(ClickHouseEndpoint.parse(proxy.url))
    through.ensure()
    proxy.ill = header
    for call in (
        lambda: through.read([make_key()]),
        lambda: through.forget([make_key()]),
        lambda: through.write(make_key(), batch(), holder="r1", expected=None),
    ):
        with raises_naming(UnavailableError, proxy.url):
            call()


def test_without_its_zookeeper_it_is_unavailable_and_with_it_goes_on(keeper, store):
    key = make_key()
    held = store.write(key, batch(to=1), holder="r1", expected=None)
    keeper.zookeeper.stop()
    try:
        calls = [
            lambda: store.read([key]),
            lambda: store.write(key, batch(to=2), holder="r1", expected=held),
            lambda: store.write(make_key(), batch(to=2), holder="r1", expected=None),
        ]
        for call in calls:
            with raises_naming(UnavailableError, "ZooKeeper", keeper.url) as caught:
                call()
            assert not caught.value.permanent
    finally:
        keeper.zookeeper.start()
    wait_for(lambda: reads(store, key), START_SECONDS)
    assert store.read([key]) == {key: held}
    assert store.write(key, batch(to=2), holder="r1", expected=held).fence == 2


def reads(store: KeeperMapStates, key: StateKey) -> bool:
    try:
        return key in store.read([key])
    except UnavailableError:
        return False


# Set-up and limits.


def test_a_clickhouse_without_keepermap_is_named_with_what_it_needs(clickhouse_url):
    with raises_naming(SetupError, "keeper_map_path_prefix", "docs/state-stores.md"):
        KeeperMapStates(ClickHouseEndpoint.parse(clickhouse_url)).ensure()


def test_a_table_that_was_never_made_is_an_error_for_a_person(keeper):
    with raises_naming(ClickHouseError, "UNKNOWN_DATABASE"):
        KeeperMapStates(keeper.endpoint, database="no such").read([make_key()])


def test_paths_are_apart_and_one_path_is_shared_by_all_its_tables(keeper, store):
    client = keeper.endpoint.get_client()
    for name in ("it's `another`", "a third"):
        client.command(f"CREATE DATABASE IF NOT EXISTS `{name.replace('`', '``')}`")
    other = KeeperMapStates(keeper.endpoint, database="it's `another`", path="/o'ther \\ states")
    third = KeeperMapStates(keeper.endpoint, database="a third", path="/o'ther \\ states")
    for each in (other, third):
        each.ensure()
    key = make_key()
    held = other.write(key, batch(), holder="r1", expected=None)
    assert store.read([key]) == {}
    assert third.read([key]) == {key: held}


def test_a_state_that_keeper_would_not_take_is_refused_by_name(store):
    long = StateWrite(
        key=make_key("long"), record=batch(names="x" * 60_000), holder="r1", expected=None
    )
    fine = StateWrite(key=make_key(), record=batch(), holder="r1", expected=None)
    with raises_naming(ConfigError, "'long'", long.key.table_id, "KeeperMap"):
        store.write_many([fine, long])
    assert store.read([fine.key, long.key]) == {}


def test_large_states_are_sent_in_as_many_statements_as_it_takes(store):
    odd = batch(names="\\'\"\n" * 3_000)
    keys = [make_key(f"tenant {number}") for number in range(12)]
    held: dict[StateKey, StoredState | FenceError] = dict.fromkeys(keys)
    for fence in (1, 2):
        held = store.write_many(
            [StateWrite(key=each, record=odd, holder="r1", expected=held[each]) for each in keys]
        )
        assert {each.fence for each in held.values()} == {fence}
    assert store.read(keys) == held
