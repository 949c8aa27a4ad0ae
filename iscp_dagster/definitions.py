"""The code location: every table that `assets` declares, as `resources` configures it.

It includes what else `assets` defines for Dagster. Without a package `resources`, the environment
configures it.
"""

import os
from importlib.util import find_spec

from dagster import Definitions

from iscp_dagster.api.discovery import import_modules, load_declarations
from iscp_dagster.location.build import build_declared_definitions
from iscp_dagster.location.module_definitions import load_other_definitions
from iscp_dagster.location.resources.environment import resources_from_environment
from iscp_dagster.model.imports import import_user_module

if find_spec("resources"):
    resources = import_user_module("resources").from_environment()
else:
    resources = resources_from_environment()
defs = Definitions.merge(
    build_declared_definitions(load_declarations(os.environ), resources),
    load_other_definitions(import_modules(os.environ)),
)
