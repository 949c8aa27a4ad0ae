"""Addresses of http and https that people write."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, urlsplit

_PRINTABLE = re.compile(r"[!-~]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


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
    """What a message may show of an address that is wrong: neither user, query nor fragment.

    A password may have any of their marks in it: where they contradict each other, nothing is
    shown.
    """
    text = str(url)
    scheme = found[0] if (found := _SCHEME.match(text)) else ""
    plain, *hidden = re.split(r"[?#]", text[len(scheme) :], maxsplit=1)
    unclear = any("@" in each for each in hidden)
    return f"{scheme}{'…' if unclear else plain.rpartition('@')[2]}"
