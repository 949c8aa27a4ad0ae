"""What `iscp job update` did: to the spec, and to iterations that were under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from iscp_dagster.api.jobs import Jobs
from iscp_dagster.api.names import titled
from iscp_dagster.cli.jobs.specs import scheduled
from iscp_dagster.cli.parts.counting import count_nouns
from iscp_dagster.joblog.protocol import Interrupted
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.jobs import JobID


@dataclass(frozen=True, kw_only=True)
class Updated:
    """An update of the tenant's job, or of every tenant's."""

    tenant: str
    job: JobID
    done: Interrupted
    respecified: bool
    """Whether any spec is another one now."""
    interrupt: bool
    """Whether iterations under way were to be interrupted."""

    def __str__(self) -> str:
        then = f"; {self._interrupted}" if self.interrupt else ""
        return f"{titled(str(self.job), self.tenant)}: {self._changed}{then}"

    def to_json(self) -> dict[str, Any]:
        """Return what was changed; with --interrupt, of how many jobs iterations were canceled."""
        number = {"interrupted": len(self.done.keys)} if self.interrupt else {}
        changed = self.done.changed or bool(self.done.keys)
        return {"tenant": self.tenant, "job": str(self.job), "changed": changed, **number}

    @property
    def _changed(self) -> str:
        if self.respecified:
            return "updated"
        if self.done.changed and not self.done.keys:
            return "unchanged, planned again"
        return "unchanged"

    @property
    def _interrupted(self) -> str:
        number = len(self.done.keys)
        if not number:
            return "no iteration was under way"
        return f"{count_nouns(number, 'job')} interrupted"


def update_spec(
    jobs: Jobs, tenant: str, job: JobID, change: SpecUpdate, *, interrupt: bool
) -> Updated:
    """Change the spec. Raises ConfigError, NoSuchJobError."""
    before = jobs.specs(tenant, job)
    wanted = scheduled(change, [each.trigger for each in before])
    return Updated(
        tenant=tenant,
        job=job,
        done=jobs.change_job_spec(tenant, job, wanted, interrupt=interrupt),
        respecified=any(wanted.applied(each) != each for each in before),
        interrupt=interrupt,
    )
