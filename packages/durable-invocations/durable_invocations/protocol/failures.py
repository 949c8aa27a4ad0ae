"""Terminal failures, reports of failed attempts, and violations of the protocol."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from durable_invocations.errors import DurableError
from durable_invocations.protocol.pb.custom_pb2 import (
    AllRunAttemptsMessage,
    ExtensionMessage,
    RunAttemptsMessage,
)
from durable_invocations.protocol.pb.protocol_pb2 import ErrorMessage
from durable_invocations.protocol.pb.protocol_pb2 import Failure as FailureMessage

INTERNAL = 500
TOO_LARGE = 413
JOURNAL_MISMATCH = 570
PROTOCOL_VIOLATION = 571
CANCELED = 409
_CODES = range(1 << 32)
MOST_RUN_NAME = 100
WITH_DELAY = 2
"""The first version of the protocol whose errors have a retry delay."""


class ProtocolError(DurableError):
    """The other side sent what the protocol does not allow; the stream ends.

    `kind` and `name` are those of the entry that caused it, if one did.
    """

    code = 10_600
    status = PROTOCOL_VIOLATION
    """The code of the ErrorMessage."""

    def __init__(self, message: str, *, kind: int | None = None, name: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.name = name


class JournalMismatchError(ProtocolError):
    """A handler's code takes other steps than its journal records."""

    code = 10_610
    status = JOURNAL_MISMATCH


class MessageTooLargeError(ProtocolError):
    """A message or a journal is larger than its receiver allows."""

    code = 10_615
    status = TOO_LARGE


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A terminal failure: the output of an invocation, or the result of an entry."""

    code: int = INTERNAL
    message: str

    @classmethod
    def read(cls, message: FailureMessage) -> Failure:
        return cls(code=message.code, message=message.message)

    def written(self) -> FailureMessage:
        """The message; a code that it cannot have is INTERNAL."""
        # Handlers are not always type-checked, and `in` a range is slow for other types.
        fits = isinstance(self.code, int) and self.code in _CODES
        code = self.code if fits else INTERNAL
        return FailureMessage(code=code, message=escape_surrogates(self.message))


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedExecutions:
    """How many executions of a Run have failed, in all attempts of its invocation."""

    index: int
    name: str
    """At most MOST_RUN_NAME characters of it."""
    count: int
    milliseconds: int
    """How long they took, including the wait after each."""
    failure: Failure | None = None
    """Of a Run that failed for good and is not stored, since an earlier entry is not."""

    @classmethod
    def read(cls, message: RunAttemptsMessage) -> FailedExecutions:
        failure = Failure(code=message.failure_code, message=message.failure_message)
        return cls(
            index=message.entry_index,
            name=message.name,
            count=message.count,
            milliseconds=message.duration,
            failure=failure if failure.code else None,
        )

    def written(self) -> RunAttemptsMessage:
        failure = self.failure and self.failure.written()
        return RunAttemptsMessage(
            entry_index=self.index,
            name=escape_surrogates(self.name),
            count=self.count,
            duration=self.milliseconds,
            failure_code=failure.code if failure else 0,
            failure_message=failure.message if failure else "",
        )


def read_run_attempts(body: bytes) -> tuple[FailedExecutions, ...] | None:
    """The Runs in a Start or an Error with this body; None if its sender does not count them.

    Raises ProtocolError if it is malformed.
    """
    extension = ExtensionMessage()
    try:
        extension.ParseFromString(body)
    except DecodeError as error:
        raise ProtocolError(f"The attempts of Runs cannot be parsed: {error}.") from error
    if not extension.HasField("run_attempts"):
        return None
    return tuple(map(FailedExecutions.read, extension.run_attempts.runs))


def write_run_attempts(runs: Iterable[FailedExecutions]) -> bytes:
    """The field that is added to a Start or an Error."""
    message = AllRunAttemptsMessage(runs=[run.written() for run in runs])
    body: bytes = ExtensionMessage(run_attempts=message).SerializeToString(deterministic=True)
    return body


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorReport:
    """Why an attempt ended without a result; the runtime tries again.

    `index`, `name` and `kind` (a type's code) identify the entry that failed; `retry_after` (ms)
    overrides the runtime's policy; `run_attempts` is repeated in the next Start, None keeps the
    last one. Protocol version 1 lacks the last two.
    """

    code: int = INTERNAL
    message: str
    description: str = ""
    index: int | None = None
    name: str | None = None
    kind: int | None = None
    retry_after: int | None = None
    run_attempts: tuple[FailedExecutions, ...] | None = None

    @classmethod
    def of(cls, error: ProtocolError, index: int | None = None) -> ErrorReport:
        return cls(
            code=error.status, message=str(error), index=index, kind=error.kind, name=error.name
        )

    @classmethod
    def read(cls, message: ErrorMessage) -> ErrorReport:
        fields = {field.name: value for field, value in message.ListFields()}
        return cls(
            code=message.code,
            message=message.message,
            description=message.description,
            index=fields.get("related_entry_index"),
            name=fields.get("related_entry_name"),
            kind=fields.get("related_entry_type"),
            retry_after=fields.get("next_retry_delay"),
            run_attempts=read_run_attempts(message.SerializeToString()),
        )

    def written(self, version: int = WITH_DELAY) -> ErrorMessage:
        """The message in this version of the protocol."""
        message = ErrorMessage(
            code=self.code,
            message=escape_surrogates(self.message),
            description=escape_surrogates(self.description),
            related_entry_index=self.index,
            related_entry_name=self.name,
            related_entry_type=self.kind,
            next_retry_delay=self.retry_after if version >= WITH_DELAY else None,
        )
        if version >= WITH_DELAY and self.run_attempts is not None:
            message.MergeFromString(write_run_attempts(self.run_attempts))
        return message


def escape_surrogates(text: str) -> str:
    """The text with lone surrogates escaped, as a message can hold it."""
    return text.encode(errors="backslashreplace").decode()


UNKNOWN = ErrorReport(message="The stream ended without a last message; the reason is unknown.")
