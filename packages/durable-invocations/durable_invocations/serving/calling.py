"""Calls a handler, and ends its attempt as it ends."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterable
from typing import Any

from durable_invocations.protocol.failures import ErrorReport, Failure
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.serving.attempts.attempt import Attempt
from durable_invocations.serving.attempts.operations import BAD_REQUEST
from durable_invocations.serving.attempts.reports import report, said
from durable_invocations.serving.context import Context
from durable_invocations.serving.declared.serde import JSON, check_numbers
from durable_invocations.serving.declared.services import Handler
from durable_invocations.serving.errors import TerminalError


async def handled(attempt: Attempt, *, tracebacks: bool) -> None:
    """Call the attempt's handler with its input. What it raises ends the attempt, not the caller.

    With `tracebacks` the runtime is told where it failed.
    """
    try:
        attempt.end(await _output(attempt))
    except asyncio.CancelledError:
        attempt.journal.fail(ErrorReport(message="The handler was canceled."))
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001
        attempt.log_failure("failed", error)
        told = "".join(traceback.format_exception(error)) if tracebacks else ""
        index = attempt.journal.issued - 1
        attempt.journal.fail(report(error, index, description=told))


async def _output(attempt: Attempt) -> pb.OutputEntryMessage:
    given = attempt.input()
    context = Context(attempt, _headers(given.headers))
    try:
        arguments = _arguments(attempt.handler, given.value)
        result = await attempt.handler.function(context, *arguments)
    except TerminalError as error:
        failure = Failure(code=error.status, message=said(error))
        return pb.OutputEntryMessage(failure=failure.written())
    serde = attempt.handler.output
    body = serde.dumps(result)
    if serde.content_type == JSON.content_type:
        check_numbers(body)
    return pb.OutputEntryMessage(value=body)


def _headers(given: Iterable[pb.Header]) -> dict[str, str]:
    """The request's headers; the values of a repeated one are one list (RFC 9110, 5.3)."""
    values: dict[str, list[str]] = {}
    for each in given:
        values.setdefault(each.key, []).append(each.value)
    return {key: ", ".join(its) for key, its in values.items()}


def _arguments(handler: Handler, body: bytes) -> tuple[Any, ...]:
    try:
        return handler.arguments(body)
    except ValueError as error:
        why = f"The argument of {handler.called} does not fit: {error}"
        raise TerminalError(why, BAD_REQUEST) from None
