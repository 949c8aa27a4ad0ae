"""`dagster-webserver`, guarded against foreign web pages; takes the same options.

Run as `python -m iscp_dagster.local.web.dagster_webserver`; behind a proxy, `ISCP_ALLOWED_HOSTS`
lists the host names that browsers use.
"""

from __future__ import annotations

import sys

from iscp_dagster.model.errors import SetupError
from iscp_dagster.model.imports import require_extra


def main() -> None:
    """Run the guarded server; exit code 1 with one line if Dagster's webserver is missing."""
    try:
        require_extra("webserver", "Dagster's webserver")
    except SetupError as problem:
        sys.exit(f"iscp: {problem}")
    from iscp_dagster.local.web.guard import serve

    serve()


if __name__ == "__main__":
    main()
