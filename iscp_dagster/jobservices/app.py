"""The ASGI app of the services that drive jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from starlette.applications import Starlette

from asgi_guards.admission import parse_names
from durable_invocations.serving.app import service_app
from iscp_dagster.api.jobs import Jobs, open_jobs
from iscp_dagster.jobservices.services import build_index_object, build_iscp_service
from iscp_dagster.jobservices.steps import Steps
from iscp_dagster.model.variables import ALLOWED_HOSTS


def build_services_app(environ: Mapping[str, str], hosts: Iterable[str] = ()) -> Starlette:
    """The service endpoint of the deployment that the environment or the running stack names.

    `hosts` are names of the server besides its address and those in ISCP_ALLOWED_HOSTS. The
    deployment is opened when a handler first needs it, and kept.
    """

    @cache
    def get_jobs() -> Jobs:
        return open_jobs(environ)

    allowed = {*hosts, *parse_names(environ.get(ALLOWED_HOSTS, ""))}
    steps = Steps(jobs=get_jobs)
    return service_app(
        build_iscp_service(steps),
        build_index_object(steps),
        hosts=allowed,
        hosts_setting=ALLOWED_HOSTS,
    )
