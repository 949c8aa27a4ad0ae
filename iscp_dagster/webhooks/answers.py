"""What follows from an endpoint's answer: pure rules, shown whole in tests/golden/answers.txt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from enum import Enum

GONE = 410
WRONG = frozenset({400, 413, 415, 422})
"""The event itself is not accepted, and would not be later."""
BUSY = frozenset({408, 425, 429})
"""The endpoint does not accept events now; so does every 5xx."""


class Verdict(Enum):
    """What follows for the message."""

    DELIVERED = "delivered"
    AGAIN = "again"
    DEAD = "dead"
    SPLIT = "split"
    """Its events are sent in smaller batches, at once."""
    HELD = "held"
    """It stays pending until a person resumes the endpoint."""


class Change(Enum):
    """What follows for the endpoint."""

    PAUSE = "paused"
    DISABLE = "disabled"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The end of one attempt: a status, or why there was none."""

    status: int | None = None
    text: str = ""
    """The beginning of the answer, or the error."""
    retry_after: str | None = None
    """The header's value."""
    refused: bool = False
    """No request was made, because the address is not allowed."""

    @property
    def accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300  # noqa: PLR2004

    @property
    def pauses(self) -> bool:
        """Whether it speaks of the endpoint rather than of the event, and of no busy one."""
        if self.status is None:
            return self.refused
        return 300 <= self.status < 500 and self.status not in WRONG | BUSY | {GONE}  # noqa: PLR2004


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How long to wait, and when to give up; times are seconds."""

    delays: Sequence[float]
    """Before each further attempt; the last one repeats."""
    jitter: float = 0.2
    """The part of a delay by which it may be shorter or longer."""
    longest: float = 36_000.0
    """The most that `Retry-After` can ask for."""
    refusals: int = 20
    """How many refusals in a row pause the endpoint."""
    failing: timedelta = timedelta(days=5)
    """How long an endpoint may fail before it is disabled."""

    @property
    def horizon(self) -> timedelta:
        """How long after its first failure an event may be tried again."""
        return timedelta(seconds=sum(self.delays))


@dataclass(frozen=True, kw_only=True)
class Health:
    """What an endpoint's attempts so far amount to."""

    in_a_row: int = 0
    """Refusals since an attempt was answered in another way."""
    failing_since: datetime | None = None
    """The first of the failures since one was accepted; None: there was none."""

    def after(self, answer: Answer, now: datetime) -> Health:
        """The health once this answer is counted, too."""
        if answer.accepted:
            return Health()
        if answer.status in WRONG:
            # It speaks of the event alone, and no other attempt need follow for days.
            return replace(self, in_a_row=0)
        return Health(
            in_a_row=self.in_a_row + 1 if answer.pauses else 0,
            failing_since=self.failing_since or now,
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What follows for the message, and for its endpoint if anything."""

    verdict: Verdict
    next_at: datetime | None = None
    """When the next attempt follows; None: none does by itself."""
    change: Change | None = None
    reason: str = ""
    """Why the endpoint is changed."""


def outcome(
    answer: Answer,
    *,
    attempt: int,
    first_failure: datetime | None,
    health: Health,
    now: datetime,
    rules: Rules,
    random: float,
    events: int = 1,
) -> Outcome:
    """What follows from the answer to attempt number `attempt`, from 1, of a message of `events`.

    `first_failure` is the message's, None if this is it; `health` has counted this answer;
    `random` is from 0 up to 1. A message whose tries are used up is a dead letter if the endpoint
    accepted others meanwhile; one that the endpoint shares with all others goes on being tried.
    A batch is no dead letter: it is split until the event is alone that is not accepted.
    """
    if answer.accepted:
        return Outcome(verdict=Verdict.DELIVERED)
    if answer.status == GONE:
        return Outcome(verdict=Verdict.HELD, change=Change.DISABLE, reason="it answered 410 Gone")
    change, reason = _change(answer, health, now, rules)
    if answer.status in WRONG or _spent(attempt, first_failure, health, now, rules):
        if events > 1:
            return Outcome(verdict=Verdict.SPLIT, next_at=now, change=change, reason=reason)
        return Outcome(verdict=Verdict.DEAD, change=change, reason=reason)
    seconds = _asked(answer, now, rules) or _delay(attempt, rules, random)
    next_at = now + timedelta(seconds=seconds)
    return Outcome(verdict=Verdict.AGAIN, next_at=next_at, change=change, reason=reason)


def seconds_asked(header: str | None, now: datetime) -> float | None:
    """The seconds in a `Retry-After`, given as such or as a date; None if it is neither."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        # The oldest form has no zone; all of HTTP's dates are in UTC.
        date = date if date.tzinfo else date.replace(tzinfo=timezone.utc)
        return max(0.0, (date.astimezone(now.tzinfo) - now).total_seconds())
    except (TypeError, ValueError, OverflowError, IndexError):
        return None


def _spent(
    attempt: int, first_failure: datetime | None, health: Health, now: datetime, rules: Rules
) -> bool:
    """Whether the message's tries are used up while the endpoint accepted others."""
    if attempt <= len(rules.delays) or first_failure is None:
        return False
    # Jitter and Retry-After may use up the tries early.
    tried_long_enough = now - first_failure >= rules.horizon * (1 - rules.jitter)
    since = health.failing_since
    return tried_long_enough and since is not None and since > first_failure


def _asked(answer: Answer, now: datetime, rules: Rules) -> float | None:
    asked = seconds_asked(answer.retry_after, now)
    # A receiver that asks for no wait at all is not asked again within the second.
    return None if asked is None else min(max(asked, 1.0), rules.longest)


def _delay(attempt: int, rules: Rules, random: float) -> float:
    delay = rules.delays[min(attempt, len(rules.delays)) - 1]
    return delay * (1 + rules.jitter * (2 * random - 1))


def _change(
    answer: Answer, health: Health, now: datetime, rules: Rules
) -> tuple[Change | None, str]:
    since = health.failing_since
    if since is not None and now - since >= rules.failing:
        return Change.DISABLE, f"it has been failing since {since:%Y-%m-%d %H:%M} UTC"
    if health.in_a_row >= rules.refusals:
        last = answer.text if answer.status is None else f"answered {answer.status}"
        return Change.PAUSE, f"{health.in_a_row} attempts in a row were refused; the last {last}"
    return None, ""
