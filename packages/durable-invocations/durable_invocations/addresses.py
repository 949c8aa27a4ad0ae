"""HTTP and HTTPS addresses that people write."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, urlsplit

_PRINTABLE = re.compile(r"[!-~]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def parse_http_address(url: Any) -> SplitResult | None:
    """The parts of an address; None unless it is http or https, in ASCII, and has a host."""
    if not isinstance(url, str) or not _PRINTABLE.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if usable else None


def mask_secrets(url: Any) -> str:
    """What a message may show of an invalid address: no user, query or fragment.

    A password may contain `@`, `?` and `#`: if it is unclear where it ends, nothing is shown.
    """
    text = str(url)
    scheme = match[0] if (match := _SCHEME.match(text)) else ""
    plain, *hidden = re.split(r"[?#]", text[len(scheme) :], maxsplit=1)
    unclear = any("@" in tail for tail in hidden)
    return f"{scheme}{'…' if unclear else plain.rpartition('@')[2]}"
