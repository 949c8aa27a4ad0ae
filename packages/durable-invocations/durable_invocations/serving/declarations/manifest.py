"""The manifest of what an app serves (endpoint_manifest_schema.json)."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any

from durable_invocations.protocol.services import Mode
from durable_invocations.serving.declarations.serde import Json, Serde
from durable_invocations.serving.declarations.services import AnyService, DeclaredHandler

FIRST_WITH_DOCUMENTATION = 2


def build_manifest(
    services: Iterable[AnyService], *, version: int, duplex: bool, protocols: tuple[int, int]
) -> dict[str, Any]:
    """The manifest in `version` of its schema; `protocols` are the lowest and highest served."""
    return {
        "protocolMode": (Mode.FULL_DUPLEX if duplex else Mode.REQUEST_RESPONSE).value,
        "minProtocolVersion": protocols[0],
        "maxProtocolVersion": protocols[1],
        "services": [_describe_service(service, version) for service in services],
    }


def _describe_service(service: AnyService, version: int) -> dict[str, Any]:
    description: dict[str, Any] = {
        "name": service.name,
        "ty": service.kind.value,
        "handlers": [
            _describe_handler(service, handler, version) for handler in service.handlers.values()
        ],
    }
    return description | _describe_docs(version, service.documentation, service.metadata)


def _describe_handler(
    service: AnyService, handler: DeclaredHandler, version: int
) -> dict[str, Any]:
    description: dict[str, Any] = {"name": handler.name}
    if service.kind.keyed:
        description["ty"] = handler.kind.value
    description["input"] = _describe_input(handler)
    description["output"] = _describe_output(handler.output)
    return description | _describe_docs(version, handler.documentation, {})


def _describe_input(handler: DeclaredHandler) -> dict[str, Any]:
    if handler.input is None:
        return {}
    required = not handler.optional and not _can_be_none(handler.input)
    content = {"required": required, "contentType": handler.input.content_type}
    return content | _describe_schema(handler.input)


def _can_be_none(serde: Serde) -> bool:
    try:
        serde.loads(b"")
    except ValueError:
        return False
    return isinstance(serde, Json)


def _describe_output(serde: Serde) -> dict[str, Any]:
    if isinstance(serde, Json) and serde.hint is NoneType:
        return {"setContentTypeIfEmpty": False}
    content = {"contentType": serde.content_type, "setContentTypeIfEmpty": False}
    return content | _describe_schema(serde)


def _describe_schema(serde: Serde) -> dict[str, Any]:
    schema = serde.schema()
    return {} if schema is None else {"jsonSchema": schema}


def _describe_docs(version: int, documentation: str, metadata: dict[str, str]) -> dict[str, Any]:
    if version < FIRST_WITH_DOCUMENTATION:
        return {}
    docs: dict[str, Any] = {"documentation": documentation} if documentation else {}
    return docs | ({"metadata": metadata} if metadata else {})
