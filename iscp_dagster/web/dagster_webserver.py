"""`dagster-webserver` that answers no foreign web page; it takes the same options.

Dagster's own answers GraphQL, mutations too, to a POST of any content type and to a GET, and lets
any page open its websocket: a page could start runs with whatever configuration. Run as
`python -m iscp_dagster.web.dagster_webserver`; `ISCP_ALLOWED_HOSTS` names hosts behind a proxy.
"""

from __future__ import annotations

import os
from typing import Any

from dagster_webserver import app
from dagster_webserver.cli import main as dagster_main
from dagster_webserver.webserver import DagsterWebserver
from starlette.middleware import Middleware

from iscp_dagster.web.admission import Admission, Guard, allowed_hosts


class GuardedWebserver(DagsterWebserver[Any, Any]):
    """Dagster's webserver behind the guard."""

    def build_middleware(self) -> list[Middleware]:
        """The guard comes first, before anything is read."""
        admission = Admission(hosts=allowed_hosts(os.environ), links=True)
        return [Middleware(Guard, admission=admission), *super().build_middleware()]


def main() -> None:
    """Run Dagster's command line with the guarded server."""
    setattr(app, "DagsterWebserver", GuardedWebserver)  # noqa: B010 - it exports no such name
    dagster_main()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
