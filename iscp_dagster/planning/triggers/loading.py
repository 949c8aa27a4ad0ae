"""Triggers by their type: built in, or a class or function by entry point or import path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from inspect import isclass
from types import MappingProxyType
from typing import Any, cast

from iscp_dagster.joblog.iterations import Iteration
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.imports import import_object, load_object
from iscp_dagster.model.jobs import Job
from iscp_dagster.model.moment import Moment
from iscp_dagster.model.specs import DEFAULT_TYPE

JobTrigger = Callable[[Sequence[Job], Moment, datetime], tuple[Iteration, ...]]
"""Plans for the jobs of one type, table and tenant: (jobs ordered by name, latest, now).

Pure: the same rows, version and time give the same iterations. A trigger may have a method
`check_schedule`, which raises ConfigError for a wrong schedule; a built-in one lists in `settings`
what its schedules may hold.
"""

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        DEFAULT_TYPE: "iscp_dagster.planning.triggers.plan:plan_by_default",
        "greedy": "iscp_dagster.planning.triggers.plan:plan_greedily",
        "periodic": "iscp_dagster.planning.triggers.periodic:PeriodicTrigger",
    }
)
"""The import paths of triggers by `TriggerSpec.job_type`; any other type is a user's."""

GROUP = "iscp_dagster.triggers"
"""The entry point group that packages offer triggers in."""


@lru_cache(maxsize=64)
def load_trigger(job_type: str) -> JobTrigger:
    """The trigger of a type: built in, an entry point of `GROUP`, or `package.module:Name`.

    A class is instantiated, and the instance is called to plan. Raises ConfigError.
    """
    built_in = BUILT_IN.get(job_type)
    loaded = (
        import_object(built_in, "trigger") if built_in else load_object(job_type, GROUP, "trigger")
    )
    trigger = _create_trigger(job_type, loaded) if isclass(loaded) else loaded
    if not callable(trigger):
        raise ConfigError(f"The trigger {job_type!r} is {trigger!r}, which cannot be called.")
    return cast("JobTrigger", trigger)


def list_schedule_settings(job_type: str) -> tuple[str, ...]:
    """What a built-in trigger's schedule may hold; empty if it has no schedule."""
    return tuple(getattr(load_trigger(job_type), "settings", ()))


def _create_trigger(job_type: str, class_: type[Any]) -> Any:
    try:
        return class_()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"The trigger {job_type!r} cannot be made: {reason}") from error
