"""Converts discovered deployments to what the store keeps."""

from __future__ import annotations

import secrets

from durable_invocations.protocol.services import HandlerKind, Mode, ServiceKind
from durable_invocations.runtime.http import manifest
from durable_invocations.runtime.http.discovery import Discovered
from durable_invocations.runtime.store.deployments import (
    Deployment,
    RegisteredHandler,
    RegisteredService,
)

USUAL = {
    ServiceKind.SERVICE: HandlerKind.SHARED,
    ServiceKind.OBJECT: HandlerKind.EXCLUSIVE,
    ServiceKind.WORKFLOW: HandlerKind.WORKFLOW,
}
"""The kind of a handler if the manifest has none."""


def convert_discovered(discovered: Discovered) -> tuple[Deployment, tuple[RegisteredService, ...]]:
    """The deployment and services of a Register, under a new id."""
    deployment = Deployment(
        id=f"dp_{secrets.token_hex(8)}",
        url=discovered.address.url,
        mode=Mode.FULL_DUPLEX if discovered.duplex else Mode.REQUEST_RESPONSE,
        http=discovered.http,
        versions=(
            discovered.manifest.min_protocol_version,
            discovered.manifest.max_protocol_version,
        ),
    )
    return deployment, tuple(_build_service(service) for service in discovered.manifest.services)


def _build_service(service: manifest.ManifestService) -> RegisteredService:
    kind = ServiceKind(service.ty)
    handlers = tuple(_build_handler(kind, handler) for handler in service.handlers)
    return RegisteredService(name=service.name, kind=kind, handlers=handlers)


def _build_handler(kind: ServiceKind, handler: manifest.ManifestHandler) -> RegisteredHandler:
    handler_kind = HandlerKind(handler.ty) if handler.ty and kind.keyed else USUAL[kind]
    description = handler.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return RegisteredHandler(name=handler.name, kind=handler_kind, described=description)
