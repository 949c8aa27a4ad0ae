"""Converts results, errors and entries to and from columns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from durable_invocations.protocol.failures import ErrorReport, FailedExecutions, Failure
from durable_invocations.protocol.frames import COMPLETED, REQUIRES_ACK, Frame
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.protocol.results import Result, get_result, make_completion
from durable_invocations.protocol.services import Mode
from durable_invocations.runtime.store.deployments import Deployment


def pack_result(result: Result) -> bytes:
    """The result as the fields 13 to 15.

    Appended to an entry, these bytes set its result when protobuf parses it.
    """
    return make_completion(0, result).body


FAILED = pack_result(Failure(code=0, message=""))[:1]
"""The first byte of a failure's fields only: the tag of field 15."""


def unpack_result(packed: bytes | None) -> Result | None:
    """The result that `pack_result` packed; None if there is none yet."""
    return None if packed is None else get_result(pb.CompletionMessage.FromString(packed))


def unpack_frame(row: sa.Row[Any]) -> Frame:
    """An entry of JOURNAL_TABLE as it is replayed: with its result, acknowledged."""
    flags = row.flags & ~REQUIRES_ACK
    if row.result is None:
        return Frame.of(row.code, flags, row.body)
    return Frame.of(row.code, flags | COMPLETED, row.body + row.result)


def pack_report(error: ErrorReport) -> str:
    """An attempt's error as text."""
    return json.dumps(asdict(error))


def unpack_error(text: str | None) -> ErrorReport | None:
    """The error that `pack_report` packed."""
    if text is None:
        return None
    content = json.loads(text)
    runs = content.get("run_attempts")
    content["run_attempts"] = None if runs is None else tuple(map(_unpack_run_attempts, runs))
    return ErrorReport(**content)


def _unpack_run_attempts(content: dict[str, Any]) -> FailedExecutions:
    failure = content["failure"]
    return FailedExecutions(
        **{**content, "failure": None if failure is None else Failure(**failure)}
    )


def unpack_deployment(row: Any) -> Deployment:
    """A row of SERVICE_DEPLOYMENTS_TABLE."""
    return Deployment(
        id=row.id,
        url=row.url,
        mode=Mode(row.mode),
        http=row.http,
        versions=(row.least, row.greatest),
        registered=row.registered,
    )


def pack_headers(pairs: Iterable[tuple[str, str]]) -> str:
    return json.dumps([list(pair) for pair in pairs])


def unpack_headers(text: str) -> tuple[tuple[str, str], ...]:
    """The headers that `pack_headers` packed."""
    return tuple((name, value) for name, value in json.loads(text))


def compute_identity(service: str, key: str, handler: str, idempotency_key: str | None) -> str:
    """A text that no two submissions may share.

    Without an idempotency key it is that of a workflow's run, which only its key identifies.
    """
    return _hash_parts([service, key, idempotency_key and handler, idempotency_key])


def make_promise_id(service: str, key: str, name: str) -> str:
    """A promise as a target in WAITS_TABLE; never equal to an invocation's id."""
    return _hash_parts([service, key, name])


def _hash_parts(parts: list[str | None]) -> str:
    # PostgreSQL's indexes do not accept long texts.
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
