"""docs/webhooks.md says what the code does."""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import fields
from datetime import datetime, timezone
from decimal import Decimal
from inspect import signature

import pytest

from idempotent_receiver import retry_horizon
from iscp_dagster import Endpoint
from iscp_dagster.events.hysteresis import EventType
from iscp_dagster.events.ids import IdScheme
from iscp_dagster.events.payload import TriggerEvent
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.webhooks.answers import EndpointAnswer
from iscp_dagster.webhooks.sending.network import MOST_READ
from iscp_dagster.webhooks.sending.posting import ANSWER_CHARACTERS
from iscp_dagster.webhooks.sending.sender import Pace
from iscp_dagster.webhooks.sending.signing import get_secrets
from support.paths import DOCS

PAGE = (DOCS / "webhooks.md").read_text(encoding="utf-8")
DECLARING, MAKING = re.findall(r"^```python.*?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def declare_example() -> Endpoint:
    names: dict[str, object] = {}
    exec(DECLARING, names)
    endpoint = names["alerts"]
    assert isinstance(endpoint, Endpoint)
    return endpoint


def test_a_receiver_assumes_the_defaults_of_an_endpoint():
    endpoint = Endpoint("alerts", url="https://example.com", secrets=["S"])
    for name, option in signature(retry_horizon).parameters.items():
        assert option.default == getattr(endpoint, name)


def test_the_endpoint_is_declared_as_shown_and_its_secret_made_as_shown():
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(MAKING, {})
    secret = output.getvalue().strip()
    assert len(get_secrets(declare_example(), {"ALERTS_SECRET": secret})[0]) == 32


def test_the_body_is_that_of_an_event():
    (shown,) = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    at = SourceTimestamp(nanos=1705316445123456789, version=1)
    event = TriggerEvent(
        event_id=IdScheme().make_event_id("large_trade_alert", "123", at),
        event_type=EventType.MATCH,
        trigger_name="large_trade_alert",
        timestamp=datetime(2024, 1, 15, 10, 44, 6, 112_000, tzinfo=timezone.utc),
        source_timestamp=at,
        data={"id": 123, "gross": Decimal("595.00")},
    )
    bodies = [json.loads(shown), json.loads(event.encode_body())]
    assert bodies[0] == bodies[1]
    assert list(bodies[0]) == list(bodies[1])


def test_every_option_is_in_the_table_with_its_default():
    table = PAGE.partition("| option of `Endpoint` |")[2].partition("\n\n")[0]
    rows = [
        (re.findall(r"`(\w+)`", cells[1]), cells[3].strip())
        for cells in (line.split("|") for line in table.splitlines()[2:])
    ]
    defaults = {name: default for names, default in rows for name in names}
    assert set(defaults) == {each.name for each in fields(Endpoint)} - {"name", "_"}
    endpoint = declare_example()
    for name in ("batch", "concurrency", "timeout", "pending"):
        assert float(defaults[name].replace(",", "")) == getattr(endpoint, name)


def test_the_numbers_in_the_text_are_the_defaults():
    endpoint = declare_example()
    assert endpoint.retries == (5, 300, 1_800, 7_200, 18_000, 36_000, 36_000)
    assert (endpoint.failing_days, Pace().look) == (5, 1 / 20)
    for text in (
        "after 5 s, 5 min, 30 min, 2 h, 5 h, 10 h and 10 h (`retries=`)",
        f"each ±{100 * endpoint.jitter:.0f} %",
        f"`longest_wait=` ({endpoint.longest_wait / 3600:g} h)",
        f"{endpoint.refusals} of these in a row (`refusals=`)",
        "five days (`failing_days=`)",
        f"At most {MOST_READ // 1000} kB",
        f"first {ANSWER_CHARACTERS} characters",
        f"within {Pace().lease:g} seconds",
        "twenty times a second",
    ):
        assert text in PAGE


@pytest.mark.parametrize("status", [300, 301, 401, 402, 403, 404, 405, 409, 418])
def test_the_statuses_that_pause_are_those_of_the_table(status):
    assert EndpointAnswer(status=status).is_endpoint_refusal
