"""The code location: every table that `assets` declares, as `resources` configures it.

What else `assets` defines for Dagster is in it too. Where there is no package `resources`, the
environment configures it.
"""

import os
from importlib.util import find_spec

from dagster import Definitions

from iscp_dagster.api.discovery import declarations, modules_of
from iscp_dagster.location.build import definitions_of
from iscp_dagster.location.others import load_other_definitions
from iscp_dagster.location.resources.environment import resources_from_environment
from iscp_dagster.model.imports import imported

if find_spec("resources"):
    resources = imported("resources").from_environment()
else:
    resources = resources_from_environment()
defs = Definitions.merge(
    definitions_of(declarations(os.environ), resources),
    load_other_definitions(modules_of(os.environ)),
)
