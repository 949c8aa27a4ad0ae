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


def read_block(page: str, language: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    (block,) = re.findall(rf"^```{language} title=.*?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return block


@pytest.mark.parametrize("page", SHOWN)
def test_what_a_page_declares_in_python_it_declares_in_yaml(page, tmp_path, monkeypatch):
    name, (consumers, _) = f"shown_{next(NUMBERS)}", SHOWN[page]
    (tmp_path / f"{name}.py").write_text(read_block(page, "python"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (in_python,) = load_tables({"ISCP_ASSETS": name})
    attributes = yaml.safe_load(read_block(page, "yaml"))["attributes"]
    component = SourceTableComponent.from_attributes_dict(attributes=attributes)
    declarations = [*component.views, *component.triggers, *component.endpoints]
    (in_yaml,) = Declarations.of([component.table, *declarations]).build_tables()
    assert [consumer.name for consumer in in_python.consumers] == consumers
    assert [(consumer.name, consumer.definition) for consumer in in_python.consumers] == [
        (consumer.name, consumer.definition) for consumer in in_yaml.consumers
    ]
    targets = [trigger.to for trigger in in_python.triggers]
    assert targets == [trigger.to for trigger in in_yaml.triggers]


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_names_every_option(page):
    text, kind = (DOCS / page).read_text(encoding="utf-8"), SHOWN[page][1]
    options = {field.name for field in fields(kind)} - {"name"}
    assert [name for name in options if f"`{name}=`" not in text] == []


def test_the_names_that_a_calculated_column_cannot_have_are_all_documented():
    text = (DOCS / "views.md").read_text(encoding="utf-8")
    assert [name for name in sorted(TAKEN) if f"`{name}`" not in text] == []
