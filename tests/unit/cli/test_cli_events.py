"""`iscp events` and `iscp endpoint` over an outbox in SQLite."""

import json
import shutil
import sys
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest

from iscp_dagster.api.outbox import DeclaredOutbox
from iscp_dagster.cli import main as cli
from iscp_dagster.cli.checkup import inspect_endpoints
from iscp_dagster.demo.receiver import Receiver
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.variables import HOME, LOG_URL
from iscp_dagster.webhooks.answers import EndpointAnswer, EndpointHealth
from iscp_dagster.webhooks.outbox import Outbox
from runtime_support.manual_clock import NOON, Watch
from support.clients.cli import found, printed, refused, run_command
from support.outbox.outbox_events import DEAD, DELIVERED, again, event, put, result

SECRET = f"whsec_{'A' * 32}"
DECLARED = """
from iscp_dagster import Changes, Endpoint, SourceTable, Trigger
trades = SourceTable("shop.trades", key="id", path="/nowhere", indexes=[Changes()])
here = {{"url": "{url}secret-path", "allow": ["127.0.0.1/32"]}}
alerts, spare = Endpoint("alerts", secrets=["S"], **here), Endpoint("spare", secrets=["T"], **here)
alarm = Trigger("alarm", on=trades, match="amount > 1", to=[alerts])
"""


@pytest.fixture(scope="module")
def receiver():
    with Receiver(0, SECRET) as running:
        yield running


@pytest.fixture(scope="module")
def assets(tmp_path_factory, receiver):
    """Declare a table, a trigger and two endpoints in a module that the commands import."""
    folder = tmp_path_factory.mktemp("declared")
    (folder / "shop_of_events.py").write_text(DECLARED.format(url=receiver.url))
    sys.path.insert(0, str(folder))
    yield "shop_of_events"
    sys.path.remove(str(folder))


@pytest.fixture
def watch():
    return Watch(1_000)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """Make an empty log once; to copy it takes less than to make another."""
    file = tmp_path_factory.mktemp("empty") / "log.sqlite"
    log = SqlLog(f"sqlite:///{file}")
    log.ensure()
    log.engine.dispose()
    return file


@pytest.fixture
def outbox(empty, tmp_path, watch):
    shutil.copy(empty, tmp_path / "log.sqlite")
    log = SqlLog(f"sqlite:///{tmp_path}/log.sqlite")
    yield Outbox(log.engine, clock=watch)
    log.engine.dispose()


@pytest.fixture
def iscp(assets, outbox, tmp_path, capsys, monkeypatch):
    """Give a function that runs a command line and returns exit code and output."""
    environ = {"ISCP_ASSETS": assets, LOG_URL: f"sqlite:///{tmp_path}/log.sqlite"}
    deliveries = DeclaredOutbox(environ, outbox)
    monkeypatch.setattr("iscp_dagster.api.outbox.open_declared_outbox", lambda _: deliveries)

    run = partial(run_command, capsys, monkeypatch)
    run.environ = environ
    return run


def attempt(outbox, status, outcome, text=""):
    """Answer all that is due, as a sender does."""
    outbox.take_leases(["alerts"], "sender", 60)
    work = outbox.claim("alerts", room=100, busy=())
    messages = [message for each in work for message in each.messages]
    results = [result(outbox, message, outcome, status, text) for message in messages]
    outbox.record(outbox.list_endpoints()["alerts"], results)


def ids(iscp, *options):
    return [each["event_id"] for each in found(iscp, "events", "list", *options)]


def test_events_are_listed_with_their_attempts_and_next_try(iscp, outbox):
    put(outbox, event(1))
    attempt(outbox, 503, again(outbox, 300))
    counts, *said = printed(iscp, "events", "list").splitlines()
    assert counts == "1 event: 1 pending"
    assert said[0].split() == ["event", "type", "endpoint", "state", "recorded"]
    assert said[1].split() == ["trigger,", "key", "attempts", "next", "try"]
    assert said[2].split() == ["alarm-1", "MATCH", "alerts", "pending", "06-18", "12:00:01"]
    assert said[3].split() == ["alarm", "acme/1", "1", "06-18", "12:21:40"]
    assert said[-1] == "1 event"


def test_a_long_event_fits_the_terminal(iscp, outbox):
    put(outbox, event(1, key="k" * 90, trigger="a_trigger_with_a_rather_long_name", to=("e" * 30,)))
    assert "k" * 20 in printed(iscp, "events", "list")
    assert "k" * 20 in printed(iscp, "events", "show", "a_trigger_with_a_rather_long_name-1")


def test_events_are_chosen_by_state_endpoint_tenant_and_time(iscp, outbox):
    put(outbox, event(1), event(2, tenant="globex"), event(3, to=("alerts", "spare")))
    assert ids(iscp, "--endpoint", "spare") == ["alarm-3"]
    assert ids(iscp, "--tenant", "globex") == ["alarm-2"]
    attempt(outbox, 204, DELIVERED)
    assert ids(iscp, "--state", "pending") == ["alarm-3"]
    assert ids(iscp, "--state", "delivered") == ["alarm-3", "alarm-2", "alarm-1"]
    since = (NOON + timedelta(seconds=2)).isoformat()
    assert ids(iscp, "--from", since, "--endpoint", "alerts") == ["alarm-3", "alarm-2"]
    assert ids(iscp, "--from", since, "--to", (NOON + timedelta(seconds=3)).isoformat()) == [
        "alarm-2"
    ]
    assert ids(iscp, "--limit", "1") == ["alarm-3"]
    assert "the latest; --limit shows more than 1" in printed(
        iscp, "events", "list", "--limit", "1"
    )


def test_events_are_counted_whatever_the_limit_and_one_line_each_when_piped(iscp, outbox, piped):
    put(outbox, *(event(number, tenant="acme") for number in range(1, 4)), event(4))
    attempt(outbox, 204, DELIVERED)
    put(outbox, event(5, key="k" * 90))
    counts, heads, row, end = iscp("events", "list", "--limit", "1")[1].splitlines()
    assert counts.startswith("5 events: ")
    assert heads.split()[:3] == ["event", "trigger,", "key"]
    assert row.split()[:3] == ["alarm-5", "alarm", "acme/" + "k" * 90]
    assert end.startswith("1 event, the latest")
    assert iscp("events", "list", "--state", "delivered")[1].count("alarm-") == 4
    assert len(iscp("endpoint", "list")[1].splitlines()) == 1 + 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--state", "lost"), "'lost' is unknown; use one of pending, delivered, dead"),
        (("--trigger", "alarms"), "no trigger 'alarms'; there are: alarm"),
        (("--endpoint", "alert"), "no endpoint 'alert'; there are: alerts"),
        (("--from", "noon"), "'noon' is neither a length of time"),
    ],
)
def test_a_wrong_choice_is_one_message(iscp, options, told):
    said = refused(iscp, "events", "list", *options)
    assert told in said
    assert len(said.splitlines()) == 1


def test_an_event_is_shown_with_its_body_and_each_answer(iscp, outbox, watch):
    put(outbox, event(1))
    attempt(outbox, 503, again(outbox, 5), "busy [red]\x1b[2J")
    watch.move(5)
    attempt(outbox, 204, DELIVERED)
    said = printed(iscp, "events", "show", "alarm-1")
    facts = dict(line.split(None, 1) for line in said.splitlines() if len(line.split()) > 1)
    assert facts["trigger"].strip() == "alarm"
    assert (facts["state"].strip(), facts["attempts"].strip()) == ("delivered", "2")
    assert '"event_id": "alarm-1"' in said
    assert "busy [red]\\x1b[2J" in said
    assert "\x1b[2J" not in said
    rows = [line.split() for line in said.splitlines() if line.startswith("06-18")]
    assert [(row[3], row[-1]) for row in rows] == [("503", "12:16:45"), ("204", "delivered")]
    whole = found(iscp, "events", "show", "alarm-1")
    assert whole["body"]["text"] == "Füße \0"
    assert [each["status"] for each in whole["attempts"]] == [503, 204]
    assert whole["deliveries"][0]["next_at"] is None
    assert whole["deliveries"][0]["source_timestamp"] == event(1).source_timestamp.text


@pytest.mark.parametrize("year", ["0001-01-01", "1969-12-31", "9999-12-31"])
def test_events_are_chosen_by_any_time(iscp, outbox, year):
    put(outbox, event(1))
    assert ids(iscp, "--from", year) == ([] if year.startswith("9") else ["alarm-1"])
    assert ids(iscp, "--to", year) == (["alarm-1"] if year.startswith("9") else [])
    assert iscp("events", "list", "--limit", 10**30)[0] == 2


def test_an_argument_that_is_no_utf_8_finds_nothing(iscp, outbox):
    put(outbox, event(1))
    assert ids(iscp, "--tenant", "\udcff") == []
    for verb in ("show", "resend"):
        said = refused(iscp, "events", verb, "\udcff")
        assert len(said.splitlines()) == 1
        assert "There is no event" in said


@pytest.mark.parametrize("verb", ["show", "resend"])
def test_an_unknown_event_is_one_message(iscp, verb):
    said = refused(iscp, "events", verb, "nothing")
    assert said == "iscp: There is no event 'nothing'; `iscp events list` shows those kept.\n"


def test_a_dead_letter_is_sent_again_under_its_id(iscp, outbox):
    put(outbox, event(1))
    attempt(outbox, 400, DEAD)
    assert ids(iscp, "--state", "dead") == ["alarm-1"]
    said = printed(iscp, "events", "resend", "alarm-1")
    assert said == "alarm-1 is sent again, to 1 endpoint.\n"
    assert ids(iscp, "--state", "pending") == ["alarm-1"]
    assert found(iscp, "events", "resend", "alarm-1") == {"event_id": "alarm-1", "endpoints": 1}


def test_a_replay_of_a_time_range_has_the_same_ids(iscp, outbox):
    put(outbox, *map(event, range(1, 5)), event(9, trigger="other"))
    attempt(outbox, 204, DELIVERED)
    since, since_too, to = ((NOON + timedelta(seconds=n)).isoformat() for n in (2, 3, 4))
    said = printed(iscp, "events", "replay", "alarm", "--from", since, "--to", to)
    assert said == "2 events of alarm are sent again.\n"
    assert ids(iscp, "--state", "pending") == ["alarm-3", "alarm-2"]
    told = printed(iscp, "events", "replay", "alarm", "--from", since, "--to", since_too)
    assert told == "1 event of alarm is sent again.\n"
    told = found(iscp, "events", "replay", "alarm", "--from", since)
    assert told == {"trigger": "alarm", "events": 3}
    assert iscp("events", "replay", "alarm")[0] == 2


def test_endpoints_are_listed_with_what_waits_and_what_they_refused(iscp, outbox):
    put(outbox, event(1))
    attempt(outbox, 400, DEAD)
    put(outbox, event(2), event(3, to=("gone",)))
    said = printed(iscp, "endpoint", "list")
    rows = [line.split() for line in said.splitlines()]
    assert rows[2][:4] == ["alerts", "1", "0", "1"]
    assert rows[3] == ["active", "06-18", "12:00:02"]
    assert "gone is no longer declared" in said
    assert "secret-path" not in said
    listed = {each["endpoint"]: each for each in found(iscp, "endpoint", "list")}
    assert set(listed) == {"alerts", "gone", "spare"}
    assert (listed["gone"]["declared"], listed["gone"]["pending"]) == (False, 1)
    assert listed["alerts"]["oldest_pending"].startswith("2025-06-18T12:00:02")
    assert "secret-path" not in json.dumps(listed)


def test_an_endpoint_is_paused_and_resumed(iscp, outbox):
    put(outbox, event(1))
    attempt(outbox, 503, again(outbox, 300))
    assert (
        printed(iscp, "endpoint", "pause", "alerts", "--reason", "a deploy")
        == "alerts is paused.\n"
    )
    assert "alerts is paused: a deploy" in printed(iscp, "endpoint", "list")
    assert outbox.list_endpoints()["alerts"].state == "paused"
    told = found(iscp, "endpoint", "resume", "alerts")
    assert told == {"endpoint": "alerts", "state": "active", "reason": ""}
    assert [work.messages[0].id for work in outbox.claim("alerts", room=1, busy=())] == ["alarm-1"]
    assert "paused by " in found(iscp, "endpoint", "pause", "spare")["reason"]


def health(outbox, *used):
    triggers = [SimpleNamespace(endpoints=used)]
    deployed = SimpleNamespace(
        deployment=SimpleNamespace(log=SqlLog(outbox.engine), clock=outbox.clock),
        sources=[SimpleNamespace(triggers=triggers)],
    )
    return "\n".join(map(str, inspect_endpoints(deployed, 600.0))).splitlines()


def test_health_names_the_endpoints_to_which_nothing_is_sent(outbox):
    outbox.take_leases(["alerts", "spare"], "sender", 60)
    outbox.pause("spare", "20 attempts in a row were refused")
    assert health(outbox) == [
        "endpoint alerts: ok",
        "endpoint spare: is paused: 20 attempts in a row were refused",
        "  next: `iscp endpoint resume spare`",
    ]


def test_health_names_the_endpoints_that_no_sender_serves(outbox):
    outbox.take_leases(["spare"], "sender", 60)
    assert health(outbox, "alerts") == [
        "endpoint alerts: no sender serves it",
        "endpoint spare: ok",
    ]
    put(outbox, event(1))
    assert health(outbox, "alerts")[:2] == [
        "endpoint alerts: no sender serves it, and events wait for it",
        "  next: for the stack's sender, see `iscp logs graphql`; start your own (`iscp send`)",
    ]
    outbox.take_leases(["alerts"], "sender", 60)
    assert health(outbox, "alerts") == ["endpoint alerts: ok", "endpoint spare: ok"]


def test_health_names_an_endpoint_that_has_been_failing_for_long(outbox, watch):
    outbox.take_leases(["alerts"], "sender", 60)
    alerts = outbox.list_endpoints()["alerts"]
    failing = replace(alerts, health=EndpointHealth(failing_since=outbox.clock()))
    outbox.record(failing, [])
    watch.move(700)
    # Nothing waits for it, so that nothing may be wrong any more.
    assert health(outbox) == ["endpoint alerts: ok"]
    outbox.record(replace(failing, health=EndpointHealth(failing_since=outbox.clock())), [])
    put(outbox, event(1))
    watch.move(600)
    assert health(outbox) == ["endpoint alerts: ok"]
    watch.move(1)
    assert health(outbox) == [
        "endpoint alerts: has accepted nothing since 2025-06-18 12:28:20 UTC",
        "  next: `iscp events list --endpoint alerts --state pending`",
    ]


@pytest.mark.parametrize("verb", ["pause", "resume", "ping"])
def test_an_unknown_endpoint_is_one_message(iscp, verb):
    said = refused(iscp, "endpoint", verb, "alert")
    assert said == "iscp: There is no endpoint 'alert'; there are: alerts, spare.\n"


def test_a_ping_shows_the_answer_and_fails_unless_it_is_accepted(iscp, receiver, outbox):
    outbox.pause("alerts")
    said = refused(iscp, "endpoint", "ping", "alerts")
    assert "environment variable S is not set" in said
    iscp.environ |= {"S": SECRET, "T": f"whsec_{'B' * 32}"}
    assert iscp("endpoint", "ping", "alerts") == (0, "alerts: answered 204\n")
    assert [each["event_type"] for each in receiver.events] == ["PING"]
    # Its receiver knows another secret.
    assert iscp("endpoint", "ping", "spare") == (1, "spare: answered 401\n")
    code, said = iscp("endpoint", "ping", "spare", "--json")
    told = {"endpoint": "spare", "status": 401, "answer": "", "accepted": False}
    assert (code, json.loads(said)) == (1, told)
    assert outbox.list_deliveries() == []


def test_no_text_of_others_looks_like_a_line_of_its_own(iscp, outbox, monkeypatch):
    async def answered(*_):
        return EndpointAnswer(status=500, text="no\nalerts: answered 204")

    monkeypatch.setattr("iscp_dagster.webhooks.service.ping", answered)
    said = iscp("endpoint", "ping", "alerts")
    assert said == (1, "alerts: answered 500: no alerts: answered 204\n")
    outbox.pause("alerts", "a deploy\nspare is active")
    assert "alerts is paused: a deploy spare is active\n" in printed(iscp, "endpoint", "list")


def test_without_a_log_the_commands_say_what_to_set(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["iscp", "events", "list"])
    monkeypatch.delenv(LOG_URL, raising=False)
    monkeypatch.setenv(HOME, str(tmp_path))
    with pytest.raises(SystemExit):
        cli.main()
    assert "ISCP_LOG_URL is not set, and no stack is up" in capsys.readouterr().err
