"""The environment in which a command reaches the services of the stack that is up."""

from __future__ import annotations

from collections.abc import Mapping

from iscp_dagster.stack.control import running_stack
from iscp_dagster.stack.settings import CLICKHOUSE, DAGSTER, SPARK, home_of

DAGSTER_URL = "DAGSTER_URL"
_VARIABLES = {CLICKHOUSE: "CLICKHOUSE_URL", SPARK: "SPARK_REMOTE", DAGSTER: DAGSTER_URL}


def with_stack(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ`, its gaps filled with the addresses of the running stack, if one is up."""
    home = home_of(environ)
    state = running_stack(home)
    if state is None:
        return dict(environ)
    found = {
        _VARIABLES[service.name]: service.address
        for service in state.services
        if service.name in _VARIABLES
    }
    found["ISCP_LOG_URL"] = state.log_url or f"sqlite:///{home / 'iscp_log.sqlite'}"
    found["ISCP_LAKE"] = state.lake or str(home / "lake")
    if state.clickhouse_urls:
        found["CLICKHOUSE_URLS"] = state.clickhouse_urls
    if DAGSTER_URL in found:
        found["DAGSTER_HOME"] = str(home / "dagster")
    return found | dict(environ)
