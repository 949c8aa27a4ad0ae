"""Environment variables that several packages read or set."""

from collections.abc import Mapping

from iscp_dagster.model.errors import ConfigError

CLICKHOUSE_URL = "CLICKHOUSE_URL"
CLICKHOUSE_URLS = "CLICKHOUSE_URLS"
"""The servers, or databases of one, that sharded indexes are spread over."""
SPARK_REMOTE = "SPARK_REMOTE"
LOG_URL = "ISCP_LOG_URL"
LAKE = "ISCP_LAKE"
STRICT = "ISCP_STRICT"
"""Whether a declaration that would be left out is an error instead."""
STATE_STORE = "ISCP_STATE_STORE"
HOME = "ISCP_HOME"
"""The folder that the stack keeps everything in."""
KEEP_RUNS_DAYS = "ISCP_KEEP_RUNS_DAYS"
"""How long successful runs of the runner stay in Dagster."""
DAGSTER_URL = "DAGSTER_URL"
"""The webserver's address."""
DAGSTER_HOME = "DAGSTER_HOME"
ALLOWED_HOSTS = "ISCP_ALLOWED_HOSTS"
"""Names under which the servers may be requested, besides their addresses."""
GRAPHQL_URL = "ISCP_GRAPHQL_URL"
"""The address of the GraphQL server."""
EVENT_BATCH_SIZE = "DAGSTER_EVENT_BATCH_SIZE"
"""How many events of an asset Dagster may store in one transaction."""
EVENT_IDS = "ISCP_EVENT_IDS"
"""How ids of events are made: algorithm, prefix and form."""
WEBHOOK_SECRET = "ISCP_WEBHOOK_SECRET"  # noqa: S105 - the variable's name
"""The secret that signs webhooks to receivers on this machine; the stack makes one."""
INVOCATIONS_URL = "ISCP_INVOCATIONS_URL"
"""The address of the runtime of invocations."""
INVOCATIONS_TOKEN = "ISCP_INVOCATIONS_TOKEN"  # noqa: S105 - the variable's name
"""The bearer token that the runtime of invocations requires, and that programs send it."""


def is_true(environ: Mapping[str, str], variable: str) -> bool:
    """Whether the variable is `true`; unset is `false`. Raises ConfigError for anything else."""
    value = environ.get(variable, "false").lower()
    if value not in {"true", "false"}:
        raise ConfigError(f"{variable} is {value!r}; use true or false.")
    return value == "true"
