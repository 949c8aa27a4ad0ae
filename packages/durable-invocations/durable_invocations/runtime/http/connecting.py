"""TCP connections, with TLS for https."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import anyio

from durable_invocations.runtime.http.exchange import DeploymentUnreachableError, Origin

CONNECT_SECONDS = 10.0
TRUSTED = "SSL_CERT_FILE"
"""The variable that tells OpenSSL which certificates are trusted."""

P = TypeVar("P", bound=asyncio.Protocol)


class Connector:
    """Connects to origins; for https it verifies the peer.

    It offers these protocols (`h2`, `http/1.1`). `trusted` is a file of certificates that are
    trusted in addition to the system's.
    """

    def __init__(self, *protocols: str, trusted: str | None) -> None:
        self._protocols, self._trusted = protocols, trusted

    async def connect(
        self, origin: Origin, make: Callable[[], P], seconds: float
    ) -> tuple[asyncio.Transport, P]:
        """A connection to the origin. Raises DeploymentUnreachableError."""
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {"ssl": self._context} if origin.tls else {}
        try:
            with anyio.fail_after(seconds):
                return await loop.create_connection(make, origin.host, origin.port, **options)
        except TimeoutError:
            raise DeploymentUnreachableError(
                f"{origin} accepted no connection within {seconds:g} s; check that it runs."
            ) from None
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message.rstrip(".")
            raise DeploymentUnreachableError(
                f"{origin} has a certificate that is not trusted: {why}. "
                f"Correct it, or set {TRUSTED} to a file with its issuer's certificate."
            ) from None
        # An invalid host name, such as a..b, raises UnicodeError.
        except (OSError, UnicodeError) as error:
            raise DeploymentUnreachableError(
                f"{origin} accepts no connections: {error}; check that it runs."
            ) from None

    @cached_property
    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._trusted is not None:
            context.load_verify_locations(self._trusted)
        context.set_alpn_protocols(list(self._protocols))
        return context
