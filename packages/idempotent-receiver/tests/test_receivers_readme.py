"""The examples of the README do what it says."""

from __future__ import annotations

import base64
import json
import re
from datetime import datetime, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa
from standardwebhooks import Webhook

SECRET = f"whsec_{base64.b64encode(b'0' * 24).decode()}"


def blocks():
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Run the page's blocks one after the other; `handle` and `apply` are the reader's."""
    monkeypatch.setenv("ALERTS_SECRET", SECRET)
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/receiver.db")
    handled: list[object] = []
    names = {"handle": handled.append, "apply": handled.append, "handled": handled}
    for block in blocks():
        exec(block, names)
    yield names
    names["engine"].dispose()


def deliver(page, body, event_id="e1", secret=SECRET):
    at = datetime.now(timezone.utc)
    signed = Webhook(secret).sign(event_id, at, body.decode())
    headers = {
        "webhook-id": event_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": signed,
    }
    return page["receive"](headers, body)


def test_the_receiver_handles_what_is_signed_once(page):
    assert [deliver(page, b'{"event_id":"e1"}') for _ in range(3)] == [204, 204, 204]
    assert page["handled"] == [{"event_id": "e1"}]
    other = f"whsec_{base64.b64encode(b'1' * 24).decode()}"
    assert deliver(page, b"{}", event_id="e2", secret=other) == 401


def test_an_event_that_the_receiver_failed_to_handle_is_handled_at_the_next_delivery(page):
    page["handle"] = lambda _: 1 / 0
    with pytest.raises(ZeroDivisionError):
        deliver(page, b"{}", event_id="e3")
    page["handle"] = page["handled"].append
    assert (deliver(page, b"{}", event_id="e3"), page["handled"]) == (204, [{}])


def test_the_booking_is_written_once(page):
    with page["engine"].begin() as connection:
        connection.execute(sa.text("CREATE TABLE bookings (amount INTEGER)"))
    for _ in range(2):
        page["book"]("e1", 5)
    with page["engine"].connect() as connection:
        assert connection.execute(sa.text("SELECT amount FROM bookings")).scalars().all() == [5]


def test_the_events_of_a_batch_are_handled_once(page):
    batch = json.dumps({"data": [{"event_id": "a"}, {"event_id": "b"}]}).encode()
    page["receive_batch"](batch)
    page["receive_batch"](batch)
    assert [event["event_id"] for event in page["handled"]] == ["a", "b"]


def test_the_subscriber_takes_each_change_once(page):
    def message(at, operation="UPDATE"):
        return {"operation": operation, "data": {"id": 1}, "ts_timestamp": at}

    for change in (message("9"), message("10"), message("9"), message(None, "PROGRESS")):
        page["take"](change)
    assert [change["ts_timestamp"] for change in page["handled"]] == ["9", "10"]
