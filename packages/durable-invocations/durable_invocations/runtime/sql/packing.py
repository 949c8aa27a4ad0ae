"""Results, errors and entries as columns keep them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.failures import ErrorReport, Failure, RunAttempts
from durable_invocations.protocol.frames import COMPLETED, REQUIRES_ACK, Frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import Result, completion, result_of
from durable_invocations.protocol.services import Mode
from durable_invocations.runtime.store.deployments import Deployment


def fields(result: Result) -> bytes:
    """The result as the fields 13 to 15.

    Protobuf reads an entry with these bytes behind it as the entry with its result set.
    """
    return completion(0, result).body


FAILED = fields(Failure(code=0, message=""))[:1]
"""The first byte of a failure's fields, and of no other result's: the tag of field 15."""


def result(packed: bytes | None) -> Result | None:
    """The result that `fields` gave; None if there is none yet."""
    return None if packed is None else result_of(pb.CompletionMessage.FromString(packed))


def frame(row: sa.Row[Any]) -> Frame:
    """An entry of JOURNAL_TABLE as it is replayed: with its result, acknowledged."""
    flags = row.flags & ~REQUIRES_ACK
    if row.result is None:
        return Frame.of(row.code, flags, row.body)
    return Frame.of(row.code, flags | COMPLETED, row.body + row.result)


def report(error: ErrorReport) -> str:
    """An attempt's error as text."""
    return json.dumps(asdict(error))


def reported(text: str | None) -> ErrorReport | None:
    """The error that `report` gave."""
    if text is None:
        return None
    told = json.loads(text)
    runs = told.get("run_attempts")
    told["run_attempts"] = None if runs is None else tuple(map(_run_attempts, runs))
    return ErrorReport(**told)


def _run_attempts(told: dict[str, Any]) -> RunAttempts:
    failure = told["failure"]
    return RunAttempts(**{**told, "failure": None if failure is None else Failure(**failure)})


def deployment(row: Any) -> Deployment:
    """A row of SERVICE_DEPLOYMENTS_TABLE."""
    return Deployment(
        id=row.id,
        url=row.url,
        mode=Mode(row.mode),
        http=row.http,
        versions=(row.least, row.greatest),
        registered=row.registered,
    )


def headers(given: Iterable[tuple[str, str]]) -> str:
    return json.dumps([list(each) for each in given])


def pairs(text: str) -> tuple[tuple[str, str], ...]:
    """The headers that `headers` gave."""
    return tuple((name, value) for name, value in json.loads(text))


def identity(service: str, key: str, handler: str, idempotency_key: str | None) -> str:
    """What two submissions must not have in common.

    Without an idempotency key, of a workflow's run, which its key alone tells.
    """
    return _digest([service, key, idempotency_key and handler, idempotency_key])


def promise(service: str, key: str, name: str) -> str:
    """A promise as WAITS_TABLE names it; no invocation's id."""
    return _digest([service, key, name])


def _digest(parts: list[str | None]) -> str:
    # PostgreSQL's indexes take no long texts.
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
