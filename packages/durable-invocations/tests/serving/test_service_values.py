"""Values as bytes and back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from durable_invocations.serving.declarations.serde import (
    BYTES,
    JSON,
    Json,
    get_return_serde,
    get_serde,
)
from durable_invocations.serving.errors import ContextError
from runtime_support.errors import raises_naming

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=10,
)


@dataclass
class Place:
    name: str
    since: datetime


class Model(BaseModel):
    place: Place
    count: int = 0


@settings(max_examples=50)
@given(VALUES)
def test_json_is_read_as_it_was_written(value):
    assert JSON.loads(JSON.dumps(value)) == value


def test_none_is_the_empty_body():
    assert JSON.dumps(None) == b""
    assert JSON.loads(b"") is None
    assert JSON.loads(b"null") is None


def test_a_hint_restores_types_that_json_lacks():
    model = Model(place=Place("pier", datetime(2026, 1, 2, tzinfo=timezone.utc)))
    serde = get_serde(Model)
    assert serde.loads(serde.dumps(model)) == model
    assert get_serde(tuple[int, ...]).loads(b"[1,2]") == (1, 2)


def test_an_infinite_number_is_read_as_it_was_written():
    assert JSON.loads(JSON.dumps([float("inf")])) == [float("inf")]


def test_bytes_stay_as_they_are():
    assert get_serde(bytes) is BYTES
    assert BYTES.loads(BYTES.dumps(b"\xff")) == b"\xff"
    with raises_naming(ContextError, "str", "BYTES"):
        BYTES.dumps("text")


def test_a_value_that_json_cannot_hold_is_refused():
    with raises_naming(ContextError, "object", "JSON"):
        JSON.dumps(object())


def test_a_value_that_does_not_fit_is_refused_and_not_shown():
    with raises_naming(ValueError, "count", "integer") as caught:
        get_serde(Model).loads(b'{"place": {"name": "p", "since": 0}, "count": "hunter2"}')
    assert "hunter2" not in str(caught.value)


def test_the_annotation_of_a_result_must_be_readable():
    class Local:
        pass

    def make() -> Local: ...

    with raises_naming(ContextError, f"{make.__qualname__}", "'Local'"):
        get_return_serde(make)


def test_a_hint_may_have_no_hash():
    hint = Annotated[int, Field(json_schema_extra={"examples": [1]}), []]
    assert get_serde(hint).loads(b"3") == 3


def test_the_serde_of_a_result_follows_its_annotation():
    def make() -> Place: ...

    async def fetch() -> bytes: ...

    class Client:
        def count(self) -> int: ...

    assert get_return_serde(make) == Json(Place)
    assert get_return_serde(fetch) is BYTES
    assert get_return_serde(Client().count) == Json(int)
    assert get_return_serde(lambda: 1) is JSON
    assert get_return_serde(print) is JSON
    assert get_serde(Any) is JSON
