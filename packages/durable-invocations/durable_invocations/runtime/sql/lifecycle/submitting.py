"""New invocations: requested from outside, or by calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol import kinds
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.runtime.sql.lifecycle import inbox
from durable_invocations.runtime.sql.packing import compute_identity, pack_headers, unpack_result
from durable_invocations.runtime.sql.services import find_role, load_services
from durable_invocations.runtime.sql.tables import (
    INVOCATIONS,
    INVOCATIONS_TABLE,
    JOURNAL_TABLE,
    Role,
)
from durable_invocations.runtime.sql.transaction import BAD, LONGEST, UnitOfWork
from durable_invocations.runtime.store.operations import Submit
from durable_invocations.runtime.store.outcomes import OperationRefusal, Submitted
from durable_invocations.runtime.store.views import Status
from sql_transactions.row_values import make_insert

_EXISTING = sa.select(INVOCATIONS.id, INVOCATIONS.identity, INVOCATIONS.result).where(
    INVOCATIONS.identity.in_(sa.bindparam("identities", expanding=True))
)


@dataclass(frozen=True, kw_only=True)
class _NewInvocation:
    submission: Submit
    role: Role
    identity: str | None
    status: Status
    at: int

    @property
    def arrives(self) -> inbox.Key | None:
        """The key in whose inbox it is now placed."""
        waits = self.role is not Role.EXCLUSIVE or self.status is Status.SCHEDULED
        return None if waits else (self.submission.service, self.submission.key)


def submit(
    work: UnitOfWork, submissions: Sequence[Submit], *, parent: str | None = None
) -> list[Submitted | OperationRefusal]:
    """See the operation; `parent` is the invocation that calls."""
    load_services(
        work, (submission.service for submission in submissions if "\0" not in submission.service)
    )
    roles = [_find_role(work, submission) for submission in submissions]
    valid = [
        (submission, role)
        for submission, role in zip(submissions, roles, strict=True)
        if not isinstance(role, OperationRefusal)
    ]
    existing = _find_existing(
        work, [_compute_identity(submission, role) for submission, role in valid]
    )
    exclusive = [
        (submission.service, submission.key) for submission, role in valid if role is Role.EXCLUSIVE
    ]
    occupied = inbox.find_taken(work, exclusive)
    new_invocations: list[_NewInvocation] = []
    for submission, role in valid:
        identity = _compute_identity(submission, role)
        if identity not in existing:
            new_invocations.append(_make_new(work, submission, role, identity, occupied))
            if identity is not None:
                existing[identity] = Submitted(id=submission.id, is_new=False)
    inserted = _insert_new(work, new_invocations, parent)
    submitted = {
        invocation.submission.id: Submitted(
            id=invocation.submission.id, is_new=invocation.submission.id in inserted
        )
        for invocation in new_invocations
    }
    return [
        role
        if isinstance(role, OperationRefusal)
        else submitted.get(submission.id) or existing[_compute_identity(submission, role)]
        for submission, role in zip(submissions, roles, strict=True)
    ]


def _find_role(work: UnitOfWork, submission: Submit) -> Role | OperationRefusal:
    """The handler's role; a refusal if the request is invalid."""
    if submission.idempotency_key == "":
        return OperationRefusal(
            code=BAD, message="The idempotency key is empty; give a text, or leave it out."
        )
    texts = (
        submission.key,
        submission.idempotency_key or "",
        submission.service,
        submission.handler,
    )
    if any("\0" in text for text in texts):
        return OperationRefusal(
            code=BAD, message="A key or name contains a NUL, which PostgreSQL cannot store."
        )
    if len(submission.key.encode()) > LONGEST:
        return OperationRefusal(
            code=BAD, message=f"The key is longer than {LONGEST:,} bytes; shorten it."
        )
    return find_role(work, submission.service, submission.handler, submission.key)


def _compute_identity(submission: Submit, role: Role) -> str | None:
    if role is Role.RUN:
        return compute_identity(submission.service, submission.key, submission.handler, None)
    if submission.idempotency_key is None:
        return None
    return compute_identity(
        submission.service, submission.key, submission.handler, submission.idempotency_key
    )


def _find_existing(
    work: UnitOfWork, identities: Sequence[str | None]
) -> dict[str | None, Submitted]:
    """The existing invocations with these identities."""
    present = [identity for identity in identities if identity is not None]
    if not present:
        return {}
    rows = work.connection.execute(_EXISTING, {"identities": present})
    return {
        row.identity: Submitted(id=row.id, is_new=False, result=unpack_result(row.result))
        for row in rows
    }


def _make_new(
    work: UnitOfWork,
    submission: Submit,
    role: Role,
    identity: str | None,
    occupied: set[inbox.Key],
) -> _NewInvocation:
    key = (submission.service, submission.key)
    status, at = Status.READY, work.to_store_time(submission.at) if submission.at else 0
    if at > work.now:
        status = Status.SCHEDULED
        work.note_due(at)
    elif role is Role.EXCLUSIVE:
        status = Status.INBOX if key in occupied else Status.READY
        occupied.add(key)
    return _NewInvocation(submission=submission, role=role, identity=identity, status=status, at=at)


def _insert_new(
    work: UnitOfWork, new_invocations: Sequence[_NewInvocation], parent: str | None
) -> Mapping[str, int]:
    """Insert the invocations whose ids are new; their numbers, by id."""
    if not new_invocations:
        return {}
    insert = make_insert(work.connection.dialect, INVOCATIONS_TABLE).on_conflict_do_nothing(
        index_elements=[INVOCATIONS.id]
    )
    statement = insert.returning(INVOCATIONS.id, INVOCATIONS.number)
    rows = [_build_columns(work, invocation, parent) for invocation in new_invocations]
    numbers = {row.id: row.number for row in work.connection.execute(statement, rows)}
    inserted = [invocation for invocation in new_invocations if invocation.submission.id in numbers]
    if inserted:
        inputs = [
            _build_input(work, invocation.submission, numbers[invocation.submission.id])
            for invocation in inserted
        ]
        work.connection.execute(sa.insert(JOURNAL_TABLE), inputs)
        arrivals = [
            (numbers[invocation.submission.id], invocation.arrives) for invocation in inserted
        ]
        inbox.add_arrivals(work, [(number, key) for number, key in arrivals if key])
        work.ready |= any(invocation.status is Status.READY for invocation in inserted)
    keys = {invocation.arrives for invocation in new_invocations if invocation.arrives}
    if len(inserted) < len(new_invocations) and keys:
        # An existing invocation, which may have ended, must not block its key.
        inbox.promote(work, keys)
    return numbers


def _build_columns(
    work: UnitOfWork, invocation: _NewInvocation, parent: str | None
) -> dict[str, Any]:
    submission = invocation.submission
    return {
        "id": submission.id,
        "service": submission.service,
        "handler": submission.handler,
        "key": submission.key,
        "role": int(invocation.role),
        "identity": invocation.identity,
        "idempotency_key": submission.idempotency_key,
        "headers": pack_headers(submission.headers),
        "status": int(invocation.status),
        "parent": parent,
        "created": work.now,
        "changed": work.now,
        "next_at": invocation.at if invocation.status is Status.SCHEDULED else None,
        "attempts": 0,
        "retries": 0,
        "known": 0,
        "fence": 0,
        "canceled": False,
    }


def _build_input(work: UnitOfWork, submission: Submit, number: int) -> dict[str, Any]:
    message = pb.InputEntryMessage(value=submission.argument)
    for name, value in submission.headers:
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
