"""What image rows are read of, as a value."""

import json

import pytest

from iscp_dagster import Changes
from iscp_dagster.model.declared.images import Stage, Transitions, TriggerConditions
from iscp_dagster.model.declared.schema import parse_schema, to_schema_json
from iscp_dagster.model.errors import ConfigError

VIEW = [
    {"where": "amount > 100", "columns": {"gross": "amount * 1.19"}},
    {"where": None, "columns": {"net": "gross / 2"}},
]
AVAILABLE = ("desk", "id", "amount", "note")


def test_a_definition_is_read_as_it_was_written():
    found = Transitions.of(json.loads(json.dumps(VIEW)), ["note", "amount"])
    assert found.stages == (
        Stage(where="amount > 100", columns=(("gross", "amount * 1.19"),)),
        Stage(columns=(("net", "gross / 2"),)),
    )
    assert found == Transitions.of(VIEW, ["amount", "note"])
    assert found.calculated == ("gross", "net")


def test_an_image_has_the_chosen_columns_those_of_the_key_and_the_calculated_ones():
    needed = {"id", "desk"}
    whole = Transitions.of(VIEW).select_columns(AVAILABLE, needed)
    assert whole == ("desk", "id", "amount", "note", "gross", "net")
    some = Transitions.of(VIEW, ["note"]).select_columns(AVAILABLE, needed)
    assert some == ("desk", "id", "note", "gross", "net")


def test_triggers_on_one_view_share_its_reading():
    hot, cold = (
        TriggerConditions(name="hot", match="a > 1"),
        TriggerConditions(name="cold", match="a < 1"),
    )
    view = Transitions.of(VIEW)
    assert view.replace_conditions([hot, cold]) == view.replace_conditions([cold, hot])
    assert view.replace_conditions([hot]).view == view
    assert (
        len({each.format_column_name(which) for each in (hot, cold) for which in ("_match", "_un")})
        == 4
    )
    names = ("Alert", "alert", "ALERT", "a_lert", "AlerT")
    made = {
        TriggerConditions(name=name, match="a > 1").format_column_name("_match").lower()
        for name in names
    }
    # Spark ignores the case of names, and a source may have a column `_match_alert`.
    assert len(made) == len(names)
    assert "_match_alert" not in made


def test_a_changes_index_says_its_view_in_its_definition_and_refuses_what_would_lose_changes():
    assert Changes(view=VIEW).definition["view"] == VIEW
    assert Changes().definition["view"] == []
    with pytest.raises(ConfigError, match="errors='dead_letter', but a changes index without"):
        Changes(errors="dead_letter")
    with pytest.raises(ConfigError, match="so it is not sharded"):
        Changes(sharding={"hash_function": "cityHash64", "key": ["id"]})


def test_a_schema_is_written_as_it_is_read():
    node = {
        "type": "struct",
        "fields": [
            {"name": name, "type": type_, "nullable": True, "metadata": {}}
            for name, type_ in {
                "a": "long",
                "b": "decimal(10,2)",
                "c": {"type": "array", "elementType": "string", "containsNull": False},
                "d": {
                    "type": "map",
                    "keyType": "string",
                    "valueType": {"type": "struct", "fields": []},
                    "valueContainsNull": True,
                },
            }.items()
        ],
    }
    assert to_schema_json(parse_schema(json.dumps(node))) == node
