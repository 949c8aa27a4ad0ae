"""What `iscp job update` did: to the spec, and to iterations that were under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from iscp_dagster.api.jobs import Jobs
from iscp_dagster.api.names import format_title
from iscp_dagster.cli.jobs.specs import complete_schedule
from iscp_dagster.cli.parts.counting import count_nouns
from iscp_dagster.joblog.results import SpecUpdateResult
from iscp_dagster.joblog.updates import SpecUpdate
from iscp_dagster.model.jobs import JobID


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """An update of the tenant's job, or of every tenant's."""

    tenant: str
    job: JobID
    outcome: SpecUpdateResult
    respecified: bool
    """Whether any spec changed."""
    interrupt: bool
    """Whether iterations under way were to be interrupted."""

    def __str__(self) -> str:
        then = f"; {self._interruption_text}" if self.interrupt else ""
        return f"{format_title(str(self.job), self.tenant)}: {self._change_text}{then}"

    def to_json(self) -> dict[str, Any]:
        """What changed; with --interrupt, also how many jobs were interrupted."""
        interrupted = {"interrupted": len(self.outcome.interrupted_jobs)} if self.interrupt else {}
        changed = self.outcome.changed or bool(self.outcome.interrupted_jobs)
        return {"tenant": self.tenant, "job": str(self.job), "changed": changed, **interrupted}

    @property
    def _change_text(self) -> str:
        if self.respecified:
            return "updated"
        if self.outcome.changed and not self.outcome.interrupted_jobs:
            return "unchanged, planned again"
        return "unchanged"

    @property
    def _interruption_text(self) -> str:
        number = len(self.outcome.interrupted_jobs)
        if not number:
            return "no iteration was under way"
        return f"{count_nouns(number, 'job')} interrupted"


def update_spec(
    jobs: Jobs, tenant: str, job: JobID, change: SpecUpdate, *, interrupt: bool
) -> UpdateResult:
    """Change the spec. Raises ConfigError, NoSuchJobError."""
    specs = jobs.list_specs(tenant, job)
    update = complete_schedule(change, [spec.trigger for spec in specs])
    return UpdateResult(
        tenant=tenant,
        job=job,
        outcome=jobs.apply_spec_change(tenant, job, update, interrupt=interrupt),
        respecified=any(update.apply_to(spec) != spec for spec in specs),
        interrupt=interrupt,
    )
