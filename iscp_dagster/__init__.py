"""ClickHouse index tables that stay in step with Delta Lake tables, exactly once, in Dagster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from iscp_dagster.clickhouse.kinds.changes import Changes
from iscp_dagster.clickhouse.kinds.mirror import Mirror
from iscp_dagster.clickhouse.kinds.text import FullText
from iscp_dagster.clickhouse.kinds.vector import Vector
from iscp_dagster.model.consumers.kinds import ConsumerKind
from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.declared.eventtriggers import Trigger
from iscp_dagster.model.declared.images import ImageSource
from iscp_dagster.model.declared.services import ServiceConsumer
from iscp_dagster.model.declared.sharding import Sharding
from iscp_dagster.model.declared.tables import Index, SourceTable
from iscp_dagster.model.declared.views import View

if TYPE_CHECKING:
    from iscp_dagster.api.deployed import (
        count_jobs,
        get_job_count,
        get_job_status,
        pause_job,
        register_job,
        resume_job,
        unregister_job,
        update_job_spec,
        wait,
    )
    from iscp_dagster.api.invocations import open_invocations_client
    from iscp_dagster.joblog.updates import SpecUpdate
    from iscp_dagster.location.build import build_definitions
    from iscp_dagster.location.component.component import SourceTableComponent
    from iscp_dagster.location.resources.environment import resources_from_environment
    from iscp_dagster.model.jobs import JobID
    from iscp_dagster.model.specs import ConsumerInfo, IterationDetail, JobSpec, TriggerSpec
    from iscp_dagster.model.states import JobState

__all__ = [
    "Changes",
    "ConsumerInfo",
    "ConsumerKind",
    "Endpoint",
    "FullText",
    "ImageSource",
    "Index",
    "IterationDetail",
    "JobID",
    "JobSpec",
    "JobState",
    "Mirror",
    "ServiceConsumer",
    "Sharding",
    "SourceTable",
    "SourceTableComponent",
    "SpecUpdate",
    "Trigger",
    "TriggerSpec",
    "Vector",
    "View",
    "build_definitions",
    "count_jobs",
    "get_job_count",
    "get_job_status",
    "open_invocations_client",
    "pause_job",
    "register_job",
    "resources_from_environment",
    "resume_job",
    "unregister_job",
    "update_job_spec",
    "wait",
]

# These import Dagster, SQL, the lake and more, which a module that declares tables does not need.
_LAZY = {
    "iscp_dagster.model.jobs": ("JobID",),
    "iscp_dagster.model.specs": ("ConsumerInfo", "IterationDetail", "JobSpec", "TriggerSpec"),
    "iscp_dagster.model.states": ("JobState",),
    "iscp_dagster.api.invocations": ("open_invocations_client",),
    "iscp_dagster.joblog.updates": ("SpecUpdate",),
    "iscp_dagster.location.build": ("build_definitions",),
    "iscp_dagster.location.component.component": ("SourceTableComponent",),
    "iscp_dagster.location.resources.environment": ("resources_from_environment",),
    "iscp_dagster.api.deployed": (
        "count_jobs",
        "get_job_count",
        "get_job_status",
        "pause_job",
        "register_job",
        "resume_job",
        "unregister_job",
        "update_job_spec",
        "wait",
    ),
}
_PLACES = {name: module for module, names in _LAZY.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
