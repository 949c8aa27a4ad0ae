"""Runs a deployment's runtime of invocations, with its HTTP and its own services."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from asgi_guards.admission import Admission, is_loopback, parse_names
from asgi_guards.connections import make_uvicorn_options
from durable_invocations.app import build_runtime_app
from durable_invocations.errors import DurableError, UnavailableError
from durable_invocations.ingress.tokens import check_token
from durable_invocations.runtime.http.client import HTTP_1
from durable_invocations.runtime.runtime import Runtime
from durable_invocations.runtime.settings import RuntimeSettings
from durable_invocations.runtime.sql.store import RETENTION, SqlStore
from durable_invocations.runtime.store.operations import Register
from durable_invocations.runtime.store.outcomes import OperationRefusal
from durable_invocations.runtime.timers import SteadyClock
from iscp_dagster.api.invocations import IN_LOG
from iscp_dagster.joblog.sql.engine import open_engine
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import ALLOWED_HOSTS, INVOCATIONS_TOKEN, LOG_URL
from iscp_dagster.serve.web.declaration_watch import end_when_changed
from iscp_dagster.serve.web.server import open_listener
from iscp_dagster.serviceconsumers.errors import raise_job_errors

HOST = "127.0.0.1"
OWN_DEPLOYMENT_ID = "dp_iscp"
"""The id of the deployment of the process's own services, whatever their address."""
SERVICES_PATH = "/services"
_END_SECONDS = 2
_AGAIN_SECONDS = 0.5
_LEAST_PRUNE_SECONDS = 1.0
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of a server."""

    environ: Mapping[str, str] = field(repr=False)
    log_url: str = field(repr=False)
    token: str = field(default="", repr=False)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    retention: timedelta = RETENTION
    services: ASGIApp | None = None
    """The service endpoint of the process's own services, if there is one."""


def build_settings(
    environ: Mapping[str, str],
    host: str,
    *,
    runtime: RuntimeSettings | None = None,
    retention: timedelta = RETENTION,
    services: ASGIApp | None = None,
) -> ServerSettings:
    """The server's settings. Raises ConfigError for invalid ones."""
    if not environ.get(LOG_URL):
        raise ConfigError(
            f"{LOG_URL} is not set, and no stack is up. Start one with `iscp up`, or name the "
            "database that invocations are kept in."
        )
    with raise_job_errors():
        token = check_token(environ.get(INVOCATIONS_TOKEN, ""), INVOCATIONS_TOKEN)
    check_host(host, token)
    runtime_settings = runtime or RuntimeSettings()
    # Otherwise an idempotency key would count for a minute longer than it is kept.
    prune = min(runtime_settings.prune, max(_LEAST_PRUNE_SECONDS, retention.total_seconds()))
    return ServerSettings(
        environ=environ,
        log_url=environ[LOG_URL],
        token=token,
        runtime=replace(runtime_settings, prune=prune),
        retention=retention,
        services=services,
    )


def check_host(host: str, token: str) -> None:
    """Reject a host beyond this machine without a token. Raises ConfigError."""
    if not token and not is_loopback(host):
        raise ConfigError(
            f"--host {host!r} is not a loopback address, and {INVOCATIONS_TOKEN} is "
            "not set: everybody who reaches it could invoke every handler. Set it, or listen on "
            "127.0.0.1."
        )


def serve(
    settings: ServerSettings,
    host: str,
    port: int,
    announce: Callable[[str], None],
    *,
    follow: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM; `announce` gets one line once the port is open.

    With `follow` it also ends when the declarations change. Raises ConfigError when the address
    cannot be listened on, and UnavailableError when the database does not answer.
    """
    clock = SteadyClock()
    with raise_job_errors():
        store = _open_store(settings, clock)
        store.ensure()
    with open_listener(host, port) as listener:
        address, bound_port, *_ = listener.getsockname()
        announce(f"Invocations: http://{_bracket_host(host)}:{bound_port}")
        config = uvicorn.Config(
            build_application(
                settings,
                store,
                clock,
                f"http://{_bracket_host(_get_own_address(address))}:{bound_port}",
            ),
            **make_uvicorn_options(),
            timeout_graceful_shutdown=_END_SECONDS,
        )
        server = uvicorn.Server(config)
        with end_when_changed(settings.environ, server) if follow else nullcontext():
            server.run(sockets=[listener])


def build_application(
    settings: ServerSettings, store: SqlStore, clock: SteadyClock, address: str
) -> Starlette:
    """The application that is served at `address`; the runtime runs while it does."""
    path = derive_services_path(settings.token)
    hosts = parse_names(settings.environ.get(ALLOWED_HOSTS, ""))
    return build_runtime_app(
        store,
        settings.runtime,
        clock,
        token=settings.token,
        credential=f"the token of {INVOCATIONS_TOKEN}",
        # Dagster's pages lead people to an invocation.
        admission=Admission(hosts=hosts, hosts_setting=ALLOWED_HOSTS, links=True),
        own=OWN_DEPLOYMENT_ID,
        own_path=path,
        routes=[Mount(path, settings.services)] if settings.services else [],
        beside=lambda runtime: _register_own(runtime, f"{address}{path}", settings),
    )


def derive_services_path(token: str) -> str:
    """The path of the own services. Without the token nobody can guess it, so it needs no other."""
    if not token:
        return SERVICES_PATH
    return f"{SERVICES_PATH}/{hmac.new(token.encode(), b'services', hashlib.sha256).hexdigest()}"


async def _register_own(runtime: Runtime, url: str, settings: ServerSettings) -> None:
    """Register the own services, as soon as they answer at their address."""
    while settings.services:
        try:
            # uvicorn, which serves this, would warn of HTTP/2.
            deployment, services = await runtime.discover(url, http=HTTP_1)
            register = Register(
                deployment=replace(deployment, id=OWN_DEPLOYMENT_ID), services=services, force=True
            )
            outcome = await runtime.do(register)
        except UnavailableError:
            await asyncio.sleep(_AGAIN_SECONDS)
            continue
        except DurableError as error:
            outcome = OperationRefusal(code=error.code, message=str(error))
        if isinstance(outcome, OperationRefusal):
            _LOGGER.error("the own services are not registered: %s", outcome.message)
        return


def _open_store(settings: ServerSettings, clock: SteadyClock) -> SqlStore:
    return SqlStore(
        open_engine(settings.log_url, IN_LOG, keep_open=True),
        owner=settings.runtime.owner,
        clock=clock.get_utc,
        lead=clock.get_lead,
        retention=settings.retention,
    )


def _get_own_address(address: str) -> str:
    """The address at which the process reaches itself."""
    return {"0.0.0.0": HOST, "::": "::1"}.get(address, address)  # noqa: S104 - it is read


def _bracket_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
