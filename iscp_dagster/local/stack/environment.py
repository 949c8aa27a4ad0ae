"""Builds the environment in which a command reaches the running stack's services."""

from __future__ import annotations

from collections.abc import Mapping

from iscp_dagster.local.services import credentials, settings
from iscp_dagster.local.services.state import Condition, StackState, running_stack
from iscp_dagster.model import variables
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.spark.remote import with_token

_VARIABLES = {
    settings.CLICKHOUSE: variables.CLICKHOUSE_URL,
    settings.SPARK: variables.SPARK_REMOTE,
    settings.DAGSTER: variables.DAGSTER_URL,
    settings.GRAPHQL: variables.GRAPHQL_URL,
    settings.INVOCATIONS: variables.INVOCATIONS_URL,
}


def with_stack(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` plus the running stack's addresses that it lacks, if a stack is up.

    Adds the stack's secrets to the addresses of its own services, including those in `environ`.
    """
    home = settings.home_of(environ)
    state = running_stack(home)
    if state is None:
        return dict(environ)
    found = {
        _VARIABLES[service.name]: service.address
        for service in state.services
        if service.name in _VARIABLES
    }
    found[variables.LOG_URL] = state.log_url or f"sqlite:///{home / 'iscp_log.sqlite'}"
    found[variables.LAKE] = state.lake or str(home / "lake")
    held = credentials.read(home)
    if held.webhook:
        found[variables.WEBHOOK_SECRET] = held.webhook
    if state.clickhouse_urls:
        found[variables.CLICKHOUSE_URLS] = state.clickhouse_urls
    if variables.DAGSTER_URL in found:
        found[variables.DAGSTER_HOME] = str(home / "dagster")
    found |= {name: value for name, value in environ.items() if value or name not in found}
    return found | _opened(found, state, held)


def addresses(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a shell needs to use the running stack's services."""
    found = with_stack(environ)
    names = (*_VARIABLES.values(), variables.CLICKHOUSE_URLS, variables.WEBHOOK_SECRET)
    return {name: found[name] for name in names if name in found}


def _opened(
    found: Mapping[str, str], state: StackState, held: credentials.Secrets
) -> dict[str, str]:
    opened = {
        settings.CLICKHOUSE: lambda address: settings.with_password(address, held.password),
        settings.SPARK: lambda address: with_token(address, held.spark_token),
    }
    return {
        _VARIABLES[each.name]: opened[each.name](each.address)
        for each in state.services
        if each.name in opened
        and each.condition is not Condition.EXTERNAL
        and found[_VARIABLES[each.name]].rstrip("/") == each.address
    }


def log_of(environ: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """`with_stack`, and the address of the ISCP log in it.

    Raises ConfigError if neither the environment nor a stack names one.
    """
    found = with_stack(environ)
    if not found.get(variables.LOG_URL):
        raise ConfigError(
            f"{variables.LOG_URL} is not set, and no stack is up. Start one with `iscp up`, or "
            "name the database of your deployment's ISCP log."
        )
    return found, found[variables.LOG_URL]
