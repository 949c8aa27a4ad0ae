"""The declarations that docs/views.md and docs/triggers.md show are those of the code."""

from __future__ import annotations

import re
from dataclasses import fields
from itertools import count

import pytest
import yaml

from iscp_dagster import SourceTableComponent, Trigger, View
from iscp_dagster.api.discovery import load_tables
from iscp_dagster.model.declared.linking.attach import Declarations
from iscp_dagster.model.declared.views import TAKEN
from support.paths import DOCS

NUMBERS = count()
SHOWN = {
    "views.md": (["mirror", "changes", "big_trades", "huge_trades"], View),
    "triggers.md": (["big_trades", "large_trade_alert"], Trigger),
}


def block(page: str, language: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    (found,) = re.findall(rf"^```{language} title=.*?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found


@pytest.mark.parametrize("page", SHOWN)
def test_what_a_page_declares_in_python_it_declares_in_yaml(page, tmp_path, monkeypatch):
    name, (consumers, _) = f"shown_{next(NUMBERS)}", SHOWN[page]
    (tmp_path / f"{name}.py").write_text(block(page, "python"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (in_python,) = load_tables({"ISCP_ASSETS": name})
    attributes = yaml.safe_load(block(page, "yaml"))["attributes"]
    made = SourceTableComponent.from_attributes_dict(attributes=attributes)
    given = [made.table, *made.views, *made.triggers, *made.endpoints]
    (in_yaml,) = Declarations.of(given).build_tables()
    assert [each.name for each in in_python.consumers] == consumers
    assert [each.name for each in in_yaml.consumers] == consumers
    for here, there in zip(in_python.consumers, in_yaml.consumers, strict=True):
        assert here.definition == there.definition
    assert [each.to for each in in_python.triggers] == [each.to for each in in_yaml.triggers]


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_names_every_option(page):
    text, kind = (DOCS / page).read_text(encoding="utf-8"), SHOWN[page][1]
    options = [each.name for each in fields(kind) if each.name != "name"]
    assert [name for name in options if f"`{name}=`" not in text] == []


def test_the_names_that_a_calculated_column_cannot_have_are_all_documented():
    text = (DOCS / "views.md").read_text(encoding="utf-8")
    assert [name for name in sorted(TAKEN) if f"`{name}`" not in text] == []
