"""Who may see what: bearer tokens, and the tenants that each of them names."""

from __future__ import annotations

import hashlib
import json
import re
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from iscp_dagster.model.errors import ConfigError, IscpError
from iscp_dagster.model.imports import object_at

EVERY_TENANT = "*"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_BEARER = re.compile(r"bearer +([!-~]{1,4096}) *", re.IGNORECASE)


class UnauthenticatedError(IscpError):
    """A request has no valid token; nothing was read."""

    code = 10_820


@dataclass(frozen=True, kw_only=True)
class Viewer:
    """Who asks, by the tenants that they may see; None: all."""

    tenants: frozenset[str] | None

    def sees(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants


EVERYONE = Viewer(tenants=None)
"""The viewer of a server without tokens, which only this machine can reach."""


class Access(Protocol):
    """Knows tokens. Both methods may read a file or call a user's function, and so may block."""

    @property
    def open(self) -> bool:
        """Whether it needs no tokens."""
        ...

    def viewer(self, token: str | None) -> Viewer:
        """Return who has the token. Raises UnauthenticatedError. A valid one may be withdrawn."""
        ...


@dataclass(frozen=True)
class OpenAccess:
    """No tokens are configured: every request that reaches the server sees every tenant."""

    open: bool = True

    def viewer(self, token: str | None) -> Viewer:
        del token
        return EVERYONE


@dataclass
class FileAccess:
    """A JSON file of tokens, or of their digests `sha256:<hex>`, each with its tenants.

    It is read again when it changes; while it is unreadable nobody is let in.
    """

    path: Path
    open: bool = False
    _read: tuple[tuple[int, int, int], Mapping[str, Viewer]] | None = field(
        default=None, repr=False
    )

    def viewer(self, token: str | None) -> Viewer:
        if token is None:
            raise _unknown(token)
        found = self._tokens().get(_digest(token))
        if found is None:
            raise _unknown(token)
        return found

    def _tokens(self) -> Mapping[str, Viewer]:
        try:
            stat = self.path.stat()
            mark = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if self._read is None or self._read[0] != mark:
                self._read = (mark, tokens_in(self.path.read_text(encoding="utf-8"), self.path))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"The file of tokens {self.path} cannot be read: {_short(error)}."
            ) from error
        return self._read[1]


@dataclass(frozen=True)
class FunctionAccess:
    """A user's function from a token to its tenants; None or an empty list for an unknown token."""

    function: Callable[[str], Any]
    named: str
    open: bool = False

    def viewer(self, token: str | None) -> Viewer:
        found = self._asked(token) if token is not None else None
        if not found:
            raise _unknown(token)
        return _viewer(found, f"The function {self.named} returned")

    def _asked(self, token: str) -> Any:
        try:
            return self.function(token)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            # Its message may have the token in it, which no log shows.
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(at.filename).name}, line {at.lineno}"
            raise ConfigError(
                f"The function {self.named} failed: {type(error).__name__} in {where}."
            ) from None


def access(setting: str) -> Access:
    """Return the access that a setting names: a file, or a function as `module:name`; empty: open.

    Raises ConfigError for a function that cannot be imported, or a file that cannot be used.
    """
    if not setting:
        return OpenAccess()
    if _FUNCTION.fullmatch(setting) and not Path(setting).exists():
        return FunctionAccess(function=object_at(setting, "function of tokens"), named=setting)
    found = FileAccess(Path(setting))
    found._tokens()  # noqa: SLF001 - a mistake in the file is told at the start
    return found


def tokens_in(text: str, path: Path) -> dict[str, Viewer]:
    """Return who has each token, by the tokens' digests. Raises ConfigError; shows no token."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"The file of tokens {path} is no JSON.") from error
    if not isinstance(found, dict) or not found:
        raise ConfigError(
            f'The file of tokens {path} is no JSON object; write {{"token": ["tenant"]}}.'
        )
    held = {}
    for number, (token, tenants) in enumerate(found.items(), start=1):
        digest = _DIGEST.fullmatch(token)
        if digest is None and not _BEARER.fullmatch(f"bearer {token}"):
            raise ConfigError(
                f"Token {number} in {path} is empty, or has characters that no header can have."
            )
        held[digest[1] if digest else _digest(token)] = _viewer(
            tenants, f"Token {number} in {path} has"
        )
    return held


def bearer(header: str | None) -> str | None:
    """Return the token of an Authorization header; None without one, or for another scheme."""
    found = _BEARER.fullmatch(header) if header else None
    return found[1] if found else None


def _viewer(tenants: Any, whose: str) -> Viewer:
    if tenants == EVERY_TENANT:
        return EVERYONE
    several = isinstance(tenants, Collection) and not isinstance(tenants, str | bytes | Mapping)
    if several and all(isinstance(each, str) for each in tenants):
        return Viewer(tenants=frozenset(tenants))
    raise ConfigError(
        f'{whose} {type(tenants).__name__} as its tenants; use a list of names, or "*" for all.'
    )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _unknown(token: str | None) -> UnauthenticatedError:
    if token is None:
        return UnauthenticatedError(
            "This server wants a token: send the header `Authorization: Bearer <token>`."
        )
    return UnauthenticatedError("The token is not known to this server.")


def _short(error: BaseException) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
