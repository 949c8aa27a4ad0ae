"""The code location: every table that `assets` declares, as `resources` configures it."""

from __future__ import annotations

import os

from iscp_dagster.api.discovery import declared
from iscp_dagster.location.build import build_definitions
from iscp_dagster.model.imports import imported

defs = build_definitions(declared(os.environ), imported("resources").from_environment())
