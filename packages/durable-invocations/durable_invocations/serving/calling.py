"""Calls a handler, and ends its attempt."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterable
from typing import Any

from durable_invocations.protocol.failures import ErrorReport, Failure
from durable_invocations.protocol.pb import protocol_pb2 as pb
from durable_invocations.serving.attempts.attempt import HandlerAttempt
from durable_invocations.serving.attempts.operations import BAD_REQUEST
from durable_invocations.serving.attempts.reports import format_error, make_report
from durable_invocations.serving.context import Context
from durable_invocations.serving.declarations.serde import JSON, check_numbers
from durable_invocations.serving.declarations.services import DeclaredHandler
from durable_invocations.serving.errors import TerminalError


async def execute_handler(attempt: HandlerAttempt, *, tracebacks: bool) -> None:
    """Call the attempt's handler with its input. Its errors end the attempt, not the caller.

    With `tracebacks` the runtime gets the traceback.
    """
    try:
        attempt.end(await _call_handler(attempt))
    except asyncio.CancelledError:
        attempt.journal.fail(ErrorReport(message="The handler was canceled."))
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001
        attempt.log_failure("failed", error)
        description = "".join(traceback.format_exception(error)) if tracebacks else ""
        index = attempt.journal.issued - 1
        attempt.journal.fail(make_report(error, index, description=description))


async def _call_handler(attempt: HandlerAttempt) -> pb.OutputEntryMessage:
    input_message = attempt.read_input()
    context = Context(attempt, _join_headers(input_message.headers))
    try:
        arguments = _parse_arguments(attempt.handler, input_message.value)
        result = await attempt.handler.function(context, *arguments)
    except TerminalError as error:
        failure = Failure(code=error.status, message=format_error(error))
        return pb.OutputEntryMessage(failure=failure.written())
    serde = attempt.handler.output
    body = serde.dumps(result)
    if serde.content_type == JSON.content_type:
        check_numbers(body)
    return pb.OutputEntryMessage(value=body)


def _join_headers(headers: Iterable[pb.Header]) -> dict[str, str]:
    """The request's headers; repeated ones are joined by commas (RFC 9110, 5.3)."""
    values: dict[str, list[str]] = {}
    for header in headers:
        values.setdefault(header.key, []).append(header.value)
    return {key: ", ".join(parts) for key, parts in values.items()}


def _parse_arguments(handler: DeclaredHandler, body: bytes) -> tuple[Any, ...]:
    try:
        return handler.parse_arguments(body)
    except ValueError as error:
        why = f"The argument of {handler.qualified_name} does not fit: {error}"
        raise TerminalError(why, BAD_REQUEST) from None
