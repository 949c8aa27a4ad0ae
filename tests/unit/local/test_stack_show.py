"""The changing line while the stack comes up."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from rich.text import Text

from iscp_dagster.local.services.state import Condition, ServiceState
from iscp_dagster.local.stack.show import format_progress

NAMES = ("clickhouse", "spark", "code", "runs", "daemon", "dagster", "graphql", "invocations")
SPINNER = 2


@pytest.mark.parametrize("ready", range(len(NAMES) + 1))
def test_all_that_comes_up_is_named_within_eighty_columns(ready: int) -> None:
    shown = Text.from_markup(format_progress(make_services(ready))).plain
    assert cell_len(shown) + SPINNER <= 80
    assert shown.split()[:2] == ([str(ready), "ready"] if ready else ["starting", "clickhouse"])
    assert set(NAMES[ready:]) <= set(shown.split())


def test_services_that_are_not_ready_are_shown_by_condition() -> None:
    clickhouse, _, *others = make_services(6)
    warming = ServiceState(name="spark", condition=Condition.WARMING, address="")
    shown = format_progress([clickhouse, warming, *others])
    assert Text.from_markup(shown).plain == "5 ready  warming spark  starting graphql invocations"


def make_services(ready: int) -> list[ServiceState]:
    """Return the stack's services, the first of them ready, the others starting."""
    conditions = [Condition.READY] * ready + [Condition.STARTING] * (len(NAMES) - ready)
    named = zip(NAMES, conditions, strict=True)
    return [ServiceState(name=name, condition=each, address="") for name, each in named]
