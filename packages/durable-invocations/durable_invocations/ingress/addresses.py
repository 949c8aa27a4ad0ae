"""Checks the addresses of service endpoints: the runtime sends requests to these alone."""

from __future__ import annotations

from urllib.parse import urlsplit

from durable_invocations.ingress.refusals import UNPROCESSABLE, RefusedError

LONGEST = 2_048


def service_address(uri: str) -> str:
    """The address without a final slash. Raises RefusedError (422); secrets in it are not told.

    It is http or https, with a host and perhaps a path, without user, query and fragment.
    """
    if not uri.isascii() or not uri.isprintable() or " " in uri or len(uri) > LONGEST:
        raise _refused("is longer than 2,048 characters, or has spaces or others than ASCII in it")
    try:
        parts = urlsplit(uri)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise _refused(f"has no valid host and port ({error})") from error
    if parts.scheme not in {"http", "https"}:
        raise _refused("is not of http or https")
    if not named:
        raise _refused("names no host, or port 0")
    if "@" in parts.netloc:
        raise _refused("has a user in it, which would be stored and shown")
    if "?" in uri or "#" in uri:
        raise _refused("has a query or a fragment")
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


def _refused(how: str) -> RefusedError:
    return RefusedError(
        UNPROCESSABLE,
        f"The address of the service endpoint {how}; write http://host:port or https://host/path.",
    )
