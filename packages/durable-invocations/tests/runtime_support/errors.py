"""Expects errors by class and by the values that they name, whatever their words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

E = TypeVar("E", bound=Exception)


@contextmanager
def raises_naming(error: type[E], *values: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of exactly this class, whose message names each of the values."""
    with pytest.raises(error) as caught:
        yield caught
    assert type(caught.value) is error
    assert_names(str(caught.value), *values)


def assert_names(text: str, *values: object) -> None:
    """Every value stands in the text, not as a part of a longer word."""
    for value in map(str, values):
        assert re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text), f"{value!r} is not in {text!r}"
