from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class CombinatorEntryMessage(_message.Message):
    __slots__ = ("completed_entries_order", "name")
    COMPLETED_ENTRIES_ORDER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    completed_entries_order: _containers.RepeatedScalarFieldContainer[int]
    name: str
    def __init__(self, completed_entries_order: _Optional[_Iterable[int]] = ..., name: _Optional[str] = ...) -> None: ...
