"""The manifest by which a runtime learns what an app serves (endpoint_manifest_schema.json)."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any

from durable_invocations.protocol.services import Mode
from durable_invocations.serving.declared.serde import Json, Serde
from durable_invocations.serving.declared.services import AnyService, Handler

FIRST_WITH_DOCUMENTATION = 2


def manifest(
    services: Iterable[AnyService], *, version: int, duplex: bool, protocols: tuple[int, int]
) -> dict[str, Any]:
    """The manifest in `version` of its schema; `protocols` are the lowest and highest served."""
    return {
        "protocolMode": (Mode.FULL_DUPLEX if duplex else Mode.REQUEST_RESPONSE).value,
        "minProtocolVersion": protocols[0],
        "maxProtocolVersion": protocols[1],
        "services": [_service(each, version) for each in services],
    }


def _service(service: AnyService, version: int) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": service.name,
        "ty": service.kind.value,
        "handlers": [_handler(service, each, version) for each in service.handlers.values()],
    }
    return told | _documented(version, service.documentation, service.metadata)


def _handler(service: AnyService, handler: Handler, version: int) -> dict[str, Any]:
    told: dict[str, Any] = {"name": handler.name}
    if service.kind.keyed:
        told["ty"] = handler.kind.value
    told["input"] = _input(handler)
    told["output"] = _output(handler.output)
    return told | _documented(version, handler.documentation, {})


def _input(handler: Handler) -> dict[str, Any]:
    if handler.input is None:
        return {}
    required = not handler.optional and not _takes_none(handler.input)
    content = {"required": required, "contentType": handler.input.content_type}
    return content | _schema(handler.input)


def _takes_none(serde: Serde) -> bool:
    try:
        serde.loads(b"")
    except ValueError:
        return False
    return isinstance(serde, Json)


def _output(serde: Serde) -> dict[str, Any]:
    if isinstance(serde, Json) and serde.hint is NoneType:
        return {"setContentTypeIfEmpty": False}
    content = {"contentType": serde.content_type, "setContentTypeIfEmpty": False}
    return content | _schema(serde)


def _schema(serde: Serde) -> dict[str, Any]:
    schema = serde.schema()
    return {} if schema is None else {"jsonSchema": schema}


def _documented(version: int, documentation: str, metadata: dict[str, str]) -> dict[str, Any]:
    if version < FIRST_WITH_DOCUMENTATION:
        return {}
    told: dict[str, Any] = {"documentation": documentation} if documentation else {}
    return told | ({"metadata": metadata} if metadata else {})
