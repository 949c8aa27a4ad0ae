"""The user's own triggers: a class or function by entry point or import path."""

from __future__ import annotations

from functools import lru_cache
from inspect import isclass
from typing import Any, cast

from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.imports import load_object
from iscp_dagster.planning.triggers.rules import Trigger

GROUP = "iscp_dagster.triggers"
"""The entry point group that packages offer triggers in."""


@lru_cache(maxsize=64)
def load_trigger(job_type: str) -> Trigger:
    """The trigger that `job_type` names: an entry point of `GROUP`, or `package.module:Name`.

    A class is instantiated, and the instance is called to plan. Raises ConfigError.
    """
    found = load_object(job_type, GROUP, "trigger")
    trigger = _made(job_type, found) if isclass(found) else found
    if not callable(trigger):
        raise ConfigError(f"The trigger {job_type!r} is {trigger!r}, which cannot be called.")
    return cast("Trigger", trigger)


def _made(job_type: str, class_: type[Any]) -> Any:
    try:
        return class_()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"The trigger {job_type!r} cannot be made: {reason}") from error
