"""The stack's run coordinator for Dagster: a queued run waits a quarter of a second on average."""

from __future__ import annotations

from typing import Any

from dagster import QueuedRunCoordinator

DEQUEUE_SECONDS = 0.5
"""Dagster's daemon pauses for at least as long, whatever the setting."""


class PromptRunCoordinator(QueuedRunCoordinator[Any]):
    """Dagster's queue, looked at twice a second; its own setting takes whole seconds only."""

    @property
    def dequeue_interval_seconds(self) -> float:  # type: ignore[override]
        """Seconds between two looks of the daemon at the queue."""
        return DEQUEUE_SECONDS
