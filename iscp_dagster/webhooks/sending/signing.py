"""Signatures by Standard Webhooks 1.0.0: HMAC-SHA256 over id, time and body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

from iscp_dagster.model.declared.endpoints import Endpoint
from iscp_dagster.model.errors import ConfigError

PREFIX = "whsec_"
LENGTHS = range(24, 65)
"""How many bytes a secret may have."""
_NEW = "docs/webhooks.md shows how to make one"


def get_secrets(endpoint: Endpoint, environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """The endpoint's secrets, newest first.

    Raises ConfigError, naming the variable but not its value, if one is missing or invalid.
    """
    return tuple(
        _parse_secret(endpoint.name, name, environ.get(name, "")) for name in endpoint.secrets
    )


def build_headers(
    secrets: Sequence[bytes], id_: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """The three headers of one attempt; `timestamp` is the attempt's, in seconds."""
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign_message(secrets, id_, timestamp, body),
    }


def sign_message(secrets: Sequence[bytes], id_: str, timestamp: int, body: bytes) -> str:
    """One signature for each secret, in their order, with a space between them."""
    signed = f"{id_}.{timestamp}.".encode() + body
    digests = (hmac.digest(secret, signed, hashlib.sha256) for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def _parse_secret(endpoint: str, variable: str, text: str) -> bytes:
    subject = f"Endpoint {endpoint!r}: the environment variable {variable}"
    if not text:
        raise ConfigError(f"{subject} is not set; it holds the secret that signs events; {_NEW}.")
    if not text.startswith(PREFIX):
        raise ConfigError(f"{subject} does not begin with {PREFIX}; {_NEW}.")
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{subject} is not base64 after {PREFIX}; {_NEW}.") from None
    if len(secret) not in LENGTHS:
        raise ConfigError(
            f"{subject} holds {len(secret)} bytes; a secret has {LENGTHS[0]} to {LENGTHS[-1]}; "
            f"{_NEW}."
        )
    return secret
