"""Entries that wait for a time, or for somebody who completes an awakeable."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.results import EMPTY, result_of
from durable_invocations.runtime.sql.entries.driven import ACTED, Acted, Driven, violation
from durable_invocations.runtime.sql.lives import awakeables
from durable_invocations.runtime.sql.tables import TIMERS_TABLE
from durable_invocations.runtime.sql.work import Work
from durable_invocations.runtime.store.operations import CompleteAwakeable
from durable_invocations.runtime.store.outcomes import Refused


def sleep(work: Work, driven: Driven, message: Any) -> Acted:
    """Complete a Sleep at its time; at once if that is past."""
    at = work.moment(message.wake_up_time)
    if at <= work.now:
        return Acted(result=EMPTY)
    row = {"invocation": driven.number, "idx": driven.length, "at": at}
    work.connection.execute(sa.insert(TIMERS_TABLE), row)
    work.due(at)
    return ACTED


def awakeable(work: Work, driven: Driven, _message: Any) -> Acted:
    """Complete an Awakeable now, if somebody was quicker than its entry."""
    return Acted(result=awakeables.early(work, (driven.number, driven.length)))


def complete_awakeable(work: Work, driven: Driven, message: Any) -> Acted | Refused:
    """Complete an awakeable; no change if it is completed already."""
    given = result_of(message)
    if given is None:
        return violation(driven, "it completes an awakeable with neither a value nor a failure.")
    asked = CompleteAwakeable(awakeable=message.id, result=given)
    outcome = awakeables.complete_awakeable(work, asked)
    return outcome if isinstance(outcome, Refused) else ACTED
