"""Connections of TCP, with TLS where the address says so."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import anyio

from durable_invocations.runtime.http.exchange import DeploymentUnreachableError, Origin

CONNECT_SECONDS = 10.0
TRUSTED = "SSL_CERT_FILE"
"""The variable with which OpenSSL finds the certificates that are trusted."""

P = TypeVar("P", bound=asyncio.Protocol)


def tls_context(protocols: Sequence[str], trusted: str | None = None) -> ssl.SSLContext:
    """A context that verifies the peer and offers these protocols (`h2`, `http/1.1`).

    `trusted` is a file of certificates that are trusted beside the system's.
    """
    context = ssl.create_default_context()
    if trusted is not None:
        context.load_verify_locations(trusted)
    context.set_alpn_protocols(list(protocols))
    return context


async def connected(
    origin: Origin, make: Callable[[], P], context: ssl.SSLContext | None, seconds: float
) -> tuple[asyncio.Transport, P]:
    """A connection to the origin. Raises DeploymentUnreachableError."""
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {"ssl": context} if origin.tls else {}
    try:
        with anyio.fail_after(seconds):
            return await loop.create_connection(make, origin.host, origin.port, **options)
    except TimeoutError:
        raise DeploymentUnreachableError(
            f"{origin} took no connection within {seconds:g} s; check that it runs."
        ) from None
    except ssl.SSLCertVerificationError as error:
        raise DeploymentUnreachableError(
            f"{origin} has a certificate that is not trusted: {error.verify_message.rstrip('.')}. "
            f"Correct it, or name a file with the one that vouches for it in {TRUSTED}."
        ) from None
    # A host that is no name, such as a..b, is a UnicodeError.
    except (OSError, UnicodeError) as error:
        raise DeploymentUnreachableError(
            f"{origin} takes no connections: {error}; check that it runs."
        ) from None
