"""`iscp invocations` over a database in SQLite, and the runtime's HTTP before it."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from operator import itemgetter

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
from iscp_dagster.jobservices import runtime_server
from iscp_dagster.model.variables import HOME, INVOCATIONS_URL, LOG_URL
from runtime_support.runtimes.manual_backend import SERVICES, URL, ByHand
from support.errors import assert_names


@pytest.fixture
def hand(tmp_path):
    store = SqlStore(open_database(f"sqlite:///{tmp_path}/log.sqlite"))
    store.ensure()
    store.do(Register(deployment=Deployment(id="dp_1", url=URL), services=SERVICES))
    yield ByHand(store)
    store.engine.dispose()


@pytest.fixture
def iscp(hand, tmp_path, monkeypatch, command_line):
    """Run commands of `iscp invocations` on that database and the runtime's HTTP."""
    monkeypatch.setenv(LOG_URL, f"sqlite:///{tmp_path}/log.sqlite")
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    monkeypatch.setenv(INVOCATIONS_URL, "http://127.0.0.1:4080")
    app = create_app(IngressSettings(backend=hand))

    with TestClient(app, "http://127.0.0.1:4080", client=("127.0.0.1", 5)) as http:

        def carry(request):
            path = request.url.raw_path.decode()
            answer = http.request(
                request.method, path, content=request.content, headers=request.headers.items()
            )
            return httpx.Response(
                answer.status_code, content=answer.content, headers=answer.headers
            )

        client = partial(Client, transport=httpx.MockTransport(carry))
        monkeypatch.setattr("iscp_dagster.serviceconsumers.runtime_client.Client", client)
        yield replace(command_line, group=("invocations",))


def submit(hand, service="Greeter", handler="greet", key="", argument=b'"Ada"', **options):
    """Submit an invocation; return its id."""
    id_ = ids.format_id(ids.make_id())
    target = {"service": service, "handler": handler, "key": key}
    return hand.store.do(Submit(id=id_, **target, argument=argument, **options)).id


def fail_attempt(hand, id_, next_at=32_503_680_000_000, **error):
    """Report a failed attempt of a claimed invocation; the next one is in the year 3000."""
    operation = Fail(
        id=id_, fence=hand._driven[id_].fence, error=ErrorReport(**error), next_at=next_at
    )
    hand.store.do(operation)


def find_line(text, word):
    (line,) = [line for line in text.splitlines() if word in line]
    return line


def list_ids(iscp, *options):
    return [row["id"] for row in iscp.read_json("list", *options)]


def test_invocations_are_listed_with_their_status(iscp, hand):
    assert iscp.read_text("list") == "0 invocations\n"
    first, second = submit(hand), submit(hand, "Counter", "add", "orders/7")
    hand.claim()
    hand.finish(first, b"1")
    text = iscp.read_text("list")
    assert text.startswith("2 invocations: 1 running, 1 completed\n")
    assert_names(find_line(text, first), "completed")
    assert_names(find_line(text, second), "running")
    assert_names(text, "Counter/orders/7/add")
    assert text.endswith("2 invocations\n")
    assert list_ids(iscp) == [second, first]
    assert list_ids(iscp, "--status", "completed") == [first]
    assert list_ids(iscp, "--service", "Counter") == [second]
    assert list_ids(iscp, "--key", "orders/7") == [second]
    end = iscp.read_text("list", "--limit", "1").splitlines()[-1]
    assert_names(end, "1 invocation", "--limit")
    text = iscp.read_failure("list", "--status", "tired")
    assert_names(text, "'tired'", "scheduled, inbox", "completed or failed")


def test_invocations_are_counted_whatever_the_limit_and_one_line_each_when_piped(iscp, hand, piped):
    first, second = submit(hand), submit(hand, "Counter", "add", "orders/7")
    hand.claim()
    hand.finish(first, Failure(code=404, message="no order"))
    counts, heads, row, end = iscp("list", "--limit", "1")[1].splitlines()
    assert counts == "2 invocations: 1 running, 1 completed"
    assert heads.split()[:3] == ["invocation", "target", "status"]
    assert row.split()[:3] == [second, "Counter/orders/7/add", "running"]
    assert_names(end, "1 invocation", "--limit")
    counts, _, row, _ = iscp("list", "--service", "Greeter")[1].splitlines()
    assert counts == "1 invocation: 1 completed"
    assert row.split()[-3:] == ["404:", "no", "order"]


def test_a_journal_is_shown_entry_by_entry_with_names_states_and_times(iscp, hand):
    id_ = submit(hand, "Counter", "add", "orders/7", idempotency_key="once")
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
    text = iscp.read_text("show", id_)
    assert find_line(text, "target").split() == ["target", "Counter/orders/7/add"]
    assert find_line(text, "waits for").split() == ["waits", "for", "3,", "4"]
    assert find_line(text, "idempotency").split() == ["idempotency", "once"]
    assert '"paid \\x1b[31m"' in text
    assert "charge the card" in text
    table = text.partition("\n4 waits:")[0].splitlines()
    assert "" not in table[table.index("") + 1 :]
    rows = [line.split() for line in table if line[:1].isdigit()]
    stored, waiting = dict.fromkeys("01", "stored"), dict.fromkeys("234", "waiting")
    ended = {"5": "completed", "6": "failed"}
    assert {row[0]: row[2] for row in rows} == stored | waiting | ended
    assert "3000-01-01" in text
    awakeable = make_awakeable_id(ids.parse_id(id_), 4)
    assert text.endswith(f"\n4 waits: iscp invocations resolve {awakeable}\n")
    times = [entry["stored"] for entry in iscp.read_json("show", id_)["journal"]]
    assert times == sorted(times)
    day, clock = times[1][5:10], times[1][11:23]
    assert f"{day} {clock}" in text


def test_why_an_attempt_failed_is_shown(iscp, hand):
    id_ = submit(hand)
    hand.claim()
    trace = f"Traceback:\n  File charge.py, line 7\n{'x' * 100}\n\x1b[2J[red]"
    error = {"message": "[red]no[/] lake", "description": trace}
    fail_attempt(hand, id_, index=1, name="pay", kind=0x0C05, **error)
    text = iscp.read_text("list")
    assert_names(find_line(text, id_), "backing off")
    assert find_line(text, "lake").split() == ["500:", "[red]no[/]", "lake"]
    text = iscp.read_text("show", id_)
    assert "500 at entry 1 (Run, pay): [red]no[/] lake" in text
    assert "  File charge.py, line 7 " in text
    assert "\\x1b[2J[red]" in text
    assert find_line(text, "deployment").split() == ["deployment", "dp_1"]
    assert find_line(text, "next try").split()[2] == "3000-01-01"
    assert find_line(text, "status").split() == ["status", "backing", "off"]
    shown = iscp.read_json("show", id_)["error"]
    assert itemgetter("type", "name", "description")(shown) == ("Run", "pay", trace)
    assert "description" not in iscp.read_json("list")[0]["error"]
    hand.store.do(Resume(id=id_))
    hand.claim()
    fail_attempt(hand, id_, code=500, message="no", index=0, name="x")
    assert "500 at entry 0 (x): no" in iscp.read_text("show", id_)
    hand.store.do(Resume(id=id_))
    hand.claim()
    fail_attempt(hand, id_, message="no", kind=0xFBFF)
    assert iscp.read_json("show", id_)["error"]["type"] == "0xFBFF"


def test_an_invocation_that_failed_looks_different_from_one_that_did_not(iscp, hand):
    failed = submit(hand)
    hand.claim()
    hand.finish(failed, Failure(code=404, message=f"no\norder {'7' * 80}"))
    text = iscp.read_text("list", "--status", "completed")
    assert find_line(text, failed).split()[1] == "failed"
    assert find_line(text, "404: no order 777").rstrip().endswith("7…")
    completed = submit(hand)
    hand.claim()
    hand.finish(completed, b"1")
    assert list_ids(iscp, "--status", "failed") == [failed]
    for id_, status in ((failed, "failed"), (completed, "completed")):
        assert find_line(iscp.read_text("show", id_), "status").split() == ["status", status]
    assert iscp.read_json("list")[0]["status"] == "completed"


def test_an_invocation_that_there_is_not_is_named(iscp):
    text = iscp.read_failure("show", "inv_1nothing")
    assert_names(text, "iscp: There", "'inv_1nothing'", "iscp invocations list")
    assert_names(iscp.read_failure("cancel", "inv_1nothing"), 404)
    # A shell may give any bytes.
    for option in ("--key", "--service", "--handler"):
        assert list_ids(iscp, option, "\udcff") == []
    for command in (["show"], ["cancel"], ["resolve", "x", "--reject"]):
        text = iscp.read_failure(*command, "\udcff")
        assert ("\\udcff" in text, len(text.splitlines())) == (True, 1)


def test_invocations_are_canceled_killed_paused_resumed_and_purged(iscp, hand):
    id_ = submit(hand)
    hand.claim()
    resuming = [("resume", "resumed"), ("resume", "nothing to resume")]
    for verb, outcome in [("pause", "paused"), *resuming, ("cancel", "canceled")]:
        assert_names(iscp.read_text(verb, id_), id_, outcome)
    assert iscp.read_json("kill", id_) == {"id": id_, "changed": True}
    result = find_line(iscp.read_text("show", id_), "result")
    assert result.split() == ["result", "failed", "with", "409:", "killed"]
    assert_names(iscp.read_text("purge", id_), id_, "forgotten")
    assert list_ids(iscp) == []


def test_an_awakeable_is_resolved_with_json_or_rejected(iscp, hand):
    id_ = submit(hand)
    hand.claim()
    for index in (1, 2):
        hand.commit(id_, index, pb.AwakeableEntryMessage())
    first, second = (make_awakeable_id(ids.parse_id(id_), index) for index in (1, 2))
    assert_names(iscp.read_failure("resolve", first, "yes", status=2), "'yes'", "JSON")
    assert iscp("resolve", first, "1", "--reject", "no")[0] == 2
    assert_names(iscp.read_text("resolve", first, '{"ok": true}'), first, "resolved")
    assert_names(iscp.read_text("resolve", first), first, "before")
    assert iscp.read_json("resolve", second, "--reject", "no")["changed"]
    _, resolved, rejected = iscp.read_json("show", id_)["journal"]
    assert resolved["result"] == {"value": '{"ok": true}', "bytes": 12}
    assert rejected["result"] == {"failure": {"code": 500, "message": "no"}}


def test_addresses_are_deployed_and_listed(iscp, hand):
    text = iscp.read_text("deploy", "http://127.0.0.1:9081")
    assert "http://127.0.0.1:9081 (dp_2)" in text
    assert "  Counter (VIRTUAL_OBJECT): add, get" in text
    rows = iscp.read_json("deploy")
    services = {row["uri"]: len(row["services"]) for row in rows}
    assert services == {URL: 0, "http://127.0.0.1:9081": 3}
    text = iscp.read_text("deploy")
    assert "  Greeter (SERVICE): greet, raw" in text
    assert_names(text.splitlines()[1], "no service")
    assert_names(iscp.read_failure("deploy", "ftp://host"), 422, "address")


def test_what_cannot_be_served_is_named_at_once_and_the_options_in_full_by_help(iscp, monkeypatch):
    monkeypatch.setenv("ISCP_INVOCATIONS_TOKEN", "")
    text = iscp.read_failure("serve", "--host", "0.0.0.0")
    assert_names(text, "0.0.0.0", "ISCP_INVOCATIONS_TOKEN")
    assert_names(iscp.read_failure("serve", "--retry-factor", "0.5"), "retry", 0.5)
    for keep in ("", "0s", "soon"):
        text = iscp.read_failure("serve", "--keep", keep, status=2)
        assert_names(text, "--keep", repr(keep))
    # No option is cut short in the help.
    assert "…" not in iscp.read_text("serve", "--help")


def test_retries_and_retention_are_set_by_options_and_by_the_environment(iscp, monkeypatch):
    """As the stack hands its environment on, and gives no such options."""
    served = []
    monkeypatch.setattr(runtime_server, "serve", lambda settings, *_, **__: served.append(settings))
    variables = {"RETRY_INITIAL": 2, "RETRY_FACTOR": 3, "RETRY_CAP": 4, "RETRY_ATTEMPTS": 5}
    for name, value in {**variables, "KEEP": "6h"}.items():
        monkeypatch.setenv(f"ISCP_INVOCATIONS_{name}", str(value))
    assert iscp("serve", "--no-own-services") == (0, "")
    assert iscp("serve", "--no-own-services", "--retry-attempts", "0", "--keep", "7h")[0] == 0
    assert [(settings.runtime.policy, settings.retention) for settings in served] == [
        (RetryPolicy(initial=2, factor=3, cap=4, attempts=5), timedelta(hours=6)),
        (RetryPolicy(initial=2, factor=3, cap=4, attempts=None), timedelta(hours=7)),
    ]
    monkeypatch.setenv("ISCP_INVOCATIONS_RETRY_ATTEMPTS", "many")
    text = iscp.read_failure("serve", "--no-own-services", status=2)
    assert_names(text, "'--retry-attempts'", "'many'")
