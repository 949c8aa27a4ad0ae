"""From what discovery found to what the store keeps."""

from __future__ import annotations

import secrets

from durable_invocations.protocol.services import HandlerKind, Mode, ServiceKind
from durable_invocations.runtime.http import manifest
from durable_invocations.runtime.http.discovery import Discovered
from durable_invocations.runtime.store.deployments import Deployment, Handler, Service

USUAL = {
    ServiceKind.SERVICE: HandlerKind.SHARED,
    ServiceKind.OBJECT: HandlerKind.EXCLUSIVE,
    ServiceKind.WORKFLOW: HandlerKind.WORKFLOW,
}
"""What a handler is if the manifest does not say."""


def registered(found: Discovered) -> tuple[Deployment, tuple[Service, ...]]:
    """What a Register of a discovered deployment tells, under a new id."""
    deployment = Deployment(
        id=f"dp_{secrets.token_hex(8)}",
        url=found.address.url,
        mode=Mode.FULL_DUPLEX if found.duplex else Mode.REQUEST_RESPONSE,
        http=found.http,
        versions=(found.manifest.min_protocol_version, found.manifest.max_protocol_version),
    )
    return deployment, tuple(_service(each) for each in found.manifest.services)


def _service(each: manifest.Service) -> Service:
    kind = ServiceKind(each.ty)
    handlers = tuple(_handler(kind, one) for one in each.handlers)
    return Service(name=each.name, kind=kind, handlers=handlers)


def _handler(kind: ServiceKind, each: manifest.Handler) -> Handler:
    said = HandlerKind(each.ty) if each.ty and kind.keyed else USUAL[kind]
    described = each.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return Handler(name=each.name, kind=said, described=described)
