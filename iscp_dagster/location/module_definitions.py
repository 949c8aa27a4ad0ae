"""Other Dagster definitions in the modules that declare tables."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import ModuleType

import dagster as dg

from iscp_dagster.api.discovery import DECLARATIONS_KEY, find_definitions


def load_other_definitions(modules: Sequence[ModuleType]) -> dg.Definitions:
    """The assets, checks, jobs, schedules and sensors at the modules' top, and in `Definitions`.

    `Definitions` that were built from tables are left out: their tables count as declarations.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        at_top = dg.load_definitions_from_modules(modules)
    module_definitions = [
        definitions for module in modules for definitions in find_definitions(module)
    ]
    return dg.Definitions.merge(
        at_top,
        *(
            definitions
            for definitions in module_definitions
            if DECLARATIONS_KEY not in definitions.metadata
        ),
    )
