"""`iscp invocations` over a database in SQLite, and the runtime's HTTP before it."""

from datetime import timedelta
from functools import partial

import httpx
import pytest
from starlette.testclient import TestClient

from durable_invocations.client.client import Client
from durable_invocations.ingress.app import IngressSettings, create_app
from durable_invocations.protocol import ids
from durable_invocations.protocol.awakeables import make_awakeable_id
from durable_invocations.protocol.failures import ErrorReport, Failure
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.runtime.retries import RetryPolicy
from durable_invocations.runtime.sql.database import open_database
from durable_invocations.runtime.sql.store import SqlStore
from durable_invocations.runtime.store.deployments import Deployment
from durable_invocations.runtime.store.operations import Fail, Register, Resume, Submit
from iscp_dagster.jobservices import server
from iscp_dagster.model.variables import HOME, INVOCATIONS_URL, LOG_URL
from runtime_support.runtimes.manual_backend import SERVICES, URL, ByHand
from support.clients.cli import found, printed, refused, run_command


@pytest.fixture
def hand(tmp_path):
    store = SqlStore(open_database(f"sqlite:///{tmp_path}/log.sqlite"))
    store.ensure()
    store.do(Register(deployment=Deployment(id="dp_1", url=URL), services=SERVICES))
    yield ByHand(store)
    store.engine.dispose()


@pytest.fixture
def iscp(hand, tmp_path, capsys, monkeypatch):
    """Give a function that runs a command line and returns exit code and output."""
    monkeypatch.setenv(LOG_URL, f"sqlite:///{tmp_path}/log.sqlite")
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    monkeypatch.setenv(INVOCATIONS_URL, "http://127.0.0.1:4080")
    app = create_app(IngressSettings(backend=hand))

    with TestClient(app, "http://127.0.0.1:4080", client=("127.0.0.1", 5)) as http:

        def carried(request):
            path = request.url.raw_path.decode()
            answer = http.request(
                request.method, path, content=request.content, headers=request.headers.items()
            )
            return httpx.Response(
                answer.status_code, content=answer.content, headers=answer.headers
            )

        reached = partial(Client, transport=httpx.MockTransport(carried))
        monkeypatch.setattr("iscp_dagster.serviceconsumers.runtime.Client", reached)
        yield partial(run_command, capsys, monkeypatch, "invocations")


def submitted(hand, service="Greeter", handler="greet", key="", argument=b'"Ada"', **more):
    id_ = ids.format_id(ids.make_id())
    asked = Submit(id=id_, service=service, handler=handler, key=key, argument=argument, **more)
    return hand.store.do(asked).id


def line_of(said, word):
    (line,) = [each for each in said.splitlines() if word in each]
    return line


def test_invocations_are_listed_with_their_status(iscp, hand):
    assert printed(iscp, "list") == "0 invocations\n"
    first, second = submitted(hand), submitted(hand, "Counter", "add", "orders/7")
    hand.claim()
    hand.finish(first, b"1")
    said = printed(iscp, "list")
    assert said.startswith("2 invocations: 1 running, 1 completed\n")
    assert "completed" in line_of(said, first)
    assert "running" in line_of(said, second)
    assert "Counter/orders/7/add" in said
    assert said.endswith("2 invocations\n")
    assert [each["id"] for each in found(iscp, "list")] == [second, first]
    assert [each["id"] for each in found(iscp, "list", "--status", "completed")] == [first]
    assert [each["id"] for each in found(iscp, "list", "--service", "Counter")] == [second]
    assert [each["id"] for each in found(iscp, "list", "--key", "orders/7")] == [second]
    assert printed(iscp, "list", "--limit", "1").endswith(
        "1 invocation, the latest; --limit shows more than 1\n"
    )
    said = refused(iscp, "list", "--status", "tired")
    assert "The status 'tired' is unknown; use one of scheduled, inbox" in said
    assert "completed or failed." in said


def test_invocations_are_counted_whatever_the_limit_and_one_line_each_when_piped(iscp, hand, piped):
    first, second = submitted(hand), submitted(hand, "Counter", "add", "orders/7")
    hand.claim()
    hand.finish(first, Failure(code=404, message="no order"))
    counts, heads, row, end = iscp("list", "--limit", "1")[1].splitlines()
    assert counts == "2 invocations: 1 running, 1 completed"
    assert heads.split()[:3] == ["invocation", "target", "status"]
    assert row.split()[:3] == [second, "Counter/orders/7/add", "running"]
    assert end == "1 invocation, the latest; --limit shows more than 1"
    counts, _, row, _ = iscp("list", "--service", "Greeter")[1].splitlines()
    assert counts == "1 invocation: 1 completed"
    assert row.split()[-3:] == ["404:", "no", "order"]


def test_a_journal_is_shown_entry_by_entry_with_names_states_and_times(iscp, hand):
    id_ = submitted(hand, "Counter", "add", "orders/7", idempotency_key="once")
    hand.claim()
    entries = [
        pb.RunEntryMessage(name="charge the card", value=b'"paid \x1b[31m"'),
        pb.CallEntryMessage(service_name="Greeter", handler_name="greet", parameter=b'"Ada"'),
        pb.SleepEntryMessage(wake_up_time=32_503_680_000_000),
        pb.AwakeableEntryMessage(name="approval"),
        pb.GetCallInvocationIdEntryMessage(call_entry_index=2),
        pb.RunEntryMessage(name="mail", failure=Failure(code=503, message="no mail").written()),
    ]
    for index, message in enumerate(entries, start=1):
        hand.commit(id_, index, message)
    hand.suspend(id_, 3, 4)
    said = printed(iscp, "show", id_)
    assert line_of(said, "target").split() == ["target", "Counter/orders/7/add"]
    assert line_of(said, "waits for").split() == ["waits", "for", "3,", "4"]
    assert line_of(said, "idempotency").split() == ["idempotency", "once"]
    assert '"paid \\x1b[31m"' in said
    assert "charge the card" in said
    table = said.partition("\n4 waits:")[0].splitlines()
    assert "" not in table[table.index("") + 1 :]
    rows = {line.split()[0]: line.split() for line in table if line[:1].isdigit()}
    states = {number: row[2] for number, row in rows.items()}
    waiting = dict.fromkeys("34", "waiting")
    assert states == {"0": "stored", "1": "stored", "2": "waiting", **waiting} | {
        "5": "completed",
        "6": "failed",
    }
    assert "3000-01-01" in said
    awakeable = make_awakeable_id(ids.parse_id(id_), 4)
    assert said.endswith(f"\n4 waits: iscp invocations resolve {awakeable}\n")
    times = [each["stored"] for each in found(iscp, "show", id_)["journal"]]
    assert times == sorted(times)
    day, clock = times[1][5:10], times[1][11:23]
    assert f"{day} {clock}" in said


def test_why_an_attempt_failed_is_shown(iscp, hand):
    id_ = submitted(hand)
    hand.claim()
    error = ErrorReport(code=500, message="[red]no[/] connection", index=0, name="x")
    fence = hand._driven[id_].fence
    hand.store.do(Fail(id=id_, fence=fence, error=error, next_at=32_503_680_000_000))
    listed = printed(iscp, "list")
    assert "backing off" in line_of(listed, id_)
    assert line_of(listed, "connection").split() == ["500:", "[red]no[/]", "connection"]
    said = printed(iscp, "show", id_)
    assert "500 at entry 0 (x): [red]no[/] connection" in said
    assert line_of(said, "deployment").split() == ["deployment", "dp_1"]
    assert line_of(said, "next try").split()[2] == "3000-01-01"
    assert line_of(said, "status").split() == ["status", "backing", "off"]


def test_all_that_a_service_said_of_its_failure_is_shown(iscp, hand):
    id_ = submitted(hand)
    hand.claim()
    trace = f"Traceback:\n  File charge.py, line 7\n{'x' * 100}\n\x1b[2J[red]"
    error = ErrorReport(message="no", description=trace, index=1, name="charge", kind=0x0C05)
    hand.store.do(Fail(id=id_, fence=hand._driven[id_].fence, error=error, next_at=2**42))
    said = printed(iscp, "show", id_)
    assert "500 at entry 1 (Run, charge): no" in said
    assert "  File charge.py, line 7 " in said
    assert "\\x1b[2J[red]" in said
    told = found(iscp, "show", id_)["error"]
    assert (told["type"], told["name"], told["description"]) == ("Run", "charge", trace)
    assert "description" not in found(iscp, "list")[0]["error"]
    strange = ErrorReport(message="no", kind=0xFBFF)
    hand.store.do(Resume(id=id_))
    hand.claim()
    hand.store.do(Fail(id=id_, fence=hand._driven[id_].fence, error=strange, next_at=2**42))
    assert found(iscp, "show", id_)["error"]["type"] == "0xFBFF"


def test_an_invocation_that_failed_is_told_from_one_that_did_not(iscp, hand):
    id_ = submitted(hand)
    hand.claim()
    hand.finish(id_, Failure(code=404, message=f"no\norder {'7' * 80}"))
    said = printed(iscp, "list", "--status", "completed")
    assert line_of(said, id_).split()[1] == "failed"
    assert line_of(said, "404: no order 777").rstrip().endswith("7…")
    done = submitted(hand)
    hand.claim()
    hand.finish(done, b"1")
    assert [each["id"] for each in found(iscp, "list", "--status", "failed")] == [id_]
    assert line_of(printed(iscp, "show", id_), "status").split() == ["status", "failed"]
    assert line_of(printed(iscp, "show", done), "status").split() == ["status", "completed"]
    assert found(iscp, "list")[0]["status"] == "completed"


def test_an_argument_that_is_no_utf_8_finds_nothing(iscp):
    """A shell may give any bytes."""
    for option in ("--key", "--service", "--handler"):
        assert found(iscp, "list", option, "\udcff") == []
    for command in (["show"], ["cancel"], ["resolve", "x", "--reject"]):
        code, said = iscp(*command, "\udcff")
        assert (code, "\\udcff" in said, len(said.splitlines())) == (1, True, 1)


def test_an_unknown_invocation_is_told(iscp):
    said = refused(iscp, "show", "inv_1nothing")
    assert said == (
        "iscp: There is no invocation 'inv_1nothing'; `iscp invocations list` shows those kept.\n"
    )
    said = refused(iscp, "cancel", "inv_1nothing")
    assert "refused with 404" in said


def test_invocations_are_canceled_killed_paused_resumed_and_purged(iscp, hand):
    id_ = submitted(hand)
    hand.claim()
    assert printed(iscp, "pause", id_) == f"{id_} is paused.\n"
    assert printed(iscp, "resume", id_) == f"{id_} is resumed.\n"
    assert printed(iscp, "resume", id_) == f"{id_} is left as it is: there is nothing to resume.\n"
    assert printed(iscp, "cancel", id_) == f"{id_} is canceled.\n"
    assert found(iscp, "kill", id_) == {"id": id_, "changed": True}
    assert line_of(printed(iscp, "show", id_), "result").split(maxsplit=1)[1].rstrip() == (
        "failed with 409: killed"
    )
    assert printed(iscp, "purge", id_) == f"{id_} is forgotten.\n"
    assert found(iscp, "list") == []


def test_an_awakeable_is_resolved_with_json_or_rejected(iscp, hand):
    id_ = submitted(hand)
    hand.claim()
    for index in (1, 2):
        hand.commit(id_, index, pb.AwakeableEntryMessage())
    first, second = (make_awakeable_id(ids.parse_id(id_), index) for index in (1, 2))
    said = refused(iscp, "resolve", first, "yes", status=2)
    assert "'yes' is not JSON; quote text" in said
    assert iscp("resolve", first, "1", "--reject", "no")[0] == 2
    assert printed(iscp, "resolve", first, '{"ok": true}') == f"{first} is resolved.\n"
    assert printed(iscp, "resolve", first) == f"{first} was completed before.\n"
    assert found(iscp, "resolve", second, "--reject", "no")["changed"]
    results = [each["result"] for each in found(iscp, "show", id_)["journal"][1:]]
    assert results == [
        {"value": '{"ok": true}', "bytes": 12},
        {"failure": {"code": 500, "message": "no"}},
    ]


def test_addresses_are_deployed_and_listed(iscp, hand):
    said = printed(iscp, "deploy", "http://127.0.0.1:9081")
    assert "http://127.0.0.1:9081 (dp_2)" in said
    assert "  Counter (VIRTUAL_OBJECT): add, get" in said
    told = found(iscp, "deploy")
    assert [(each["uri"], len(each["services"])) for each in told] == [
        *((URL, 0), ("http://127.0.0.1:9081", 3)),
    ]
    said = printed(iscp, "deploy")
    assert "  Greeter (SERVICE): greet, raw" in said
    assert said.splitlines()[1] == "  no service: new invocations go elsewhere"
    said = refused(iscp, "deploy", "ftp://host")
    assert "422: The address" in said


def test_no_option_of_serve_is_cut_short_in_its_help(iscp, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert "…" not in printed(iscp, "serve", "--help")


@pytest.mark.parametrize("keep", ["", "0s", "soon"])
def test_a_retention_that_is_none_is_an_error_of_usage(iscp, keep):
    said = refused(iscp, "serve", "--keep", keep, status=2)
    assert "is not a duration" in said


def test_what_cannot_be_served_is_told_before_anything_is(iscp, monkeypatch):
    monkeypatch.setenv("ISCP_INVOCATIONS_TOKEN", "")
    said = refused(iscp, "serve", "--host", "0.0.0.0")
    assert "ISCP_INVOCATIONS_TOKEN is not set" in said
    said = refused(iscp, "serve", "--retry-factor", "0.5")
    assert "The retry policy" in said


def test_retries_and_retention_are_set_by_options_and_by_the_environment(iscp, monkeypatch):
    """As the stack hands its environment on, and gives no such options."""
    served = []
    monkeypatch.setattr(server, "serve", lambda settings, *_, **__: served.append(settings))
    for name, value in {"RETRY_INITIAL": "2", "RETRY_FACTOR": "3", "RETRY_CAP": "4"}.items():
        monkeypatch.setenv(f"ISCP_INVOCATIONS_{name}", value)
    monkeypatch.setenv("ISCP_INVOCATIONS_RETRY_ATTEMPTS", "5")
    monkeypatch.setenv("ISCP_INVOCATIONS_KEEP", "6h")
    assert iscp("serve", "--no-own-services") == (0, "")
    assert iscp("serve", "--no-own-services", "--retry-attempts", "0", "--keep", "7h")[0] == 0
    policies = [each.runtime.policy for each in served]
    assert policies[0] == RetryPolicy(initial=2, factor=3, cap=4, attempts=5)
    assert policies[1] == RetryPolicy(initial=2, factor=3, cap=4, attempts=None)
    assert [each.retention / timedelta(hours=1) for each in served] == [6, 7]
    monkeypatch.setenv("ISCP_INVOCATIONS_RETRY_ATTEMPTS", "many")
    said = refused(iscp, "serve", "--no-own-services", status=2)
    assert "'--retry-attempts': 'many'" in said
