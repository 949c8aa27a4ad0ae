"""The ingress and the administration over HTTP; a test does what the runtime would do."""

import asyncio
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from durable_invocations.errors import ConfigError, UnavailableError
from durable_invocations.ingress import bodies
from durable_invocations.ingress.app import IngressSettings, create_app
from durable_invocations.ingress.backend import Catalog
from durable_invocations.ingress.invoking import IngressBounds
from durable_invocations.protocol.awakeables import make_awakeable_id
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.ids import format_id, make_id, parse_id
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.services import ServiceKind
from durable_invocations.runtime.sql.database import open_database
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store.deployments import (
    Deployment,
    RegisteredHandler,
    RegisteredService,
)
from durable_invocations.runtime.store.operations import Pause, Register
from runtime_support.errors import assert_names
from runtime_support.runtimes.manual_backend import SERVICES, URL, ByHand

JSON = {"content-type": "application/json"}
BOUNDS = IngressBounds(body=1_000, waiting=2)
LARGE = b"[" + b"1," * 100_000 + b"1]"


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A database with the services registered, which is quicker to copy than to create."""
    file = tmp_path_factory.mktemp("empty") / "log.sqlite"
    store = SqlStore(open_database(f"sqlite:///{file}"))
    store.ensure()
    store.do(Register(deployment=Deployment(id="dp_1", url=URL), services=SERVICES))
    store.engine.dispose()
    return file


@pytest.fixture
def hand(empty, tmp_path):
    file = shutil.copy(empty, tmp_path / "log.sqlite")
    store = SqlStore(open_database(f"sqlite:///{file}"))
    yield ByHand(store)
    store.engine.dispose()


@pytest.fixture
def http(hand):
    app = create_app(IngressSettings(backend=hand, bounds=BOUNDS))
    with TestClient(app, "http://127.0.0.1:4080", client=("127.0.0.1", 5)) as client:
        yield client


def send(http, path="/Greeter/greet", argument=b'"Ada"', **headers):
    """Invoke by /send; the invocation's id."""
    answer = http.post(f"{path}/send", content=argument, headers={**JSON, **headers})
    assert answer.status_code in {200, 202}, answer.text
    assert answer.headers["x-restate-id"] == answer.json()["invocationId"]
    return answer.json()["invocationId"]


def assert_refused(answer, status, *values):
    """Its message names these values."""
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"code", "message"}
    assert answer.json()["code"] == status
    assert "x-restate-id" not in answer.headers
    assert_names(answer.json()["message"], *values)


def get_output(http, name, verb="output"):
    return http.get(f"/restate/invocation/{name}/{verb}")


@contextmanager
def request_in_background(http, hand, method, path, **request):
    """The future answer to a request that waits for an output by now."""
    with ThreadPoolExecutor() as pool:
        future = pool.submit(http.request, method, path, **request)
        assert hand.waiting.acquire(timeout=20)
        yield future


def test_a_call_waits_for_the_output_of_the_handler(http, hand):
    headers = {**JSON, "x-team": "a"}
    request = {"content": b'"Ada"', "headers": headers}
    with request_in_background(http, hand, "POST", "/Greeter/greet", **request) as future:
        (id_,) = hand.claim()
        message = hand.store.read_journal(id_)[0].frame.message()
        assert message.value == b'"Ada"'
        assert ("x-team", "a") in [(header.key, header.value) for header in message.headers]
        hand.finish(id_, b'"Hello Ada"')
        answer = future.result(20)
    assert (answer.status_code, answer.json()) == (200, "Hello Ada")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-restate-id"] == id_


def test_a_terminal_failure_is_the_status_of_the_answer(http, hand):
    request = {"content": b"1", "headers": JSON}
    with request_in_background(http, hand, "POST", "/Greeter/greet", **request) as future:
        (id_,) = hand.claim()
        hand.finish(id_, Failure(code=418, message="I am a teapot"))
        answer = future.result(20)
    assert answer.status_code == 418
    assert answer.json() == {"code": 418, "message": "I am a teapot"}
    assert answer.headers["x-restate-id"] == id_


def test_many_requests_for_one_output_read_it_one_after_the_other(http, hand):
    """Otherwise a large one would take up all threads that read, and much memory."""
    id_ = send(http)
    hand.finish(id_, LARGE)
    readers, together, read = [], threading.Event(), hand.store.invocation

    def read_slowly(id_):
        readers.append(id_)
        if len(readers) > 1:
            together.set()
        together.wait(0.1)
        invocation = read(id_)
        readers.remove(id_)
        return invocation

    hand.store.invocation = read_slowly
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(get_output, [http] * 3, [id_] * 3, ["attach"] * 3))
    assert {(answer.status_code, answer.content) for answer in answers} == {(200, LARGE)}
    assert not together.is_set()


async def test_services_are_read_again_when_they_may_have_changed(hand):
    """A new registration is served at once; otherwise they are kept for a second."""
    now, times, read = [0.0], [], hand.store.services

    def read_services():
        times.append(now[0])
        return read()

    hand.store.services = read_services
    catalog = Catalog(hand, clock=lambda: now[0])

    greeter = await catalog.find_service("Greeter", "greet")
    assert greeter.handler("bow") is None
    for now[0] in (0.5, 0.9):
        assert await catalog.find_service("Greeter", "greet") == greeter
    assert await catalog.find_service("Nobody", "greet") is None
    bow = replace(greeter, handlers=(*greeter.handlers, RegisteredHandler(name="bow")))
    hand.store.do(Register(deployment=Deployment(id="dp_1", url=URL), services=(bow,)))
    assert (await catalog.find_service("Greeter", "ada", "bow")).handler("bow")
    now[0] = 2.0
    assert (await catalog.find_service("Greeter", "greet")).handler("bow")
    assert times == [0.0, 0.9, 0.9, 2.0]


def test_an_object_is_called_by_its_key(http, hand):
    invocation = hand.store.invocation(send(http, "/Counter/a%2Fb%20c/add", b"1"))
    target = (invocation.service, invocation.key, invocation.handler)
    assert target == ("Counter", "a/b c", "add")


def test_a_key_may_have_several_lines(http, hand):
    id_ = send(http, "/Signup/a%0Ab/run", b"1")
    assert hand.store.invocation(id_).key == "a\nb"
    assert_refused(http.get("/restate/workflow/Signup/a%0Ab/output"), 470, id_)
    id_ = send(http, "/Counter/a%0Ab/add", b"1", **{"idempotency-key": "k"})
    assert_refused(get_output(http, "Counter/a%0Ab/add/k"), 470, id_)


def test_a_send_is_accepted_at_once_and_a_delayed_one_begins_later(http, hand):
    now = send(http)
    later = http.post("/Greeter/greet/send?delay=1h", content=b"1", headers=JSON)
    assert (later.status_code, later.json()["status"]) == (202, "Accepted")
    invocation = hand.store.invocation(later.json()["invocationId"])
    assert invocation.status.label == "scheduled"
    assert 3_590_000 < invocation.next_at - invocation.created <= 3_600_000
    assert hand.claim() == [now]


def test_an_idempotency_key_makes_one_invocation(http, hand):
    key = {"idempotency-key": "order-1"}
    id_ = send(http, **key)
    again = http.post("/Greeter/greet/send", content=b'"Bob"', headers={**JSON, **key})
    assert again.status_code == 200
    assert again.json() == {"invocationId": id_, "status": "PreviouslyAccepted"}
    assert send(http, "/Greeter/raw", **key) != id_
    hand.finish(id_, b"7")
    # A call attaches to it, as do both forms of its name.
    answer = http.post("/Greeter/greet", content=b'"Eve"', headers={**JSON, **key})
    assert (answer.content, answer.headers["x-restate-id"]) == (b"7", id_)
    for verb in ("attach", "output"):
        for name in ("Greeter/greet/order-1", id_):
            assert get_output(http, name, verb).json() == 7


def test_an_idempotency_key_holds_for_one_key_of_an_object(http, hand):
    key = {"idempotency-key": "k"}
    id_ = send(http, "/Counter/a/add", b"1", **key)
    assert send(http, "/Counter/b/add", b"1", **key) != id_
    hand.finish(id_, b"1")
    assert get_output(http, "Counter/a/add/k").json() == 1
    assert_refused(get_output(http, "Counter/b/add/k"), 470)
    assert_refused(get_output(http, "Counter/c/add/k"), 404, "Counter/c/add/k")


def test_a_workflow_runs_once_for_its_key(http, hand):
    id_ = send(http, "/Signup/ada/run", b"1")
    assert send(http, "/Signup/ada/run", b"2") == id_
    assert_refused(http.get("/restate/workflow/Signup/ada/output"), 470, id_)
    hand.finish(id_, b'"done"')
    for verb in ("attach", "output"):
        assert http.get(f"/restate/workflow/Signup/ada/{verb}").json() == "done"
    assert_refused(http.get("/restate/workflow/Signup/bob/attach"), 404, "Signup/bob/run")
    assert_refused(http.get("/restate/workflow/Counter/ada/attach"), 404, "'Counter'")


def test_the_output_of_an_open_invocation_is_470_and_attaching_waits_for_it(http, hand):
    id_ = send(http)
    assert_refused(get_output(http, id_), 470, id_, "ready")
    path = f"/restate/invocation/{id_}/attach"
    with request_in_background(http, hand, "GET", path) as future:
        hand.finish(id_, b"7")
        assert future.result(20).json() == 7


def test_an_output_has_the_content_type_of_its_handler(http, hand):
    id_ = send(http, "/Greeter/raw", b"\x00")
    hand.finish(id_, b"plain")
    answer = get_output(http, id_)
    assert (answer.text, answer.headers["content-type"]) == ("plain", "text/plain")


def test_a_page_in_an_output_has_none_of_the_runtimes_rights(http, hand):
    """A person may open it by a link, and its scripts could invoke whatever they like."""
    id_ = send(http, "/Greeter/raw", b"\x00")
    hand.finish(id_, b"<script>")
    for path in (f"/restate/invocation/{id_}/output", f"/admin/invocations/{id_}", "/nowhere"):
        answer = http.get(path)
        assert answer.headers["content-security-policy"] == "sandbox", path
        assert answer.headers["x-content-type-options"] == "nosniff", path


def test_an_awakeable_is_resolved_or_rejected_once(http, hand):
    id_ = send(http)
    hand.claim()
    for index in (1, 2):
        hand.commit(id_, index, pb.AwakeableEntryMessage())
    first, second = (make_awakeable_id(parse_id(id_), index) for index in (1, 2))

    def complete(awakeable, verb, content=b"", **request):
        return http.post(f"/restate/awakeables/{awakeable}/{verb}", content=content, **request)

    assert_refused(complete(first, "resolve", b"{", headers=JSON), 400, "JSON")
    resolved = complete(first, "resolve", b'{"a": 1}', headers=JSON)
    assert (resolved.status_code, resolved.json()) == (202, {"changed": True})
    assert complete(first, "reject", b"no").json() == {"changed": False}
    assert complete(second, "reject", "zu spät".encode()).json() == {"changed": True}
    journal = http.get(f"/admin/invocations/{id_}").json()["journal"]
    assert [entry["state"] for entry in journal] == ["stored", "completed", "failed"]
    assert journal[1]["detail"] == {"id": first}
    assert journal[1]["result"]["value"] == '{"a": 1}'
    assert journal[2]["result"] == {"failure": {"code": 500, "message": "zu spät"}}
    unknown = make_awakeable_id(make_id(), 1)
    assert_refused(complete(unknown, "resolve"), 404, f"'{unknown}'")
    assert_refused(complete("prom_1x", "resolve"), 404, "'prom_1x'")
    assert_refused(complete(first, "finish"), 404, "/restate/awakeables/{id}/resolve")
    assert_refused(complete(second, "reject", b"\xff"), 400, "UTF-8")


@pytest.mark.parametrize(
    ("method", "path", "status", "values"),
    [
        ("POST", "/Nobody/greet", 404, ["service", "'Nobody'"]),
        ("POST", "/Greeter/bow", 404, ["Greeter", "'bow'", "greet, raw"]),
        ("POST", "/Greeter/ada/greet", 404, ["/Greeter/{handler}"]),
        ("POST", "/Counter/add", 404, ["/Counter/{key}/{handler}"]),
        ("POST", "/Greeter", 404, ["/Greeter/{handler}"]),
        ("POST", "/", 400, ["segment", "4,096"]),
        ("POST", "/Counter//add", 400, ["segment", "4,096"]),
        ("POST", "/Counter/%00/add", 400, ["NUL"]),
        ("POST", "/Counter/%ff/add", 400, ["path", "UTF-8"]),
        ("POST", "/Greeter/greet/send?delay=soon", 400, ["delay", "'soon'"]),
        ("POST", "/Greeter/greet?delay=1s", 400, ["/send"]),
        ("POST", "/Greeter/greet/send?delaySec=60", 400, ["'delaySec'", "/send", "delay"]),
        ("GET", "/Greeter/greet", 405, ["GET /Greeter/greet", "POST"]),
        ("GET", "/restate/awakeables/x/resolve", 405, ["POST"]),
        ("POST", "/restate/invocation/x/attach", 405, ["GET or HEAD"]),
        ("GET", "/restate/invocation/x", 404, ["/restate/invocation/{id}"]),
        ("GET", "/restate/nothing", 404, ["GET /restate/nothing"]),
        ("POST", "/restate/nothing", 404, ["POST /restate/nothing"]),
        ("POST", "/admin/nothing", 404, ["POST /admin/nothing"]),
        ("GET", "/admin/invocations?colour=red", 400, ["'colour'", "limit", "status"]),
        ("GET", "/admin/invocations?status=tired", 400, ["'tired'", "paused"]),
        ("GET", "/admin/invocations?limit=0", 400, ["limit='0'", "10,000"]),
        ("GET", "/admin/invocations?limit=10001", 400, ["limit='10001'", "10,000"]),
        ("GET", f"/admin/invocations?limit={'9' * 5_000}", 400, ["limit", "10,000"]),
        ("GET", f"/admin/invocations?before={'9' * 5_000}", 400, ["before", f"{2**53:,}"]),
        ("GET", "/admin/invocations?key=%00", 400, ["NUL"]),
        ("GET", "/admin/invocations/%00", 400, ["NUL"]),
        ("PATCH", "/admin/invocations/%00/kill", 400, ["NUL"]),
        ("DELETE", "/admin/deployments/%00", 400, ["NUL"]),
        ("PUT", "/admin/deployments", 405, ["PUT /admin/deployments"]),
    ],
)
def test_an_invalid_request_is_refused(http, hand, method, path, status, values):
    answer = http.request(method, path, content=b"1" if method == "POST" else None, headers=JSON)
    assert_refused(answer, status, *values)
    assert hand.store.invocations() == []


def test_an_unknown_invocation_is_404_in_every_request(http):
    id_ = format_id(make_id())
    for verb in ("attach", "output"):
        assert_refused(get_output(http, id_, verb), 404, id_)
    assert_refused(http.get(f"/admin/invocations/{id_}"), 404, id_)
    for verb in ("cancel", "kill", "pause", "resume"):
        assert_refused(http.patch(f"/admin/invocations/{id_}/{verb}"), 404, id_)
    assert_refused(http.patch(f"/admin/invocations/{id_}/dance"), 404, "cancel", "purge")


def test_a_body_that_the_handler_does_not_take_is_refused(http, hand):
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert_refused(http.post("/Greeter/greet", content=b"a=b", headers=form), 415)
    assert_refused(http.post("/Greeter/greet", content=b"{", headers=JSON), 400)
    large = b" " * 1_001
    assert_refused(http.post("/Greeter/greet", content=large, headers=JSON), 413, "1,000 bytes")
    chunks = (large[:500] for _ in range(3))
    assert_refused(http.post("/Greeter/greet/send", content=chunks, headers=JSON), 413)
    for keys in (["a", "b"], ["k" * 1_025], [""]):
        headers = [*JSON.items(), *(("idempotency-key", key) for key in keys)]
        answer = http.post("/Greeter/greet/send", content=b"1", headers=headers)
        assert_refused(answer, 400, "idempotency-key", "1,024")
    assert hand.store.invocations() == []


def test_another_web_page_and_another_host_are_refused(http, hand):
    for headers in (
        {"Origin": "https://elsewhere.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "rebound.example"},
    ):
        assert_refused(http.post("/Greeter/greet/send", headers=headers), 403, *headers)
        assert_refused(http.get("/admin/invocations", headers=headers), 403, *headers)
    assert hand.asked == 0


def test_with_a_token_nothing_is_answered_without_it(hand):
    app = create_app(IngressSettings(backend=hand, token="a-token-of-sixteen"))
    with TestClient(app) as http:
        for method, path in (("POST", "/Greeter/greet"), ("GET", "/admin/invocations")):
            assert_refused(http.request(method, path), 401, "token")
        assert http.get("/restate/health").json() == {"status": "ok"}
        assert hand.asked == 0
        mine = {"Authorization": "Bearer a-token-of-sixteen", "Host": "any.example"}
        assert http.get("/admin/invocations", headers=mine).json() == {"invocations": []}


def test_the_number_of_waiting_requests_is_bounded(http, hand):
    id_ = send(http)
    path = f"/restate/invocation/{id_}/attach"
    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(http.get, path) for _ in range(BOUNDS.waiting)]
        for _ in futures:
            assert hand.waiting.acquire(timeout=20)
        assert_refused(http.get(path), 429, BOUNDS.waiting, "/send")
        assert_refused(http.post("/Greeter/greet", content=b"1", headers=JSON), 429)
        assert len(hand.store.invocations()) == 1
        hand.finish(id_, b"1")
        assert [future.result(20).json() for future in futures] == [1, 1]
    assert http.get(path).json() == 1


async def call_and_disconnect(hand, event, *, more_body):
    """Call a handler, and disconnect at the event or after the answer; the answer's messages."""
    headers = [(b"host", b"127.0.0.1:4080"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/Greeter/greet", "headers": headers}
    scope |= {"query_string": b"", "scheme": "http", "server": ("127.0.0.1", 4080)}
    requests = [{"type": "http.request", "body": b"1", "more_body": more_body}]
    answers = []

    async def receive():
        if requests:
            return requests.pop()
        await event.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        answers.append(message)
        if message["type"] == "http.response.body":
            event.set()

    app = create_app(IngressSettings(backend=hand))
    await asyncio.wait_for(app(scope, receive, send), 20)
    return answers


@pytest.mark.parametrize(("disconnects", "status"), [(False, 408), (True, 400)])
async def test_an_incomplete_body_invokes_nothing(hand, monkeypatch, disconnects, status):
    monkeypatch.setattr(bodies, "_SECONDS", 0.01)
    event = asyncio.Event()
    if disconnects:
        event.set()
    answers = await call_and_disconnect(hand, event, more_body=True)
    assert answers[0]["status"] == status
    assert json.loads(answers[1]["body"])["code"] == status
    assert hand.store.invocations() == []


async def test_a_client_that_disconnects_ends_the_wait_and_not_the_invocation(hand):
    waiting, ended = asyncio.Event(), []

    async def wait_for_result(_id):
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    hand.wait_for_result = wait_for_result
    await call_and_disconnect(hand, waiting, more_body=False)
    assert ended == [True]
    (invocation,) = hand.store.invocations()
    assert invocation.status.label == "ready"


def test_an_address_is_registered_and_shown_with_its_services(http, hand):
    again = http.post("/admin/deployments", json={"uri": f"{URL}/"})
    assert again.status_code == 200
    other = http.post("/admin/deployments", json={"uri": "http://127.0.0.1:9081/a", "force": True})
    assert other.status_code == 201, other.text
    assert other.json() in http.get("/admin/deployments").json()["deployments"]
    assert http.get("/admin/services").json()["services"][1] == {
        "name": "Greeter",
        "ty": "SERVICE",
        "deployment": other.json()["id"],
        "uri": "http://127.0.0.1:9081/a",
        "handlers": [{"name": "greet", "ty": "SHARED"}, {"name": "raw", "ty": "SHARED"}],
    }


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ({"uri": "ftp://host"}, ["http or https"]),
        ({"uri": "http://me:secret@host"}, ["user"]),
        ({"uri": 7}, ["'uri'", "str"]),
        ({"url": URL}, ["'url'", "uri"]),
        ({}, ["'uri'"]),
        ({"uri": URL, "force": "yes"}, ["'force'", "bool"]),
        ([], ["JSON"]),
    ],
)
def test_an_invalid_registration_discovers_nothing(http, hand, body, values):
    hand.refusing = AssertionError("asked")
    answer = http.post("/admin/deployments", json=body)
    assert_refused(answer, 422, *values)
    assert "secret" not in answer.text


def test_a_registration_is_json(http):
    assert_refused(http.post("/admin/deployments", content=b"{}"), 415)
    assert_refused(http.post("/admin/deployments", content=b"{", headers=JSON), 400)
    large = json.dumps({"uri": "x" * 70_000})
    assert_refused(http.post("/admin/deployments", content=large, headers=JSON), 413)


def test_an_address_without_usable_services_is_not_registered(http, hand):
    def register():
        return http.post("/admin/deployments", json={"uri": URL})

    for error in (UnavailableError("nobody is there"), ConfigError("no manifest")):
        hand.refusing = error
        assert_refused(register(), 502, error)
    hand.refusing = None
    for name in ("admin", "restate", "services"):
        hand.services = (RegisteredService(name=name, kind=ServiceKind.SERVICE, handlers=()),)
        assert_refused(register(), 422, f"'{name}'")
    hand.services = (RegisteredService(name="Greeter", kind=ServiceKind.OBJECT, handlers=()),)
    assert_refused(register(), 409, "'Greeter'", "SERVICE", "VIRTUAL_OBJECT")


def test_a_deployment_that_invocations_need_is_forgotten_by_force_alone(http, hand):
    (deployment,) = http.get("/admin/deployments").json()["deployments"]
    id_ = send(http)
    path = f"/admin/deployments/{deployment['id']}"
    assert_refused(http.delete(path), 409, f"'{deployment['id']}'", 1, id_)
    assert http.delete(path, params={"force": "true"}).json() == {"changed": True}
    assert http.get("/admin/deployments").json() == {"deployments": []}
    assert get_output(http, id_).status_code == 409
    assert_refused(http.post("/Greeter/greet"), 404)


def test_invocations_are_listed_by_filters(http, hand):
    first, second = send(http), send(http, "/Counter/a/add", b"1")
    third = send(http, "/Counter/a/add", b"1")

    def ids(**query):
        invocations = http.get("/admin/invocations", params=query).json()["invocations"]
        return [invocation["id"] for invocation in invocations]

    assert ids() == [third, second, first]
    assert ids(limit=1) == [third]
    assert ids(service="Greeter") == ids(handler="greet") == [first]
    assert ids(key="a") == [third, second]
    assert ids(status="inbox") == [third]
    hand.claim()
    hand.store.do(Pause(id=first))
    assert ids(status="paused") == [first]
    assert ids(status="failed") == []
    hand.finish(second, Failure(code=404, message="no"))
    assert ids(status="failed") == ids(status="completed") == [second]


def test_an_invocation_is_shown_with_its_journal(http, hand):
    id_ = send(http, "/Counter/a/add", b"1", **{"idempotency-key": "k"})
    hand.claim()
    hand.commit(id_, 1, pb.RunEntryMessage(name="charge", value=b"\xff\x00"))
    hand.commit(id_, 2, pb.SetStateEntryMessage(key=b"total", value=b"1"))
    call = pb.CallEntryMessage(service_name="Greeter", handler_name="greet", parameter=b'"Ada"')
    hand.commit(id_, 3, call)
    hand.suspend(id_, 3)
    shown = http.get(f"/admin/invocations/{id_}").json()
    journal = shown.pop("journal")
    assert (shown["target"], shown["idempotency_key"]) == ("Counter/a/add", "k")
    assert (shown["status"], shown["waits_for"], shown["entries"]) == ("suspended", [3], 4)
    assert shown["created"].endswith("+00:00")
    assert [entry["type"] for entry in journal] == ["Input", "Run", "SetState", "Call"]
    assert [entry["state"] for entry in journal] == ["stored", "stored", "stored", "waiting"]
    assert journal[1]["name"] == "charge"
    assert journal[1]["result"] == {"value": "0xff00", "bytes": 2}
    assert journal[2]["detail"] == {"key": "total", "value": "1"}
    child = journal[3]["detail"].pop("invocation")
    assert journal[3]["detail"] == {
        "service_name": "Greeter",
        "handler_name": "greet",
        "parameter": '"Ada"',
    }
    assert http.get(f"/admin/invocations/{child}").json()["called_by"] == id_


def test_an_invocation_is_paused_resumed_canceled_killed_and_purged(http, hand):
    id_ = send(http)

    def change(verb):
        return http.patch(f"/admin/invocations/{id_}/{verb}")

    def changes(verb):
        answer = change(verb)
        assert answer.status_code == 200, answer.text
        return answer.json()["changed"]

    hand.claim()
    assert [changes("pause"), changes("pause")] == [True, False]
    assert [changes("resume"), changes("resume")] == [True, False]
    assert_refused(change("purge"), 409, id_)
    assert changes("cancel")
    assert [changes("kill"), changes("kill")] == [True, False]
    assert_refused(change("pause"), 409, id_)
    output = get_output(http, id_)
    assert (output.status_code, output.json()["message"]) == (409, "killed")
    assert changes("purge")
    assert_refused(get_output(http, id_), 404, id_)


SEGMENTS = st.sampled_from(
    [
        *("Greeter", "greet", "Counter", "add", "Signup", "run", "send", "restate", "admin"),
        *("awakeables", "invocation", "workflow", "output", "resolve", "reject", "cancel", "purge"),
        *("deployments", "services", "invocations", "prom_1AAAA", "inv_1AAAA", "a%2Fb", "%00", ""),
        *("..", "%ff", "%2e%2e", "x" * 5_000),
    ]
)
QUERIES = st.sampled_from(["", "delay=1s", "delay=", "limit=-1", "status=%ff", "force=true"])
TYPES = st.sampled_from(["", "application/json", "text/plain", "a", "application/json;x=\xff"])


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS"]),
    parts=st.lists(SEGMENTS, max_size=6),
    query=QUERIES,
    type_=TYPES,
    content=st.sampled_from([b"", b"1", b"{}", b'{"uri": 1}', b"\xff", b"[" * 100_000]),
)
def test_no_request_brings_the_server_down(http, hand, method, parts, query, type_, content):
    """Each is carried out, or refused with a reason."""

    async def wait_for_result(_id):
        return Failure(code=409, message="at once")

    hand.wait_for_result = wait_for_result
    url = f"http://127.0.0.1:4080/{'/'.join(parts)}?{query}"
    headers = {"content-type": type_.encode("latin-1"), "idempotency-key": "one"}
    answer = http.request(method, url, content=content, headers=headers)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400 and method != "HEAD" and answer.content:
        assert set(answer.json()) == {"code", "message"}, answer.text


@pytest.mark.parametrize(
    ("error", "status"), [(UnavailableError("away"), 503), (RuntimeError("a secret"), 500)]
)
def test_a_database_that_is_away_or_broken_is_a_failure(http, hand, caplog, error, status):
    def read_services():
        raise error

    hand.store.services = read_services
    answer = http.post("/Greeter/greet", content=b"1", headers=JSON)
    assert_refused(answer, status)
    assert ("away" in answer.text, answer.headers.get("retry-after")) == (
        (True, "1") if status == 503 else (False, None)
    )
    assert "secret" not in answer.text
    assert ("a secret" in caplog.text) is (status == 500)


def test_an_invocation_that_waits_beyond_all_dates_is_listed_and_shown(http, hand):
    id_ = send(http)
    hand.claim()
    hand.commit(id_, 1, pb.SleepEntryMessage(wake_up_time=2**64 - 1))
    later = pb.OneWayCallEntryMessage(service_name="Greeter", handler_name="greet")
    later.invoke_time = 10**18
    hand.commit(id_, 2, later)
    invocations = http.get("/admin/invocations").json()["invocations"]
    last = "9999-12-31T23:59:59.000+00:00"
    assert [invocation["next_at"] for invocation in invocations] == [last, None]
    sleep = http.get(f"/admin/invocations/{id_}").json()["journal"][1]
    assert sleep["detail"]["wake_up_time"] == last


def test_an_idempotency_key_is_utf_8_in_headers_as_in_paths(http):
    id_ = send(http, **{"idempotency-key": "\u00e9\u4e2d".encode()})
    assert_refused(get_output(http, "Greeter/greet/%C3%A9%E4%B8%AD"), 470, id_)
