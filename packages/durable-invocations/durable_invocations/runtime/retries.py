"""When a failed attempt is retried: a pure policy."""

from __future__ import annotations

from dataclasses import dataclass

from durable_invocations.durations import YEAR
from durable_invocations.errors import ConfigError

MOST_SECONDS = float(YEAR)
"""The longest wait that an error may request."""
MOST_FACTOR = 1_000.0
MOST_STEPS = 100
"""Steps after which every wait is at its cap; keeps the power within a float."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Waits grow by `factor` from `initial` to `cap` seconds; after `attempts` it is paused.

    `attempts` counts every attempt since the invocation last made progress, including the first;
    None retries without limit. Raises ConfigError for invalid values.
    """

    initial: float = 0.05
    factor: float = 2.0
    cap: float = 60.0
    attempts: int | None = 20

    def __post_init__(self) -> None:
        if not 0 < self.initial <= MOST_SECONDS:
            raise _make_policy_error(
                "initial", self.initial, f"more than 0 s, and {MOST_SECONDS:,.0f} at most"
            )
        if not self.initial <= self.cap <= MOST_SECONDS:
            fits = f"from the initial wait of {self.initial:g} s up to {MOST_SECONDS:,.0f}"
            raise _make_policy_error("cap", self.cap, fits)
        if not 1 <= self.factor <= MOST_FACTOR:
            raise _make_policy_error("factor", self.factor, f"from 1 to {MOST_FACTOR:,.0f}")
        if self.attempts is not None and self.attempts < 1:
            raise _make_policy_error("attempts", self.attempts, "1 or more")

    def compute_wait(self, failed: int, requested: float | None = None) -> float | None:
        """Seconds until the next attempt, after `failed` ones in a row; None if it is paused.

        `requested` is the delay that the error itself requests; it replaces the policy's wait this
        once, and leaves the number of attempts as it is.
        """
        if self.attempts is not None and failed >= self.attempts:
            return None
        if requested is not None:
            return min(max(requested, 0.0), MOST_SECONDS)
        return min(self.cap, self.initial * self.factor ** min(failed - 1, MOST_STEPS))


def _make_policy_error(name: str, value: float, fits: str) -> ConfigError:
    return ConfigError(f"The retry policy's {name} is {value:g}; it must be {fits}.")
