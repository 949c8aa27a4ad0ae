"""Expects errors by class and by the values that they name, whatever their words."""

from runtime_support.errors import assert_names, raises_naming

__all__ = ["assert_names", "raises_naming"]
