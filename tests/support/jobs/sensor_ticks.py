"""Both sensors of a location, evaluated one after the other as Dagster's daemon does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from dagster._core.definitions.partitions.context import partition_loading_context

RUNNER, NEWS = "iscp_runner", "iscp_news"


@dataclass(frozen=True)
class Tick:
    """What the runner's sensor found, and what the news sensor then reported."""

    runner: dg.SensorResult
    news: Any

    @property
    def run_requests(self) -> list[dg.RunRequest]:
        assert not self.news.run_requests
        return list(self.runner.run_requests or ())

    @property
    def skip_message(self) -> str:
        return self.runner.skip_message

    @property
    def asset_events(self) -> list[Any]:
        assert not self.runner.asset_events, "these would delay its runs"
        return list(self.news.asset_events)


@dataclass
class Ticks:
    """Evaluates the sensors, each from its own last cursor."""

    defs: dg.Definitions
    instance: dg.DagsterInstance
    cursors: dict[str, str | None] = field(default_factory=dict)

    def __call__(self) -> Tick:
        return Tick(self.evaluate(RUNNER), self.evaluate(NEWS))

    def evaluate(self, name: str) -> Any:
        with (
            partition_loading_context(dynamic_partitions_store=self.instance),
            dg.build_sensor_context(
                instance=self.instance,
                cursor=self.cursors.get(name),
                definitions=self.defs,
                resources={"iscp": self.defs.resources["iscp"]},
            ) as context,
        ):
            result = self.defs.resolve_sensor_def(name).evaluate_tick(context)
        self.cursors[name] = result.cursor
        return result
