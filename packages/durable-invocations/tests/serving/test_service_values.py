"""Values as bytes and back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any

import pytest
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

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
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
def test_json_comes_back_as_it_went(value):
    assert JSON.loads(JSON.dumps(value)) == value


def test_none_is_the_empty_body():
    assert JSON.dumps(None) == b""
    assert JSON.loads(b"") is None
    assert JSON.loads(b"null") is None


def test_a_hint_brings_back_what_json_has_no_form_for():
    model = Model(place=Place("pier", datetime(2026, 1, 2, tzinfo=timezone.utc)))
    serde = get_serde(Model)
    assert serde.loads(serde.dumps(model)) == model
    assert get_serde(tuple[int, ...]).loads(b"[1,2]") == (1, 2)


def test_an_infinite_number_comes_back():
    assert JSON.loads(JSON.dumps([float("inf")])) == [float("inf")]


def test_bytes_stay_as_they_are():
    assert get_serde(bytes) is BYTES
    assert BYTES.loads(BYTES.dumps(b"\xff")) == b"\xff"
    with pytest.raises(ContextError, match="str is not bytes"):
        BYTES.dumps("text")


def test_what_has_no_form_in_json_is_refused():
    with pytest.raises(ContextError, match="object cannot be written as JSON"):
        JSON.dumps(object())


def test_a_value_that_does_not_fit_is_not_told():
    with pytest.raises(ValueError, match=r"count: Input should be a valid integer") as refused:
        get_serde(Model).loads(b'{"place": {"name": "p", "since": 0}, "count": "hunter2"}')
    assert "hunter2" not in str(refused.value)


def test_what_a_function_says_it_returns_must_be_readable():
    class Local:
        pass

    def made() -> Local: ...

    with pytest.raises(ContextError, match="made cannot be read: name 'Local' is not defined"):
        get_return_serde(made)


def test_a_hint_may_have_no_hash():
    hint = Annotated[int, Field(json_schema_extra={"examples": [1]}), []]
    assert get_serde(hint).loads(b"3") == 3


def test_a_function_says_what_it_returns():
    def made() -> Place: ...

    async def fetched() -> bytes: ...

    class Client:
        def count(self) -> int: ...

    assert get_return_serde(made) == Json(Place)
    assert get_return_serde(fetched) is BYTES
    assert get_return_serde(Client().count) == Json(int)
    assert get_return_serde(lambda: 1) is JSON
    assert get_return_serde(print) is JSON
    assert get_serde(Any) is JSON
