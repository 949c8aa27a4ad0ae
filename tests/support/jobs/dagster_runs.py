"""Runs as Dagster's queue has them."""

from __future__ import annotations

from collections.abc import Mapping

from dagster import DagsterRun, DagsterRunStatus
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)

ORIGIN = RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "all"), "any")


def make_run(status: DagsterRunStatus, tags: Mapping[str, str]) -> DagsterRun:
    return DagsterRun("any", status=status, tags=dict(tags), remote_job_origin=ORIGIN)
