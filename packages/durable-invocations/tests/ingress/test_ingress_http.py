"""The ingress and the administration by HTTP, over a real store whose invocations go by hand."""

import asyncio
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
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
from runtime_support.runtimes.manual_backend import SERVICES, URL, ByHand

JSON = {"content-type": "application/json"}
BOUNDS = IngressBounds(body=1_000, waiting=2)
LARGE = b"[" + b"1," * 100_000 + b"1]"


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """Make a database with the services registered once; to copy it takes less."""
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


def sent(http, path="/Greeter/greet", argument=b'"Ada"', **headers):
    """Send an invocation; its id."""
    answer = http.post(f"{path}/send", content=argument, headers={**JSON, **headers})
    assert answer.status_code in {200, 202}, answer.text
    assert answer.headers["x-restate-id"] == answer.json()["invocationId"]
    return answer.json()["invocationId"]


def refused(answer, status):
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert set(told) == {"code", "message"}
    assert told["code"] == status
    assert "x-restate-id" not in answer.headers
    return told["message"]


def in_background(http, hand, method, path, **request):
    """A request that waits for an output; returns once it does."""
    with ThreadPoolExecutor() as pool:
        future = pool.submit(http.request, method, path, **request)
        assert hand.waiting.acquire(timeout=20)
        yield future


def test_a_call_waits_for_the_output_of_the_handler(http, hand):
    for future in in_background(
        http, hand, "POST", "/Greeter/greet", content=b'"Ada"', headers={**JSON, "x-team": "a"}
    ):
        (id_,) = hand.claim()
        found = hand.store.read_journal(id_)[0].frame.message()
        assert found.value == b'"Ada"'
        assert ("x-team", "a") in [(each.key, each.value) for each in found.headers]
        hand.finish(id_, b'"Hello Ada"')
        answer = future.result(20)
    assert (answer.status_code, answer.json()) == (200, "Hello Ada")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-restate-id"] == id_


def test_a_terminal_failure_is_the_status_of_the_answer(http, hand):
    for future in in_background(http, hand, "POST", "/Greeter/greet", content=b"1", headers=JSON):
        (id_,) = hand.claim()
        hand.finish(id_, Failure(code=418, message="I am a teapot"))
        answer = future.result(20)
    assert answer.status_code == 418
    assert answer.json() == {"code": 418, "message": "I am a teapot"}
    assert answer.headers["x-restate-id"] == id_


def test_many_who_ask_for_one_output_read_it_one_after_the_other(http, hand):
    """Else a large one takes up all threads that read, and much memory."""
    id_ = sent(http)
    hand.finish(id_, LARGE)
    reading, together, read = [], threading.Event(), hand.store.invocation

    def read_slowly(asked):
        reading.append(asked)
        if len(reading) > 1:
            together.set()
        together.wait(0.1)
        found = read(asked)
        reading.remove(asked)
        return found

    hand.store.invocation = read_slowly
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(http.get, [f"/restate/invocation/{id_}/attach"] * 3))
    assert {(each.status_code, each.content) for each in answers} == {(200, LARGE)}
    assert not together.is_set()


async def test_services_are_read_anew_when_they_may_have_changed(hand):
    """What is registered is served at once, and what was read before is kept for a second."""
    now, asked = [0.0], []

    def services(asked_before=hand.store.services):
        asked.append(now[0])
        return asked_before()

    hand.store.services = services
    catalog = Catalog(hand, clock=lambda: now[0])

    found = await catalog.find_service("Greeter", "greet")
    assert found.handler("bow") is None
    for now[0] in (0.5, 0.9):
        assert await catalog.find_service("Greeter", "greet") == found
    assert await catalog.find_service("Nobody", "greet") is None
    bow = replace(found, handlers=(*found.handlers, RegisteredHandler(name="bow")))
    hand.store.do(Register(deployment=Deployment(id="dp_1", url=URL), services=(bow,)))
    assert (await catalog.find_service("Greeter", "ada", "bow")).handler("bow")
    now[0] = 2.0
    assert (await catalog.find_service("Greeter", "greet")).handler("bow")
    assert asked == [0.0, 0.9, 0.9, 2.0]


def test_an_object_is_called_by_its_key(http, hand):
    id_ = sent(http, "/Counter/a%2Fb%20c/add", b"1")
    found = hand.store.invocation(id_)
    assert (found.service, found.key, found.handler) == ("Counter", "a/b c", "add")


def test_a_key_of_several_lines_is_a_key_wherever_it_is_named(http, hand):
    id_ = sent(http, "/Signup/a%0Ab/run", b"1")
    assert hand.store.invocation(id_).key == "a\nb"
    refused(http.get("/restate/workflow/Signup/a%0Ab/output"), 470)
    sent(http, "/Counter/a%0Ab/add", b"1", **{"idempotency-key": "k"})
    refused(http.get("/restate/invocation/Counter/a%0Ab/add/k/output"), 470)


def test_a_send_is_accepted_at_once_and_a_delayed_one_begins_later(http, hand):
    now = sent(http)
    later = http.post("/Greeter/greet/send?delay=1h", content=b"1", headers=JSON)
    assert (later.status_code, later.json()["status"]) == (202, "Accepted")
    found = hand.store.invocation(later.json()["invocationId"])
    assert found.status.label == "scheduled"
    assert 3_590_000 < found.next_at - found.created <= 3_600_000
    assert hand.claim() == [now]


def test_an_idempotency_key_makes_one_invocation(http, hand):
    key = {"idempotency-key": "order-1"}
    id_ = sent(http, **key)
    again = http.post("/Greeter/greet/send", content=b'"Bob"', headers={**JSON, **key})
    assert again.status_code == 200
    assert again.json() == {"invocationId": id_, "status": "PreviouslyAccepted"}
    assert sent(http, "/Greeter/raw", **key) != id_
    hand.finish(id_, b"7")
    # A call attaches to it, as do both forms of its name.
    answer = http.post("/Greeter/greet", content=b'"Eve"', headers={**JSON, **key})
    assert (answer.content, answer.headers["x-restate-id"]) == (b"7", id_)
    for verb in ("attach", "output"):
        assert http.get(f"/restate/invocation/Greeter/greet/order-1/{verb}").json() == 7
        assert http.get(f"/restate/invocation/{id_}/{verb}").json() == 7


def test_an_objects_idempotency_key_is_of_its_key(http, hand):
    key = {"idempotency-key": "k"}
    id_ = sent(http, "/Counter/a/add", b"1", **key)
    assert sent(http, "/Counter/b/add", b"1", **key) != id_
    hand.finish(id_, b"1")
    assert http.get("/restate/invocation/Counter/a/add/k/output").json() == 1
    refused(http.get("/restate/invocation/Counter/b/add/k/output"), 470)
    refused(http.get("/restate/invocation/Counter/c/add/k/output"), 404)


def test_a_workflows_run_is_one_for_its_key(http, hand):
    id_ = sent(http, "/Signup/ada/run", b"1")
    assert sent(http, "/Signup/ada/run", b"2") == id_
    refused(http.get("/restate/workflow/Signup/ada/output"), 470)
    hand.finish(id_, b'"done"')
    for verb in ("attach", "output"):
        assert http.get(f"/restate/workflow/Signup/ada/{verb}").json() == "done"
    refused(http.get("/restate/workflow/Signup/bob/attach"), 404)
    refused(http.get("/restate/workflow/Counter/ada/attach"), 404)


def test_an_output_that_is_not_there_yet_is_470_and_attaching_waits_for_it(http, hand):
    id_ = sent(http)
    said = refused(http.get(f"/restate/invocation/{id_}/output"), 470)
    assert f"{id_} has not ended: it is ready" in said
    for future in in_background(http, hand, "GET", f"/restate/invocation/{id_}/attach"):
        hand.finish(id_, b"7")
        assert future.result(20).json() == 7


def test_an_output_has_the_content_type_of_its_handler(http, hand):
    id_ = sent(http, "/Greeter/raw", b"\x00")
    hand.finish(id_, b"plain")
    answer = http.get(f"/restate/invocation/{id_}/output")
    assert (answer.text, answer.headers["content-type"]) == ("plain", "text/plain")


def test_an_output_that_is_a_page_runs_nothing_in_the_runtimes_name(http, hand):
    """A person may open it by a link, and its scripts could invoke whatever they like."""
    id_ = sent(http, "/Greeter/raw", b"\x00")
    hand.finish(id_, b"<script>")
    for path in (f"/restate/invocation/{id_}/output", f"/admin/invocations/{id_}", "/nowhere"):
        answer = http.get(path)
        assert answer.headers["content-security-policy"] == "sandbox", path
        assert answer.headers["x-content-type-options"] == "nosniff", path


def test_an_awakeable_is_resolved_or_rejected_once(http, hand):
    id_ = sent(http)
    hand.claim()
    for index in (1, 2):
        hand.commit(id_, index, pb.AwakeableEntryMessage())
    first, second = (make_awakeable_id(parse_id(id_), index) for index in (1, 2))
    refused(http.post(f"/restate/awakeables/{first}/resolve", content=b"{", headers=JSON), 400)
    resolved = http.post(f"/restate/awakeables/{first}/resolve", content=b'{"a": 1}', headers=JSON)
    assert (resolved.status_code, resolved.json()) == (202, {"changed": True})
    assert http.post(f"/restate/awakeables/{first}/reject", content=b"no").json() == {
        "changed": False
    }
    assert http.post(f"/restate/awakeables/{second}/reject", content="zu spät".encode()).json() == {
        "changed": True
    }
    told = http.get(f"/admin/invocations/{id_}").json()["journal"]
    assert [each["state"] for each in told] == ["stored", "completed", "failed"]
    assert told[1]["detail"] == {"id": first}
    assert told[1]["result"]["value"] == '{"a": 1}'
    assert told[2]["result"] == {"failure": {"code": 500, "message": "zu spät"}}
    unknown = make_awakeable_id(make_id(), 1)
    refused(http.post(f"/restate/awakeables/{unknown}/resolve"), 404)
    refused(http.post("/restate/awakeables/prom_1x/resolve"), 404)
    refused(http.post(f"/restate/awakeables/{first}/finish"), 404)
    refused(http.post(f"/restate/awakeables/{second}/reject", content=b"\xff"), 400)


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("POST", "/Nobody/greet", 404, "There is no service 'Nobody'"),
        ("POST", "/Greeter/bow", 404, "has no handler 'bow'; it has: greet, raw"),
        ("POST", "/Greeter/ada/greet", 404, "Greeter has no key: call /Greeter/{handler}"),
        ("POST", "/Counter/add", 404, "Counter has a key"),
        ("POST", "/Greeter", 404, "Greeter has no key"),
        ("POST", "/", 400, "A segment of the path is empty"),
        ("POST", "/Counter//add", 400, "A segment of the path is empty"),
        ("POST", "/Counter/%00/add", 400, "NUL"),
        ("POST", "/Counter/%ff/add", 400, "not UTF-8"),
        ("POST", "/Greeter/greet/send?delay=soon", 400, "The delay 'soon' is invalid"),
        ("POST", "/Greeter/greet?delay=1s", 400, "Only /send can be delayed"),
        ("POST", "/Greeter/greet/send?delaySec=60", 400, "'delaySec' is unknown; /send takes"),
        ("GET", "/Greeter/greet", 405, "Method Not Allowed; use POST."),
        ("GET", "/restate/awakeables/x/resolve", 405, "Method Not Allowed"),
        ("POST", "/restate/invocation/x/attach", 405, "Method Not Allowed; use GET or HEAD."),
        ("GET", "/restate/invocation/x", 404, "Name an invocation by"),
        ("GET", "/restate/nothing", 404, "GET /restate/nothing: Not Found"),
        ("POST", "/restate/nothing", 404, "Not Found."),
        ("POST", "/admin/nothing", 404, "Not Found"),
        ("GET", "/admin/invocations?colour=red", 400, "'colour' is unknown"),
        ("GET", "/admin/invocations?status=tired", 400, "'tired' is unknown"),
        ("GET", "/admin/invocations?limit=0", 400, "limit='0' is not a number from 1"),
        ("GET", "/admin/invocations?limit=10001", 400, "not a number from 1 to 10,000"),
        ("GET", f"/admin/invocations?limit={'9' * 5_000}", 400, "not a number from 1 to 10,000"),
        ("GET", f"/admin/invocations?before={'9' * 5_000}", 400, "not a number from 1 to"),
        ("GET", "/admin/invocations?key=%00", 400, "contains a NUL"),
        ("GET", "/admin/invocations/%00", 400, "contains a NUL"),
        ("PATCH", "/admin/invocations/%00/kill", 400, "contains a NUL"),
        ("DELETE", "/admin/deployments/%00", 400, "contains a NUL"),
        ("PUT", "/admin/deployments", 405, "Method Not Allowed"),
    ],
)
def test_what_cannot_be_carried_out_says_why(http, hand, method, path, status, says):
    answer = http.request(method, path, content=b"1" if method == "POST" else None, headers=JSON)
    assert says in refused(answer, status)
    assert hand.store.invocations() == []


def test_an_unknown_invocation_is_404_in_every_way(http):
    id_ = format_id(make_id())
    for verb in ("attach", "output"):
        assert id_ in refused(http.get(f"/restate/invocation/{id_}/{verb}"), 404)
    refused(http.get(f"/admin/invocations/{id_}"), 404)
    for verb in ("cancel", "kill", "pause", "resume"):
        refused(http.patch(f"/admin/invocations/{id_}/{verb}"), 404)
    refused(http.patch(f"/admin/invocations/{id_}/dance"), 404)


def test_a_body_that_the_handler_does_not_take_is_refused(http, hand):
    form = {"content-type": "application/x-www-form-urlencoded"}
    refused(http.post("/Greeter/greet", content=b"a=b", headers=form), 415)
    refused(http.post("/Greeter/greet", content=b"{", headers=JSON), 400)
    large = b" " * 1_001
    refused(http.post("/Greeter/greet", content=large, headers=JSON), 413)
    chunks = (large[:500] for _ in range(3))
    refused(http.post("/Greeter/greet/send", content=chunks, headers=JSON), 413)
    for keys in (["a", "b"], ["k" * 1_025], [""]):
        headers = [*JSON.items(), *(("idempotency-key", each) for each in keys)]
        refused(http.post("/Greeter/greet/send", content=b"1", headers=headers), 400)
    assert hand.store.invocations() == []


def test_another_web_page_and_another_host_are_refused(http, hand):
    assert "Origin" in refused(
        http.post("/Greeter/greet/send", headers={"Origin": "https://elsewhere.example"}), 403
    )
    refused(http.get("/admin/invocations", headers={"Sec-Fetch-Site": "cross-site"}), 403)
    refused(http.post("/Greeter/greet/send", headers={"Host": "rebound.example"}), 403)
    assert hand.asked == 0


def test_with_a_token_nothing_is_answered_without_it(hand):
    app = create_app(IngressSettings(backend=hand, token="a-token-of-sixteen"))
    with TestClient(app) as http:
        for method, path in (("POST", "/Greeter/greet"), ("GET", "/admin/invocations")):
            assert "the runtime's token" in refused(http.request(method, path), 401)
        assert http.get("/restate/health").json() == {"status": "ok"}
        assert hand.asked == 0
        mine = {"Authorization": "Bearer a-token-of-sixteen", "Host": "any.example"}
        assert http.get("/admin/invocations", headers=mine).json() == {"invocations": []}


def test_no_more_requests_wait_than_the_server_takes(http, hand):
    id_ = sent(http)
    path = f"/restate/invocation/{id_}/attach"
    with ThreadPoolExecutor() as pool:
        held = [pool.submit(http.get, path) for _ in range(BOUNDS.waiting)]
        for _ in held:
            assert hand.waiting.acquire(timeout=20)
        refused(http.get(path), 429)
        before = len(hand.store.invocations())
        refused(http.post("/Greeter/greet", content=b"1", headers=JSON), 429)
        assert len(hand.store.invocations()) == before
        hand.finish(id_, b"1")
        assert [each.result(20).json() for each in held] == [1, 1]
    assert http.get(path).json() == 1


def scope():
    """A request as a server hands it on, whose messages a test makes."""
    headers = [(b"host", b"127.0.0.1:4080"), (b"content-type", b"application/json")]
    made = {"type": "http", "method": "POST", "path": "/Greeter/greet", "headers": headers}
    return {**made, "query_string": b"", "scheme": "http", "server": ("127.0.0.1", 4080)}


@pytest.mark.parametrize(("ends", "status"), [("never", 408), ("early", 400)])
def test_a_body_that_does_not_come_whole_invokes_nothing(hand, monkeypatch, ends, status):
    monkeypatch.setattr(bodies, "_SECONDS", 0.01)
    first = {"type": "http.request", "body": b"1", "more_body": True}
    messages, sent_ = [first], []

    async def receive():
        if messages:
            return messages.pop()
        if ends == "never":
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent_.append(message)

    app = create_app(IngressSettings(backend=hand))
    asyncio.run(asyncio.wait_for(app(scope(), receive, send), 20))
    assert sent_[0]["status"] == status
    assert json.loads(sent_[1]["body"])["code"] == status
    assert hand.store.invocations() == []


async def test_a_client_that_goes_leaves_nobody_waiting_and_the_invocation_as_it_is(hand):
    """A canceled wait is seen by the backend, whose coroutine ends."""
    gone, ended = asyncio.Event(), []

    async def waits(_id):
        try:
            gone.set()
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    hand.wait_for_result = waits
    app = create_app(IngressSettings(backend=hand))
    messages = [{"type": "http.request", "body": b"1", "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_message):
        pass

    await asyncio.wait_for(app(scope(), receive, send), 20)
    assert ended == [True]
    (found,) = hand.store.invocations()
    assert found.status.label == "ready"


def test_an_address_is_registered_and_shown_with_its_services(http, hand):
    again = http.post("/admin/deployments", json={"uri": f"{URL}/"})
    assert again.status_code == 200
    other = http.post("/admin/deployments", json={"uri": "http://127.0.0.1:9081/a", "force": True})
    assert other.status_code == 201, other.text
    told = http.get("/admin/deployments").json()["deployments"]
    assert other.json() in told
    assert http.get("/admin/services").json()["services"][1] == {
        "name": "Greeter",
        "ty": "SERVICE",
        "deployment": other.json()["id"],
        "uri": "http://127.0.0.1:9081/a",
        "handlers": [{"name": "greet", "ty": "SHARED"}, {"name": "raw", "ty": "SHARED"}],
    }


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"uri": "ftp://host"}, 422),
        ({"uri": "http://me:secret@host"}, 422),
        ({"uri": 7}, 422),
        ({"url": URL}, 422),
        ({}, 422),
        ({"uri": URL, "force": "yes"}, 422),
        ([], 422),
    ],
)
def test_an_address_that_is_none_is_never_asked(http, hand, body, status):
    hand.refusing = AssertionError("asked")
    assert "secret" not in refused(http.post("/admin/deployments", json=body), status)


def test_a_registration_is_json(http):
    refused(http.post("/admin/deployments", content=b"{}"), 415)
    refused(http.post("/admin/deployments", content=b"{", headers=JSON), 400)
    large = json.dumps({"uri": "x" * 70_000})
    refused(http.post("/admin/deployments", content=large, headers=JSON), 413)


def test_an_address_that_serves_nothing_usable_is_told_so(http, hand):
    for error in (UnavailableError("nobody is there"), ConfigError("no manifest")):
        hand.refusing = error
        assert str(error) in refused(http.post("/admin/deployments", json={"uri": URL}), 502)
    hand.refusing, names = None, ("admin", "restate", "services")
    for name in names:
        hand.services = (RegisteredService(name=name, kind=ServiceKind.SERVICE, handlers=()),)
        assert name in refused(http.post("/admin/deployments", json={"uri": URL}), 422)
    hand.services = (RegisteredService(name="Greeter", kind=ServiceKind.OBJECT, handlers=()),)
    refused(http.post("/admin/deployments", json={"uri": URL}), 409)


def test_a_deployment_that_invocations_need_is_forgotten_by_force_alone(http, hand):
    (told,) = http.get("/admin/deployments").json()["deployments"]
    id_ = sent(http)
    place = f"/admin/deployments/{told['id']}"
    assert f"have not ended (1, such as {id_})" in refused(http.delete(place), 409)
    assert http.delete(place, params={"force": "true"}).json() == {"changed": True}
    assert http.get("/admin/deployments").json() == {"deployments": []}
    assert http.get(f"/restate/invocation/{id_}/output").status_code == 409
    refused(http.post("/Greeter/greet"), 404)


def test_invocations_are_listed_and_chosen(http, hand):
    first, second = sent(http), sent(http, "/Counter/a/add", b"1")
    third = sent(http, "/Counter/a/add", b"1")

    def ids(**query):
        found = http.get("/admin/invocations", params=query).json()["invocations"]
        return [each["id"] for each in found]

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


def test_an_invocation_is_told_with_its_journal(http, hand):
    id_ = sent(http, "/Counter/a/add", b"1", **{"idempotency-key": "k"})
    hand.claim()
    hand.commit(id_, 1, pb.RunEntryMessage(name="charge", value=b"\xff\x00"))
    hand.commit(id_, 2, pb.SetStateEntryMessage(key=b"total", value=b"1"))
    call = pb.CallEntryMessage(service_name="Greeter", handler_name="greet", parameter=b'"Ada"')
    hand.commit(id_, 3, call)
    hand.suspend(id_, 3)
    told = http.get(f"/admin/invocations/{id_}").json()
    journal = told.pop("journal")
    assert told["target"] == "Counter/a/add"
    assert (told["status"], told["waits_for"], told["entries"]) == ("suspended", [3], 4)
    assert told["idempotency_key"] == "k"
    assert told["created"].endswith("+00:00")
    assert [each["type"] for each in journal] == ["Input", "Run", "SetState", "Call"]
    assert [each["state"] for each in journal] == ["stored", "stored", "stored", "waiting"]
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
    id_ = sent(http)

    def changed(verb):
        answer = http.patch(f"/admin/invocations/{id_}/{verb}")
        assert answer.status_code == 200, answer.text
        return answer.json()["changed"]

    hand.claim()
    assert [changed("pause"), changed("pause")] == [True, False]
    assert [changed("resume"), changed("resume")] == [True, False]
    assert "has not ended" in refused(http.patch(f"/admin/invocations/{id_}/purge"), 409)
    assert changed("cancel")
    assert changed("kill")
    assert not changed("kill")
    refused(http.patch(f"/admin/invocations/{id_}/pause"), 409)
    output = http.get(f"/restate/invocation/{id_}/output")
    assert (output.status_code, output.json()["message"]) == (409, "killed")
    assert changed("purge")
    refused(http.get(f"/restate/invocation/{id_}/output"), 404)


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

    async def ended(_id):
        return Failure(code=409, message="at once")

    hand.wait_for_result = ended
    url = f"http://127.0.0.1:4080/{'/'.join(parts)}?{query}"
    headers = {"content-type": type_.encode("latin-1"), "idempotency-key": "one"}
    answer = http.request(method, url, content=content, headers=headers)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400 and method != "HEAD" and answer.content:
        assert set(answer.json()) == {"code", "message"}, answer.text


def test_while_the_database_is_away_the_answer_is_503(http, hand, caplog):
    def away(*_):
        raise UnavailableError("the database does not answer")

    hand.store.services = away
    answer = http.post("/Greeter/greet", content=b"1", headers=JSON)
    assert "does not answer" in refused(answer, 503)
    assert answer.headers["retry-after"] == "1"

    def broken(*_):
        raise RuntimeError("with a secret in it")

    hand.store.services = broken
    assert "secret" not in refused(http.post("/Greeter/greet", content=b"1", headers=JSON), 500)
    assert "with a secret in it" in caplog.text


def test_an_invocation_that_waits_beyond_all_dates_is_listed_and_told(http, hand):
    id_ = sent(http)
    hand.claim()
    hand.commit(id_, 1, pb.SleepEntryMessage(wake_up_time=2**64 - 1))
    later = pb.OneWayCallEntryMessage(service_name="Greeter", handler_name="greet")
    later.invoke_time = 10**18
    hand.commit(id_, 2, later)
    told = http.get("/admin/invocations").json()["invocations"]
    last = "9999-12-31T23:59:59.000+00:00"
    assert [each["next_at"] for each in told] == [last, None]
    sleep = http.get(f"/admin/invocations/{id_}").json()["journal"][1]
    assert sleep["detail"]["wake_up_time"] == last


def test_an_idempotency_key_is_utf_8_in_headers_as_in_paths(http):
    id_ = sent(http, **{"idempotency-key": "\u00e9\u4e2d".encode()})
    found = http.get("/restate/invocation/Greeter/greet/%C3%A9%E4%B8%AD/output")
    assert (found.status_code, id_ in found.text) == (470, True)
