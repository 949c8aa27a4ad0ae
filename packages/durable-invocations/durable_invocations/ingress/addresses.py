"""Checks the addresses of service endpoints, to which the runtime sends requests."""

from __future__ import annotations

from urllib.parse import urlsplit

from durable_invocations.ingress.refusals import UNPROCESSABLE, RefusedError

LONGEST = 2_048


def parse_service_address(uri: str) -> str:
    """The address without a final slash. Raises RefusedError (422), which shows no secrets.

    It is http or https, with a host and an optional path, without user, query and fragment.
    """
    if not uri.isascii() or not uri.isprintable() or " " in uri or len(uri) > LONGEST:
        raise _make_address_error(
            "is longer than 2,048 characters, or contains spaces or non-ASCII characters"
        )
    try:
        parts = urlsplit(uri)
        connectable = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise _make_address_error(f"has no valid host and port ({error})") from error
    if parts.scheme not in {"http", "https"}:
        raise _make_address_error("is not http or https")
    if not connectable:
        raise _make_address_error("has no host, or has port 0")
    if "@" in parts.netloc:
        raise _make_address_error("contains a user, which would be stored and shown")
    if "?" in uri or "#" in uri:
        raise _make_address_error("has a query or a fragment")
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


def _make_address_error(problem: str) -> RefusedError:
    return RefusedError(
        UNPROCESSABLE,
        f"The address of the service endpoint {problem}; write http://host:port or https://host/path.",
    )
