"""Discovers the services and the protocol of an address."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import anyio
from pydantic import ValidationError

from durable_invocations.errors import ConfigError
from durable_invocations.protocol.versions import LOWEST, MANIFESTS, NEWEST, format_manifest_type
from durable_invocations.runtime.http.client import HTTP_1, HTTP_2, HttpClient
from durable_invocations.runtime.http.exchange import (
    Address,
    DeploymentUnreachableError,
    Exchange,
    Head,
    NotHttp2Error,
    Request,
)
from durable_invocations.runtime.http.manifest import Manifest

PATHS = ("/discover", "/discovery")
"""The first is what servers use, the second what the protocol's text says."""
CONTENT_TYPES = tuple(map(format_manifest_type, MANIFESTS))
MOST_BYTES = 4 << 20
SECONDS = 10.0
_OK, _NOT_FOUND = 200, 404
_GIVE = "give the address of a service endpoint, including the path that its app is mounted at."


class DiscoveryError(ConfigError):
    """The server at the address is not a service deployment that this runtime can drive."""

    code = 10_760


@dataclass(frozen=True, kw_only=True)
class Discovered:
    """A service deployment: its protocol and its manifest."""

    address: Address
    http: int
    """The version of HTTP: 1 or 2."""
    duplex: bool
    """Whether messages flow both ways at once; else the request precedes the response."""
    manifest: Manifest


async def discover_deployment(
    client: HttpClient, url: str, *, http: int | None = None, seconds: float = SECONDS
) -> Discovered:
    """Request the manifest of an address; by HTTP/2, then HTTP/1.1, unless `http` is given.

    Raises ConfigError for a malformed address, DiscoveryError for an answer that is not a manifest
    for this runtime, DeploymentUnreachableError for no answer within `seconds`.
    """
    address = Address.parse(url)
    try:
        with anyio.fail_after(seconds):
            return await _discover(client, address, http)
    except TimeoutError:
        raise DeploymentUnreachableError(
            f"{address} did not send its manifest within {seconds:g} s; "
            "check that a service endpoint runs there."
        ) from None


async def _discover(client: HttpClient, address: Address, http: int | None) -> Discovered:
    if http is not None:
        return await _discover_by_version(client, address, http)
    try:
        return await _discover_by_version(client, address, HTTP_2)
    except NotHttp2Error:
        return await _discover_by_version(client, address, HTTP_1)


async def _discover_by_version(client: HttpClient, address: Address, http: int) -> Discovered:
    manifest = _parse_manifest(address, await _fetch_manifest(client, address, http))
    newest = min(NEWEST, manifest.max_protocol_version)
    if newest < max(LOWEST, manifest.min_protocol_version):
        raise DiscoveryError(
            f"{address} speaks the service protocol's versions {manifest.min_protocol_version} to "
            f"{manifest.max_protocol_version}, this runtime {LOWEST} to {NEWEST}; "
            "use a version of its SDK that has one of these."
        )
    duplex = http == HTTP_2 and manifest.protocol_mode != "REQUEST_RESPONSE"
    return Discovered(address=address, http=http, duplex=duplex, manifest=manifest)


async def _fetch_manifest(client: HttpClient, address: Address, http: int) -> bytes:
    for path in PATHS:
        request = Request(method="GET", path=path, headers=[("accept", ", ".join(CONTENT_TYPES))])
        exchange = await client.open(address, request, http)
        try:
            await exchange.send(b"", end=True)
            head = await exchange.read_head()
            if head.status == _NOT_FOUND:
                continue
            _check_head(address, path, head)
            return await _read_body(address, exchange)
        finally:
            await exchange.close()
    raise DiscoveryError(
        f"{address} answers {' and '.join(PATHS)} with status {_NOT_FOUND}; {_GIVE}"
    )


def _check_head(address: Address, path: str, head: Head) -> None:
    if head.status != _OK:
        raise DiscoveryError(f"{address} answers {path} with status {head.status}; see its log.")
    content_type = head.headers.get("content-type", "")
    if content_type.partition(";")[0].strip() not in CONTENT_TYPES:
        raise DiscoveryError(
            f"{address} answers {path} with the content type {content_type[:100]!r}, "
            f"and not {' or '.join(CONTENT_TYPES)}; {_GIVE}"
        )


async def _read_body(address: Address, exchange: Exchange) -> bytes:
    body = bytearray()
    while part := await exchange.receive():
        body += part
        if len(body) > MOST_BYTES:
            raise DiscoveryError(f"The manifest of {address} exceeds {MOST_BYTES} bytes.")
    return bytes(body)


def _parse_manifest(address: Address, text: bytes) -> Manifest:
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the text"
        raise DiscoveryError(
            f"The manifest of {address} breaks its schema: {where}: {problem['msg']}."
        ) from None
    _check_names(address, "service", [service.name for service in manifest.services])
    for service in manifest.services:
        _check_names(
            address, f"handler of {service.name}", [handler.name for handler in service.handlers]
        )
    return manifest


def _check_names(address: Address, kind: str, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DiscoveryError(f"The manifest of {address} names the {kind} {twice[0]!r} twice.")
