"""New invocations: asked for from outside, or by calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol import kinds
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.runtime.sql.lives import inbox
from durable_invocations.runtime.sql.packing import headers, identity, result
from durable_invocations.runtime.sql.services import learn, role
from durable_invocations.runtime.sql.tables import (
    INVOCATIONS,
    INVOCATIONS_TABLE,
    JOURNAL_TABLE,
    Role,
)
from durable_invocations.runtime.sql.work import BAD, LONGEST, Work
from durable_invocations.runtime.store.operations import Submit
from durable_invocations.runtime.store.outcomes import Refused, Submitted
from durable_invocations.runtime.store.views import Status
from sql_transactions.given import insert_into

_EXISTING = sa.select(INVOCATIONS.id, INVOCATIONS.identity, INVOCATIONS.result).where(
    INVOCATIONS.identity.in_(sa.bindparam("identities", expanding=True))
)


@dataclass(frozen=True, kw_only=True)
class _New:
    asked: Submit
    role: Role
    identity: str | None
    status: Status
    at: int

    @property
    def arrives(self) -> inbox.Key | None:
        """The key behind whose others it arrives now."""
        waits = self.role is not Role.EXCLUSIVE or self.status is Status.SCHEDULED
        return None if waits else (self.asked.service, self.asked.key)


def submit(
    work: Work, asked: Sequence[Submit], *, parent: str | None = None
) -> list[Submitted | Refused]:
    """See the operation; `parent` is the invocation that calls."""
    learn(work, (each.service for each in asked if "\0" not in each.service))
    roles = [_checked(work, each) for each in asked]
    valid = [(e, r) for e, r in zip(asked, roles, strict=True) if not isinstance(r, Refused)]
    existing = _existing(work, [_identity(each, role_) for each, role_ in valid])
    exclusive = [(e.service, e.key) for e, role_ in valid if role_ is Role.EXCLUSIVE]
    occupied = inbox.taken(work, exclusive)
    new: list[_New] = []
    for each, role_ in valid:
        identity_ = _identity(each, role_)
        if identity_ not in existing:
            new.append(_new(work, each, role_, identity_, occupied))
            if identity_ is not None:
                existing[identity_] = Submitted(id=each.id, is_new=False)
    made = _insert(work, new, parent)
    fresh = {
        each.asked.id: Submitted(id=each.asked.id, is_new=each.asked.id in made) for each in new
    }
    return [
        role_
        if isinstance(role_, Refused)
        else fresh.get(each.id) or existing[_identity(each, role_)]
        for each, role_ in zip(asked, roles, strict=True)
    ]


def _checked(work: Work, asked: Submit) -> Role | Refused:
    """The handler's role, unless the request is wrong."""
    if asked.idempotency_key == "":
        return Refused(code=BAD, message="The idempotency key is empty; give a text, or none.")
    texts = (asked.key, asked.idempotency_key or "", asked.service, asked.handler)
    if any("\0" in each for each in texts):
        return Refused(code=BAD, message="A key has a NUL in it, which PostgreSQL does not keep.")
    if len(asked.key.encode()) > LONGEST:
        return Refused(code=BAD, message=f"The key is longer than {LONGEST:,} bytes; shorten it.")
    return role(work, asked.service, asked.handler, asked.key)


def _identity(asked: Submit, role_: Role) -> str | None:
    if role_ is Role.RUN:
        return identity(asked.service, asked.key, asked.handler, None)
    if asked.idempotency_key is None:
        return None
    return identity(asked.service, asked.key, asked.handler, asked.idempotency_key)


def _existing(work: Work, identities: Sequence[str | None]) -> dict[str | None, Submitted]:
    """The invocations that submissions must not repeat, by identity."""
    chosen = [each for each in identities if each is not None]
    if not chosen:
        return {}
    rows = work.connection.execute(_EXISTING, {"identities": chosen})
    return {
        row.identity: Submitted(id=row.id, is_new=False, result=result(row.result)) for row in rows
    }


def _new(
    work: Work, asked: Submit, role_: Role, identity_: str | None, occupied: set[inbox.Key]
) -> _New:
    key = (asked.service, asked.key)
    status, at = Status.READY, work.moment(asked.at) if asked.at else 0
    if at > work.now:
        status = Status.SCHEDULED
        work.due(at)
    elif role_ is Role.EXCLUSIVE:
        status = Status.INBOX if key in occupied else Status.READY
        occupied.add(key)
    return _New(asked=asked, role=role_, identity=identity_, status=status, at=at)


def _insert(work: Work, new: Sequence[_New], parent: str | None) -> Mapping[str, int]:
    """Insert the invocations whose ids are new; their numbers, by id."""
    if not new:
        return {}
    insert = insert_into(work.connection.dialect, INVOCATIONS_TABLE).on_conflict_do_nothing(
        index_elements=[INVOCATIONS.id]
    )
    done = insert.returning(INVOCATIONS.id, INVOCATIONS.number)
    rows = [_columns(work, each, parent) for each in new]
    numbers = {row.id: row.number for row in work.connection.execute(done, rows)}
    made = [each for each in new if each.asked.id in numbers]
    if made:
        inputs = [_input(work, each.asked, numbers[each.asked.id]) for each in made]
        work.connection.execute(sa.insert(JOURNAL_TABLE), inputs)
        arrivals = [(numbers[each.asked.id], each.arrives) for each in made]
        inbox.arrive(work, [(number, key) for number, key in arrivals if key])
        work.ready |= any(each.status is Status.READY for each in made)
    keys = {each.arrives for each in new if each.arrives}
    if len(made) < len(new) and keys:
        # One that is there already, and may have ended, has no key to hold up others.
        inbox.promote(work, keys)
    return numbers


def _columns(work: Work, new: _New, parent: str | None) -> dict[str, Any]:
    asked = new.asked
    return {
        "id": asked.id,
        "service": asked.service,
        "handler": asked.handler,
        "key": asked.key,
        "role": int(new.role),
        "identity": new.identity,
        "idempotency_key": asked.idempotency_key,
        "headers": headers(asked.headers),
        "status": int(new.status),
        "parent": parent,
        "created": work.now,
        "changed": work.now,
        "next_at": new.at if new.status is Status.SCHEDULED else None,
        "attempts": 0,
        "retries": 0,
        "known": 0,
        "fence": 0,
        "canceled": False,
    }


def _input(work: Work, asked: Submit, number: int) -> dict[str, Any]:
    message = pb.InputEntryMessage(value=asked.argument)
    for name, value in asked.headers:
        message.headers.add(key=name, value=value)
    return {
        "invocation": number,
        "idx": 0,
        "code": kinds.INPUT.code,
        "flags": 0,
        "name": "",
        "body": message.SerializeToString(),
        "open": False,
        "created": work.now,
    }
