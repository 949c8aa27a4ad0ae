"""What follows from an endpoint's answer: pure rules, all shown in tests/golden/answers.txt."""

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


class MessageVerdict(Enum):
    """What follows for the message."""

    DELIVERED = "delivered"
    AGAIN = "again"
    DEAD = "dead"
    SPLIT = "split"
    """Its events are sent in smaller batches, at once."""
    HELD = "held"
    """It stays pending until a person resumes the endpoint."""


class EndpointChange(Enum):
    """What follows for the endpoint."""

    PAUSE = "paused"
    DISABLE = "disabled"


@dataclass(frozen=True, kw_only=True)
class EndpointAnswer:
    """The end of one attempt: a status, or why there was none."""

    status: int | None = None
    text: str = ""
    """The beginning of the answer, or the error."""
    retry_after: str | None = None
    """The header's value."""
    address_denied: bool = False
    """No request was made, because the address is not allowed."""

    @property
    def accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300  # noqa: PLR2004

    @property
    def is_endpoint_refusal(self) -> bool:
        """Whether it is about the endpoint rather than the event, and the endpoint is not busy."""
        if self.status is None:
            return self.address_denied
        return 300 <= self.status < 500 and self.status not in WRONG | BUSY | {GONE}  # noqa: PLR2004


@dataclass(frozen=True, kw_only=True)
class DeliveryRules:
    """How long to wait, and when to give up; times are seconds."""

    delays: Sequence[float]
    """Before each further attempt; the last one repeats."""
    jitter: float = 0.2
    """The fraction of a delay by which it may be shorter or longer."""
    longest_wait: float = 36_000.0
    """The longest delay that `Retry-After` can request."""
    pausing_refusals: int = 20
    """How many refusals in a row pause the endpoint."""
    disabling_period: timedelta = timedelta(days=5)
    """How long an endpoint may fail before it is disabled."""

    @property
    def least_retry_period(self) -> timedelta:
        """The least time after its first failure, before jitter, until an event may be dead."""
        return timedelta(seconds=sum(self.delays))


@dataclass(frozen=True, kw_only=True)
class EndpointHealth:
    """The failures among an endpoint's attempts so far."""

    consecutive_refusals: int = 0
    """Refusals since an attempt was answered in another way."""
    failing_since: datetime | None = None
    """The first failure since an attempt was accepted; None: there was none."""

    def count_answer(self, answer: EndpointAnswer, now: datetime) -> EndpointHealth:
        """The health after this answer."""
        if answer.accepted:
            return EndpointHealth()
        if answer.status in WRONG:
            # It is only about the event, and no other attempt may follow for days.
            return replace(self, consecutive_refusals=0)
        return EndpointHealth(
            consecutive_refusals=self.consecutive_refusals + 1 if answer.is_endpoint_refusal else 0,
            failing_since=self.failing_since or now,
        )


@dataclass(frozen=True, kw_only=True)
class AttemptOutcome:
    """What follows for the message, and for its endpoint if anything."""

    verdict: MessageVerdict
    next_at: datetime | None = None
    """When the next attempt follows; None: none follows by itself."""
    change: EndpointChange | None = None
    reason: str = ""
    """Why the endpoint is changed."""


def decide_outcome(
    answer: EndpointAnswer,
    *,
    attempt: int,
    first_failure: datetime | None,
    health: EndpointHealth,
    now: datetime,
    rules: DeliveryRules,
    random: float,
    events: int = 1,
) -> AttemptOutcome:
    """What follows from the answer to attempt number `attempt`, from 1, of a message of `events`.

    `first_failure` is the message's, None if this is it; `health` has counted this answer;
    `random` is from 0 up to 1. A message whose tries are used up is a dead letter if the endpoint
    accepted others meanwhile; if all messages fail, it is still tried. A batch never becomes a dead
    letter: it is split until the rejected event is alone.
    """
    if answer.accepted:
        return AttemptOutcome(verdict=MessageVerdict.DELIVERED)
    if answer.status == GONE:
        return AttemptOutcome(
            verdict=MessageVerdict.HELD,
            change=EndpointChange.DISABLE,
            reason="it answered 410 Gone",
        )
    change, reason = _decide_change(answer, health, now, rules)
    if answer.status in WRONG or _is_exhausted(attempt, first_failure, health, now, rules):
        if events > 1:
            return AttemptOutcome(
                verdict=MessageVerdict.SPLIT, next_at=now, change=change, reason=reason
            )
        return AttemptOutcome(verdict=MessageVerdict.DEAD, change=change, reason=reason)
    seconds = _get_requested_delay(answer, now, rules) or _compute_delay(attempt, rules, random)
    next_at = now + timedelta(seconds=seconds)
    return AttemptOutcome(
        verdict=MessageVerdict.AGAIN, next_at=next_at, change=change, reason=reason
    )


def parse_retry_after(header: str | None, now: datetime) -> float | None:
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


def _is_exhausted(
    attempt: int,
    first_failure: datetime | None,
    health: EndpointHealth,
    now: datetime,
    rules: DeliveryRules,
) -> bool:
    """Whether the message's tries are used up while the endpoint accepted others."""
    if attempt <= len(rules.delays) or first_failure is None:
        return False
    # Jitter and Retry-After may use up the tries early.
    tried_long_enough = now - first_failure >= rules.least_retry_period * (1 - rules.jitter)
    since = health.failing_since
    return tried_long_enough and since is not None and since > first_failure


def _get_requested_delay(
    answer: EndpointAnswer, now: datetime, rules: DeliveryRules
) -> float | None:
    requested = parse_retry_after(answer.retry_after, now)
    # A receiver that requests no wait at all gets no other attempt within the second.
    return None if requested is None else min(max(requested, 1.0), rules.longest_wait)


def _compute_delay(attempt: int, rules: DeliveryRules, random: float) -> float:
    delay = rules.delays[min(attempt, len(rules.delays)) - 1]
    return delay * (1 + rules.jitter * (2 * random - 1))


def _decide_change(
    answer: EndpointAnswer, health: EndpointHealth, now: datetime, rules: DeliveryRules
) -> tuple[EndpointChange | None, str]:
    since = health.failing_since
    if since is not None and now - since >= rules.disabling_period:
        return EndpointChange.DISABLE, f"it has been failing since {since:%Y-%m-%d %H:%M} UTC"
    if health.consecutive_refusals >= rules.pausing_refusals:
        last_answer = answer.text if answer.status is None else f"answered {answer.status}"
        return (
            EndpointChange.PAUSE,
            f"{health.consecutive_refusals} attempts in a row were refused; the last {last_answer}",
        )
    return None, ""
