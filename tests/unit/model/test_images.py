"""How image rows are to be read, as a value."""

import json

import pytest

from iscp_dagster import Changes
from iscp_dagster.model.declared.images import ImageSource, Stage, TriggerConditions
from iscp_dagster.model.errors import ConfigError
from support.errors import raises_naming

VIEW = [
    {"where": "amount > 100", "columns": {"gross": "amount * 1.19"}},
    {"where": None, "columns": {"net": "gross / 2"}},
]
AVAILABLE = ("desk", "id", "amount", "note")


def test_a_definition_is_read_as_it_was_written():
    image_source = ImageSource.of(json.loads(json.dumps(VIEW)), ["note", "amount"])
    assert image_source.stages == (
        Stage(where="amount > 100", columns=(("gross", "amount * 1.19"),)),
        Stage(columns=(("net", "gross / 2"),)),
    )
    assert image_source == ImageSource.of(VIEW, ["amount", "note"])
    assert image_source.calculated == ("gross", "net")


@pytest.mark.parametrize(
    ("chosen", "columns"),
    [
        (None, ("desk", "id", "amount", "note", "gross", "net")),
        (["note"], ("desk", "id", "note", "gross", "net")),
    ],
)
def test_an_image_has_the_key_the_calculated_columns_and_the_chosen_ones(chosen, columns):
    assert ImageSource.of(VIEW, chosen).select_columns(AVAILABLE, {"id", "desk"}) == columns


def test_triggers_on_one_view_share_its_reading():
    hot, cold = (TriggerConditions(name=name, match="a > 1") for name in ("hot", "cold"))
    view = ImageSource.of(VIEW)
    assert view.replace_conditions([hot, cold]) == view.replace_conditions([cold, hot])
    assert view.replace_conditions([hot]).view == view


def test_no_two_triggers_share_a_column_of_image_rows():
    names = ("hot", "Alert", "alert", "ALERT", "a_lert", "AlerT")
    columns = {
        TriggerConditions(name=name, match="a > 1").format_column_name(prefix).lower()
        for name in names
        for prefix in ("_match", "_un")
    }
    # Spark ignores the case of names, and a source may have a column `_match_alert`.
    assert len(columns) == 2 * len(names)
    assert "_match_alert" not in columns


def test_a_changes_index_has_its_view_in_its_definition():
    assert Changes(view=VIEW).definition["view"] == VIEW
    assert Changes().definition["view"] == []


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"errors": "dead_letter"}, "errors='dead_letter'"),
        ({"sharding": {"hash_function": "cityHash64", "key": ["id"]}}, "sharding="),
        ({"exclude": ["v"]}, "exclude=['v']"),
    ],
)
def test_a_changes_index_refuses_options_that_would_lose_changes(options, culprit):
    with raises_naming(ConfigError, "'changes'", culprit):
        Changes(**options)
