"""What the modules that declare tables define for Dagster besides."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import ModuleType

import dagster as dg

from iscp_dagster.api.discovery import TABLES, definitions_in


def load_other_definitions(modules: Sequence[ModuleType]) -> dg.Definitions:
    """The assets, checks, jobs, schedules and sensors at the modules' top, and in `Definitions`.

    Of `Definitions` that were built from tables, these tables alone count, as declarations.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        at_top = dg.load_definitions_from_modules(modules)
    own = [each for module in modules for each in definitions_in(module)]
    return dg.Definitions.merge(at_top, *(each for each in own if TABLES not in each.metadata))
