"""Addresses of http and https that people declare."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, urlsplit

_PRINTABLE = re.compile(r"[!-~]+")


def http_address(url: Any) -> SplitResult | None:
    """The parts of an address; None if it is none of http or https in ASCII, with a host."""
    if not isinstance(url, str) or not _PRINTABLE.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if usable else None


def without_secrets(url: Any) -> str:
    """What a message may show of an address that is wrong: neither user, query nor fragment."""
    plain = re.split(r"[?#]", str(url), maxsplit=1)[0]
    scheme, mark, rest = plain.rpartition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
