"""Which handler a request's path names, and how long a call of it is delayed."""

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

NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1)


def test_a_service_is_called_by_its_handler_and_an_object_by_its_key_too():
    add = Target(service="Counter", handler="add")
    assert parse_call(("Counter", "add"), keyed=False) == (add, False)
    assert parse_call(("Counter", "add", "send"), keyed=False) == (add, True)
    mine = Target(service="Counter", key="mine", handler="add")
    assert parse_call(("Counter", "mine", "add"), keyed=True) == (mine, False)
    assert parse_call(("Counter", "mine", "add", "send"), keyed=True) == (mine, True)


def test_a_key_or_a_handler_may_be_called_send():
    handler = Target(service="Post", key="mine", handler="send")
    assert parse_call(("Post", "mine", "send"), keyed=True) == (handler, False)
    key = Target(service="Post", key="send", handler="send")
    assert parse_call(("Post", "send", "send", "send"), keyed=True) == (key, True)
    assert parse_call(("Post", "send"), keyed=False) == (
        Target(service="Post", handler="send"),
        False,
    )


@pytest.mark.parametrize(
    ("path", "keyed", "form"),
    [
        ("Counter/mine/add", False, r"Counter has no key: call /Counter/\{handler\}, or"),
        ("Counter/add", True, r"Counter has a key: call /Counter/\{key\}/\{handler\}, or"),
        ("Counter/add/send/send", False, "has no key"),
        ("Counter", False, "has no key"),
    ],
)
def test_another_form_of_path_is_told_the_form_that_is_meant(path, keyed, form):
    with pytest.raises(RefusedError, match=form) as refused:
        parse_call(tuple(path.split("/")), keyed=keyed)
    assert refused.value.status == 404


@given(st.lists(NAMES, min_size=3, max_size=3))
def test_each_segment_is_decoded_by_itself(parts):
    """A key may contain any character, slashes too."""
    path = "/".join(quote(each, safe="") for each in parts)
    assert split_path(f"/{path}") == split_path(path.encode()) == tuple(parts)
    found = match_target(tuple(parts), keyed=True)
    assert (found.service, found.key, found.handler) == tuple(parts)


@pytest.mark.parametrize("path", ["/A//b", "/", "/A/%00/b", "/A/%ff", f"/A/{'k' * (LONGEST + 1)}"])
def test_a_path_that_names_nothing_is_a_bad_request(path):
    with pytest.raises(RefusedError) as refused:
        split_path(path)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *(("0", 0), ("1500", 1_500), ("10s", 10_000), ("1.5s", 1_500), ("250ms", 250)),
        *(("1m 30s", 90_000), ("1h30m", 5_400_000), ("2 days", 172_800_000), ("1w", 604_800_000)),
        *(("PT10S", 10_000), ("PT0.25S", 250), ("P1DT1H", 90_000_000), ("P2W", 1_209_600_000)),
        *(("pt1m", 60_000), (" 10S ", 10_000), ("0.0001s", 1), (f"{MOST}", MOST)),
    ],
)
def test_a_delay_is_read_in_each_of_its_forms(text, found):
    assert parse_delay(text) == found


@pytest.mark.parametrize(
    "text",
    [
        *("", "s", "-1", "-1s", "1e3", "10 parsecs", "P", "PT", "P1DT", "P1Y", "P1M", "PT1H2"),
        *("1.s", "ten", "1s,2s", f"{MOST + 1}", "9999999999w", "5s 5", "inf", "1_000"),
    ],
)
def test_what_is_no_delay_is_a_bad_request(text):
    with pytest.raises(
        RefusedError, match=r"The delay .* (is invalid|longer than a century)"
    ) as no:
        parse_delay(text)
    assert no.value.status == 400
