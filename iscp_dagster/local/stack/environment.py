"""Builds the environment in which a command reaches the running stack's services."""

from __future__ import annotations

from collections.abc import Mapping

from iscp_dagster.local.services import credentials, settings
from iscp_dagster.local.services.state import Condition, StackState, find_running_stack
from iscp_dagster.model import variables
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.spark.remote import add_token

_VARIABLES = {
    settings.CLICKHOUSE: variables.CLICKHOUSE_URL,
    settings.SPARK: variables.SPARK_REMOTE,
    settings.DAGSTER: variables.DAGSTER_URL,
    settings.GRAPHQL: variables.GRAPHQL_URL,
    settings.INVOCATIONS: variables.INVOCATIONS_URL,
}


def add_stack_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` plus the missing addresses of the running stack, if one is up.

    Adds the stack's secrets to the addresses of its own services, including those in `environ`.
    """
    home = settings.get_home(environ)
    state = find_running_stack(home)
    if state is None:
        return dict(environ)
    environment = {
        _VARIABLES[service.name]: service.address
        for service in state.services
        if service.name in _VARIABLES
    }
    environment[variables.LOG_URL] = state.log_url or f"sqlite:///{home / 'iscp_log.sqlite'}"
    environment[variables.LAKE] = state.lake or str(home / "lake")
    secrets = credentials.read(home)
    if secrets.webhook:
        environment[variables.WEBHOOK_SECRET] = secrets.webhook
    if state.clickhouse_urls:
        environment[variables.CLICKHOUSE_URLS] = state.clickhouse_urls
    if variables.DAGSTER_URL in environment:
        environment[variables.DAGSTER_HOME] = str(home / "dagster")
    environment |= {
        name: value for name, value in environ.items() if value or name not in environment
    }
    return environment | _add_secrets(environment, state, secrets)


def get_shell_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a shell needs to use the running stack's services."""
    environment = add_stack_variables(environ)
    names = (*_VARIABLES.values(), variables.CLICKHOUSE_URLS, variables.WEBHOOK_SECRET)
    return {name: environment[name] for name in names if name in environment}


def _add_secrets(
    environment: Mapping[str, str], state: StackState, secrets: credentials.Secrets
) -> dict[str, str]:
    add_secret = {
        settings.CLICKHOUSE: lambda address: settings.add_password(address, secrets.password),
        settings.SPARK: lambda address: add_token(address, secrets.spark_token),
    }
    return {
        _VARIABLES[service.name]: add_secret[service.name](service.address)
        for service in state.services
        if service.name in add_secret
        and service.condition is not Condition.EXTERNAL
        and environment[_VARIABLES[service.name]].rstrip("/") == service.address
    }


def resolve_log_url(environ: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """`add_stack_variables`, and the address of the ISCP log in it.

    Raises ConfigError if neither the environment nor a stack names one.
    """
    environment = add_stack_variables(environ)
    if not environment.get(variables.LOG_URL):
        raise ConfigError(
            f"{variables.LOG_URL} is not set, and no stack is up. Start one with `iscp up`, or "
            "name the database of your deployment's ISCP log."
        )
    return environment, environment[variables.LOG_URL]
