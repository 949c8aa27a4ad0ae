"""`dagster-webserver` that answers no foreign web page; it takes the same options.

Run as `python -m iscp_dagster.local.web.dagster_webserver`; `ISCP_ALLOWED_HOSTS` names hosts behind
a proxy.
"""

from __future__ import annotations

import sys

from iscp_dagster.model.errors import SetupError
from iscp_dagster.model.imports import need


def main() -> None:
    """Run the guarded server; exit code 1 with one line when Dagster's is not installed."""
    try:
        need("local", "Dagster's webserver", "dagster_webserver", "starlette")
    except SetupError as problem:
        sys.exit(f"iscp: {problem}")
    from iscp_dagster.local.web.guarded import serve

    serve()


if __name__ == "__main__":
    main()
