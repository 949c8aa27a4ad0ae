"""Side-by-side measurements: `python -m bench`."""

import sys

from iscp_dagster.model.errors import SetupError
from iscp_dagster.model.imports import require_extra

try:
    require_extra("local", "`python -m bench`")
except SetupError as problem:
    sys.exit(f"bench: {problem}")
