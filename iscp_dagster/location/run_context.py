"""The lease of a run while it works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dagster import DagsterRun

from iscp_dagster.joblog.renewal import renew_lease
from iscp_dagster.model.errors import IscpError, RunGoneError
from iscp_dagster.runs.run_names import DISPATCH_TAG
from iscp_dagster.sync.deployment import Deployment


@contextmanager
def hold_run_lease(deployment: Deployment, run: DagsterRun) -> Iterator[None]:
    """Renew the run's lease; if the body raises, jobs not claimed yet fail with that error."""
    with renew_lease(deployment.log, run.run_id):
        try:
            yield
        except Exception as error:
            _refuse_dispatch(deployment, run, error)
            raise


def _refuse_dispatch(deployment: Deployment, run: DagsterRun, error: Exception) -> None:
    dispatch = run.tags.get(DISPATCH_TAG)
    if dispatch is None:
        return
    expected = isinstance(error, IscpError)
    code = error.code if isinstance(error, IscpError) else RunGoneError.code
    text = str(error) if expected else f"{type(error).__name__}: {error}"
    # The log may be the service that does not answer.
    with suppress(IscpError):
        deployment.log.fail_queued_jobs(dispatch, code, text)
