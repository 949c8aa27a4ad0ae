"""What docs/triggers.md shows is what happens."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from iscp_dagster import Endpoint, SourceTable, Trigger, View
from iscp_dagster.events.changes import ConditionResult, RowChange
from iscp_dagster.events.hysteresis import Hysteresis, TriggerMachine
from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.declared.images import ChangeKind
from iscp_dagster.model.declared.linking.attach import Declarations
from support.paths import DOCS

PAGE = (DOCS / "triggers.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def example():
    (code,) = re.findall(r"```python .*?\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    return names


def read_table(head):
    """Return the cells of the table with that first column, without its head."""
    lines = PAGE[PAGE.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_example_declares_a_trigger_on_a_view_with_an_endpoint(example):
    kinds = (SourceTable, View, Endpoint, Trigger)
    declarations = [each for each in example.values() if isinstance(each, kinds)]
    (trades,) = Declarations.of(declarations).build_tables()
    assert [each.name for each in trades.triggers] == ["large_trade_alert"]
    assert trades.triggers[0].endpoints == ("alerts",)


def test_the_table_of_options_has_every_option():
    names = {name for row in read_table("option") for name in re.findall(r"`(\w+)=?`", row[0])}
    assert names == {each.name for each in fields(Trigger)}
    assert Trigger("t", on=SourceTable("a.b", key="k"), match="x").initial == "skip"


def evaluate(gross):
    """Return the result of the example's conditions."""
    value = None if gross == "NULL" else int(gross)
    known = value is not None
    return ConditionResult(match=known and value > 500, unmatch=known and value < 400)


def test_the_row_fires_as_the_table_says(example):
    conditions = example["large"].match, example["large"].unmatch
    assert conditions == ("gross > 500", "gross < 400")
    machine, before = TriggerMachine(Hysteresis(has_unmatch=True)), None
    for commit, gross, fires, active in read_table("commit"):
        after = None if gross == "not in the view" else evaluate(gross)
        change = RowChange(
            tenant="desk",
            key="1",
            operation=ChangeKind.UPDATE,
            before=None if before is None else {},
            after=None if after is None else {},
            result_before=before or ConditionResult(),
            result_after=after or ConditionResult(),
        )
        at = SourceTimestamp(nanos=0, version=int(commit))
        fired = [each.type.value for each in machine.apply_changes([(change, at)])]
        assert (fired, bool(machine.active)) == ([fires] if fires else [], active == "yes")
        before = after
