"""A service deployment's manifest, checked against its schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

LONGEST = 256
"""Characters of a name."""
ServiceName = Annotated[
    str, StringConstraints(pattern=r"^([a-zA-Z]|_[a-zA-Z0-9])[a-zA-Z0-9._-]*$", max_length=LONGEST)
]
HandlerName = Annotated[
    str, StringConstraints(pattern=r"^([a-zA-Z]|_[a-zA-Z0-9])[a-zA-Z0-9_]*$", max_length=LONGEST)
]
MediaType = Annotated[str, StringConstraints(pattern=r"^[ -~]*$", max_length=256)]
"""It becomes a response header."""
MOST = 1_000
"""The most services of a deployment, and handlers of a service."""
Version = Annotated[int, Field(ge=1, le=2**31 - 1)]


class _ManifestPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel)


class InputPayload(_ManifestPart):
    """What a handler accepts."""

    required: bool = False
    content_type: MediaType | None = None
    json_schema: Any = None


class OutputPayload(_ManifestPart):
    """What a handler returns."""

    content_type: MediaType | None = None
    set_content_type_if_empty: bool = False
    json_schema: Any = None


class ManifestHandler(_ManifestPart):
    """One handler of a service; without `ty`, the kind is the service's default."""

    name: HandlerName
    documentation: str | None = None
    ty: Literal["WORKFLOW", "EXCLUSIVE", "SHARED"] | None = None
    input: InputPayload | None = None
    output: OutputPayload | None = None
    metadata: dict[str, str] = Field(default_factory=dict)


class ManifestService(_ManifestPart):
    """One service, virtual object or workflow."""

    name: ServiceName
    documentation: str | None = None
    ty: Literal["VIRTUAL_OBJECT", "SERVICE", "WORKFLOW"]
    handlers: list[ManifestHandler] = Field(max_length=MOST)
    metadata: dict[str, str] = Field(default_factory=dict)


class Manifest(_ManifestPart):
    """The endpoint's manifest, version 1 or 2 (endpoint_manifest_schema.json)."""

    protocol_mode: Literal["BIDI_STREAM", "REQUEST_RESPONSE"] | None = None
    min_protocol_version: Version
    max_protocol_version: Version
    services: list[ManifestService] = Field(max_length=MOST)
