from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CombinatorEntryMessage(_message.Message):
    __slots__ = ("completed_entries_order", "name")
    COMPLETED_ENTRIES_ORDER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    completed_entries_order: _containers.RepeatedScalarFieldContainer[int]
    name: str
    def __init__(self, completed_entries_order: _Optional[_Iterable[int]] = ..., name: _Optional[str] = ...) -> None: ...

class RunAttemptsMessage(_message.Message):
    __slots__ = ("entry_index", "name", "count", "duration", "failure_code", "failure_message")
    ENTRY_INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    FAILURE_CODE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    entry_index: int
    name: str
    count: int
    duration: int
    failure_code: int
    failure_message: str
    def __init__(self, entry_index: _Optional[int] = ..., name: _Optional[str] = ..., count: _Optional[int] = ..., duration: _Optional[int] = ..., failure_code: _Optional[int] = ..., failure_message: _Optional[str] = ...) -> None: ...

class AllRunAttemptsMessage(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunAttemptsMessage]
    def __init__(self, runs: _Optional[_Iterable[_Union[RunAttemptsMessage, _Mapping]]] = ...) -> None: ...

class ExtensionMessage(_message.Message):
    __slots__ = ("run_attempts",)
    RUN_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    run_attempts: AllRunAttemptsMessage
    def __init__(self, run_attempts: _Optional[_Union[AllRunAttemptsMessage, _Mapping]] = ...) -> None: ...
