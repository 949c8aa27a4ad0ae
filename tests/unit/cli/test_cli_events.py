"""`iscp events` and `iscp endpoint` over an outbox in SQLite."""

import json
import shutil
import sys
from dataclasses import replace
from datetime import timedelta
from operator import itemgetter
from types import SimpleNamespace

import pytest

from iscp_dagster.api.environment import get_user
from iscp_dagster.api.outbox import DeclaredOutbox
from iscp_dagster.cli.checkup import inspect_endpoints
from iscp_dagster.demo.receiver import Receiver
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.model.variables import HOME, LOG_URL
from iscp_dagster.webhooks.answers import EndpointAnswer, EndpointHealth
from iscp_dagster.webhooks.outbox import Outbox
from runtime_support.manual_clock import NOON, Watch
from support.errors import assert_names
from support.outbox.outbox_events import DEAD, DELIVERED, again, event, put, result

SECRET = f"whsec_{'A' * 32}"
DECLARED = """
from iscp_dagster import Changes, Endpoint, SourceTable, Trigger
trades = SourceTable("shop.trades", key="id", path="/nowhere", indexes=[Changes()])
place = {{"url": "{url}secret-path", "allow": ["127.0.0.1/32"]}}
alerts = Endpoint("alerts", secrets=["S"], **place)
spare = Endpoint("spare", secrets=["T"], **place)
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
def environ(assets, outbox, tmp_path, monkeypatch):
    """Have commands use the outbox and the variables that are returned."""
    environ = {"ISCP_ASSETS": assets, LOG_URL: f"sqlite:///{tmp_path}/log.sqlite"}
    deliveries = DeclaredOutbox(environ, outbox)
    monkeypatch.setattr("iscp_dagster.api.outbox.open_declared_outbox", lambda _: deliveries)
    return environ


@pytest.fixture
def iscp(environ, command_line):
    """Run commands on the outbox."""
    return command_line


def attempt(outbox, status, outcome, text=""):
    """Answer all that is due, as a sender does."""
    outbox.take_leases(["alerts"], "sender", 60)
    batches = outbox.prepare_work("alerts", room=100, busy=())
    messages = [message for batch in batches for message in batch.messages]
    results = [result(outbox, message, outcome, status, text) for message in messages]
    outbox.record_attempts(outbox.list_endpoints()["alerts"], results)


def list_ids(iscp, *options):
    return [row["event_id"] for row in iscp.read_json("events", "list", *options)]


def test_events_are_listed_with_their_attempts_and_next_try(iscp, outbox):
    put(outbox, event(1))
    attempt(outbox, 503, again(outbox, 300))
    counts, *lines = iscp.read_text("events", "list").splitlines()
    assert counts == "1 delivery: 1 pending"
    assert lines[0].split() == ["event", "type", "endpoint", "state", "recorded"]
    assert lines[1].split() == ["trigger,", "key", "attempts", "next", "try"]
    assert lines[2].split() == ["alarm-1", "MATCH", "alerts", "pending", "06-18", "12:00:01"]
    assert lines[3].split() == ["alarm", "acme/1", "1", "06-18", "12:21:40"]
    assert lines[-1] == "1 delivery"


def test_a_long_event_fits_the_terminal(iscp, outbox):
    put(outbox, event(1, key="k" * 90, trigger="a_trigger_with_a_rather_long_name", to=("e" * 30,)))
    for command in (("list",), ("show", "a_trigger_with_a_rather_long_name-1")):
        assert "k" * 20 in iscp.read_text("events", *command)


def test_events_are_chosen_by_state_endpoint_tenant_and_time(iscp, outbox):
    put(outbox, event(1), event(2, tenant="globex"), event(3, to=("alerts", "spare")))
    assert list_ids(iscp, "--endpoint", "spare") == ["alarm-3"]
    assert list_ids(iscp, "--tenant", "globex") == ["alarm-2"]
    attempt(outbox, 204, DELIVERED)
    assert list_ids(iscp, "--state", "pending") == ["alarm-3"]
    assert list_ids(iscp, "--state", "delivered") == ["alarm-3", "alarm-2", "alarm-1"]
    since, to = ((NOON + timedelta(seconds=seconds)).isoformat() for seconds in (2, 3))
    assert list_ids(iscp, "--from", since, "--endpoint", "alerts") == ["alarm-3", "alarm-2"]
    assert list_ids(iscp, "--from", since, "--to", to) == ["alarm-2"]
    assert list_ids(iscp, "--limit", "1") == ["alarm-3"]
    assert_names(iscp.read_text("events", "list", "--limit", "1"), "1 delivery", "--limit")


def test_events_are_counted_whatever_the_limit_and_one_line_each_when_piped(iscp, outbox, piped):
    put(outbox, *(event(number, tenant="acme") for number in range(1, 4)), event(4))
    attempt(outbox, 204, DELIVERED)
    put(outbox, event(5, key="k" * 90))
    counts, heads, row, end = iscp("events", "list", "--limit", "1")[1].splitlines()
    assert counts.startswith("5 deliveries: ")
    assert heads.split()[:3] == ["event", "trigger,", "key"]
    assert row.split()[:3] == ["alarm-5", "alarm", "acme/" + "k" * 90]
    assert_names(end, "1 delivery", "--limit")
    assert iscp("events", "list", "--state", "delivered")[1].count("alarm-") == 4
    assert len(iscp("endpoint", "list")[1].splitlines()) == 1 + 2


@pytest.mark.parametrize(
    ("command", "values"),
    [
        (("events", "list", "--state", "lost"), ["'lost'", "pending, delivered, dead"]),
        (("events", "list", "--trigger", "alarms"), ["'alarms'", "alarm"]),
        (("events", "list", "--endpoint", "alert"), ["'alert'", "alerts"]),
        (("events", "list", "--from", "noon"), ["'noon'"]),
        *(
            (("events", verb, id_), [repr(id_), "iscp events list"])
            for verb in ("show", "resend")
            # The bytes of a shell need not be UTF-8.
            for id_ in ("nothing", "\udcff")
        ),
        (("events", "show", "nothing", "--endpoint", "spare"), ["'nothing'", "'spare'"]),
        *(
            (("endpoint", verb, "alert"), ["'alert'", "alerts, spare"])
            for verb in ("pause", "resume", "ping")
        ),
    ],
)
def test_a_wrong_name_or_choice_is_one_message(iscp, outbox, command, values):
    put(outbox, event(1))
    text = iscp.read_failure(*command)
    assert text.startswith("iscp: ")
    assert len(text.splitlines()) == 1
    assert_names(text, *values)


def test_an_event_is_shown_with_its_body_and_each_answer(iscp, outbox, watch):
    put(outbox, event(1))
    attempt(outbox, 503, again(outbox, 5), "busy [red]\x1b[2J")
    watch.move(5)
    attempt(outbox, 204, DELIVERED)
    text = iscp.read_text("events", "show", "alarm-1")
    facts = dict(line.split(None, 1) for line in text.splitlines() if len(line.split()) > 1)
    assert facts["trigger"].strip() == "alarm"
    assert (facts["state"].strip(), facts["attempts"].strip()) == ("delivered", "2")
    assert '"event_id": "alarm-1"' in text
    assert "busy [red]\\x1b[2J" in text
    assert "\x1b[2J" not in text
    rows = [line.split() for line in text.splitlines() if line.startswith("06-18")]
    assert [(row[3], row[-1]) for row in rows] == [("503", "12:16:45"), ("204", "delivered")]
    fact = iscp.read_json("events", "show", "alarm-1")
    assert fact["body"]["text"] == "Füße \0"
    assert [attempt["status"] for attempt in fact["attempts"]] == [503, 204]
    (delivery,) = fact["deliveries"]
    assert delivery["next_at"] is None
    assert delivery["source_timestamp"] == event(1).source_timestamp.text


def test_events_are_chosen_by_any_time_and_by_any_bytes_as_tenant(iscp, outbox):
    put(outbox, event(1))
    for year in ("0001-01-01", "1969-12-31"):
        assert list_ids(iscp, "--from", year) == ["alarm-1"]
        assert list_ids(iscp, "--to", year) == []
    assert list_ids(iscp, "--from", "9999-12-31") == []
    assert list_ids(iscp, "--to", "9999-12-31") == ["alarm-1"]
    assert iscp("events", "list", "--limit", 10**30)[0] == 2
    assert list_ids(iscp, "--tenant", "\udcff") == []


def test_a_dead_letter_is_sent_again_under_its_id(iscp, outbox):
    put(outbox, event(1))
    attempt(outbox, 400, DEAD)
    assert list_ids(iscp, "--state", "dead") == ["alarm-1"]
    assert_names(iscp.read_text("events", "resend", "alarm-1"), "alarm-1", "1 endpoint")
    assert list_ids(iscp, "--state", "pending") == ["alarm-1"]
    answer = iscp.read_json("events", "resend", "alarm-1")
    assert answer == {"event_id": "alarm-1", "endpoints": 1}


def test_a_replay_of_a_time_range_has_the_same_ids(iscp, outbox):
    put(outbox, *map(event, range(1, 5)), event(9, trigger="other"))
    attempt(outbox, 204, DELIVERED)
    second, third, fourth = ((NOON + timedelta(seconds=n)).isoformat() for n in (2, 3, 4))
    replay = ("events", "replay", "alarm")
    assert_names(iscp.read_text(*replay, "--from", second, "--to", fourth), "2 deliveries", "alarm")
    assert list_ids(iscp, "--state", "pending") == ["alarm-3", "alarm-2"]
    assert_names(iscp.read_text(*replay, "--from", second, "--to", third), "1 delivery", "alarm")
    answer = iscp.read_json(*replay, "--from", second)
    assert answer == {"trigger": "alarm", "deliveries": 3}
    assert iscp(*replay)[0] == 2


def test_endpoints_are_listed_with_what_waits_and_what_they_refused(iscp, outbox):
    put(outbox, event(1))
    attempt(outbox, 400, DEAD)
    put(outbox, event(2), event(3, to=("gone",)))
    text = iscp.read_text("endpoint", "list")
    lines = [line.split() for line in text.splitlines()]
    assert lines[2][:4] == ["alerts", "1", "0", "1"]
    assert lines[3] == ["active", "06-18", "12:00:02"]
    assert_names(text.splitlines()[-1], "gone", "declared")
    assert "secret-path" not in text
    rows = iscp.read_json("endpoint", "list")
    assert "secret-path" not in json.dumps(rows)
    alerts, gone, spare = sorted(rows, key=itemgetter("endpoint"))
    assert (gone["endpoint"], gone["declared"], gone["pending"]) == ("gone", False, 1)
    assert (spare["endpoint"], spare["declared"]) == ("spare", True)
    assert alerts["oldest_pending"].startswith("2025-06-18T12:00:02")


def test_an_endpoint_is_paused_and_resumed(iscp, outbox):
    put(outbox, event(1))
    attempt(outbox, 503, again(outbox, 300))
    text = iscp.read_text("endpoint", "pause", "alerts", "--reason", "a deploy")
    assert_names(text, "alerts", "paused")
    assert_names(iscp.read_text("endpoint", "list"), "alerts is paused: a deploy")
    assert outbox.list_endpoints()["alerts"].state == "paused"
    answer = iscp.read_json("endpoint", "resume", "alerts")
    assert answer == {"endpoint": "alerts", "state": "active", "reason": ""}
    (batch,) = outbox.prepare_work("alerts", room=1, busy=())
    assert batch.messages[0].id == "alarm-1"
    assert_names(iscp.read_json("endpoint", "pause", "spare")["reason"], get_user())


def inspect(outbox, *endpoints):
    """Return problem and remedy by endpoint; the triggers send to `endpoints`."""
    jobs = SimpleNamespace(
        deployment=SimpleNamespace(log=SqlLog(outbox.engine), clock=outbox.clock),
        sources=[SimpleNamespace(triggers=[SimpleNamespace(endpoints=endpoints)])],
    )
    return {
        finding.what.removeprefix("endpoint "): (finding.problem, finding.then or finding.note)
        for finding in inspect_endpoints(jobs, 600.0)
    }


NOTHING = ("", "")


def test_health_names_the_endpoints_that_are_paused_or_that_no_sender_serves(outbox):
    outbox.take_leases(["spare"], "sender", 60)
    outbox.pause("spare", "20 attempts in a row were refused")
    findings = inspect(outbox, "alerts")
    assert_names(findings["spare"][0], "paused: 20 attempts in a row were refused")
    assert_names(findings["spare"][1], "iscp endpoint resume spare")
    assert findings["alerts"][0] == ""
    assert_names(findings["alerts"][1], "no sender")
    put(outbox, event(1))
    problem, remedy = inspect(outbox, "alerts")["alerts"]
    assert_names(problem, "no sender")
    assert_names(remedy, "iscp logs graphql", "iscp send")
    outbox.take_leases(["alerts"], "sender", 60)
    outbox.resume("spare")
    assert inspect(outbox, "alerts") == {"alerts": NOTHING, "spare": NOTHING}


def test_health_names_an_endpoint_that_has_been_failing_for_long(outbox, watch):
    outbox.take_leases(["alerts"], "sender", 60)
    alerts = outbox.list_endpoints()["alerts"]
    failing = replace(alerts, health=EndpointHealth(failing_since=outbox.clock()))
    outbox.record_attempts(failing, [])
    watch.move(700)
    # Nothing waits for it, so that nothing may be wrong any more.
    assert inspect(outbox) == {"alerts": NOTHING}
    health = EndpointHealth(failing_since=outbox.clock())
    outbox.record_attempts(replace(failing, health=health), [])
    put(outbox, event(1))
    watch.move(600)
    assert inspect(outbox) == {"alerts": NOTHING}
    watch.move(1)
    problem, remedy = inspect(outbox)["alerts"]
    assert_names(problem, "2025-06-18 12:28:20 UTC")
    assert_names(remedy, "iscp events list --endpoint alerts --state pending")


def test_a_ping_shows_the_answer_and_fails_unless_it_is_accepted(iscp, environ, receiver, outbox):
    outbox.pause("alerts")
    assert_names(iscp.read_failure("endpoint", "ping", "alerts"), "Endpoint 'alerts'", "S")
    environ |= {"S": SECRET, "T": f"whsec_{'B' * 32}"}
    assert_names(iscp.read_text("endpoint", "ping", "alerts"), "alerts", 204)
    assert [message["event_type"] for message in receiver.events] == ["PING"]
    # Its receiver knows another secret.
    assert_names(iscp.read_failure("endpoint", "ping", "spare"), "spare", 401)
    row = iscp.read_json("endpoint", "ping", "spare", status=1)
    assert row == {"endpoint": "spare", "status": 401, "answer": "", "accepted": False}
    assert outbox.list_deliveries() == []


def test_no_text_of_others_looks_like_a_line_of_its_own(iscp, outbox, monkeypatch):
    async def answer(*_):
        return EndpointAnswer(status=500, text="no\nalerts: answered 204")

    monkeypatch.setattr("iscp_dagster.webhooks.service.ping", answer)
    (line,) = iscp.read_failure("endpoint", "ping", "alerts").splitlines()
    assert_names(line, "500: no alerts: answered 204")
    outbox.pause("alerts", "a deploy\nspare is active")
    lines = iscp.read_text("endpoint", "list").splitlines()
    assert "alerts is paused: a deploy spare is active" in lines


def test_without_a_log_the_commands_name_what_to_set(command_line, monkeypatch, tmp_path):
    monkeypatch.delenv(LOG_URL, raising=False)
    monkeypatch.setenv(HOME, str(tmp_path))
    assert_names(command_line.read_failure("events", "list"), LOG_URL)
