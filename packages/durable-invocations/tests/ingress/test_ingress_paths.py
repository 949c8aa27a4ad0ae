"""The handler that a request's path names, and the delay of a call."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_invocations.ingress.delays import MOST, parse_delay
from durable_invocations.ingress.refusals import RefusedError
from durable_invocations.ingress.targets import (
    LONGEST,
    Target,
    match_target,
    parse_call,
    split_path,
)
from runtime_support.errors import raises_naming

NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1)


@pytest.mark.parametrize(
    ("path", "handler", "key", "send"),
    [
        ("Counter/add", "add", None, False),
        ("Counter/add/send", "add", None, True),
        ("Counter/mine/add", "add", "mine", False),
        ("Counter/mine/add/send", "add", "mine", True),
        ("Post/mine/send", "send", "mine", False),
        ("Post/send/send/send", "send", "send", True),
        ("Post/send", "send", None, False),
    ],
)
def test_a_path_names_the_handler_and_the_key_and_may_end_in_send(path, handler, key, send):
    parts = tuple(path.split("/"))
    target = Target(service=parts[0], handler=handler, key=key)
    assert parse_call(parts, keyed=key is not None) == (target, send)


@pytest.mark.parametrize(
    ("path", "keyed", "form"),
    [
        ("Counter/mine/add", False, "/Counter/{handler}"),
        ("Counter/add", True, "/Counter/{key}/{handler}"),
        ("Counter/add/send/send", False, "/Counter/{handler}"),
        ("Counter", False, "/Counter/{handler}"),
    ],
)
def test_the_refusal_of_another_path_shows_the_right_form(path, keyed, form):
    with raises_naming(RefusedError, "Counter", form, f"{form}/send") as caught:
        parse_call(tuple(path.split("/")), keyed=keyed)
    assert caught.value.status == 404


@given(st.lists(NAMES, min_size=3, max_size=3))
def test_each_segment_is_decoded_by_itself(parts):
    """A key may contain any character, slashes too."""
    path = "/".join(quote(part, safe="") for part in parts)
    assert split_path(f"/{path}") == split_path(path.encode()) == tuple(parts)
    target = match_target(tuple(parts), keyed=True)
    assert (target.service, target.key, target.handler) == tuple(parts)


@pytest.mark.parametrize("path", ["/A//b", "/", "/A/%00/b", "/A/%ff", f"/A/{'k' * (LONGEST + 1)}"])
def test_an_invalid_path_is_a_bad_request(path):
    with pytest.raises(RefusedError) as caught:
        split_path(path)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        *(("0", 0), ("1500", 1_500), ("10s", 10_000), ("1.5s", 1_500), ("250ms", 250)),
        *(("1m 30s", 90_000), ("1h30m", 5_400_000), ("2 days", 172_800_000), ("1w", 604_800_000)),
        *(("PT10S", 10_000), ("PT0.25S", 250), ("P1DT1H", 90_000_000), ("P2W", 1_209_600_000)),
        *(("pt1m", 60_000), (" 10S ", 10_000), ("0.0001s", 1), (f"{MOST}", MOST)),
    ],
)
def test_a_delay_has_several_forms(text, milliseconds):
    assert parse_delay(text) == milliseconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "s", "-1", "-1s", "1e3", "10 parsecs", "P", "PT", "P1DT", "P1Y", "P1M", "PT1H2"),
        *("1.s", "ten", "1s,2s", f"{MOST + 1}", "9999999999w", "5s 5", "inf", "1_000"),
    ],
)
def test_an_invalid_delay_is_a_bad_request(text):
    with raises_naming(RefusedError, "delay", repr(text)) as caught:
        parse_delay(text)
    assert caught.value.status == 400
