"""Access control: bearer tokens, each with the tenants that it may see."""

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
from iscp_dagster.model.imports import import_object

EVERY_TENANT = "*"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_BEARER = re.compile(r"bearer +([!-~]{1,4096}) *", re.IGNORECASE)


class UnauthenticatedError(IscpError):
    """A request has no valid token; nothing was read."""

    code = 10_820


@dataclass(frozen=True, kw_only=True)
class Viewer:
    """A client, by the tenants that it may see; None: all."""

    tenants: frozenset[str] | None

    def can_see(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants


ALL_TENANTS_VIEWER = Viewer(tenants=None)
"""Sees every tenant: of a server without tokens, which is local, or with a token for `*`."""


class Access(Protocol):
    """Checks tokens. Both members may block: they may read a file or call a user's function."""

    @property
    def is_open(self) -> bool:
        """Whether it needs no tokens."""
        ...

    def identify_viewer(self, token: str | None) -> Viewer:
        """Return the token's viewer. Raises UnauthenticatedError. A token may be withdrawn."""
        ...


@dataclass(frozen=True)
class OpenAccess:
    """No tokens are configured: every request that reaches the server sees every tenant."""

    is_open: bool = True

    def identify_viewer(self, token: str | None) -> Viewer:
        del token
        return ALL_TENANTS_VIEWER


@dataclass
class FileAccess:
    """A JSON file of tokens, or of their digests `sha256:<hex>`, each with its tenants.

    It is read again when it changes; while it is unreadable nobody is let in.
    """

    path: Path
    is_open: bool = False
    _read: tuple[tuple[int, int, int], Mapping[str, Viewer]] | None = field(
        default=None, repr=False
    )

    def identify_viewer(self, token: str | None) -> Viewer:
        if token is None:
            raise _make_unknown_error(token)
        viewer = self._read_tokens().get(_compute_digest(token))
        if viewer is None:
            raise _make_unknown_error(token)
        return viewer

    def _read_tokens(self) -> Mapping[str, Viewer]:
        try:
            stat = self.path.stat()
            mark = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if self._read is None or self._read[0] != mark:
                self._read = (mark, parse_tokens(self.path.read_text(encoding="utf-8"), self.path))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"The file of tokens {self.path} cannot be read: {_describe_error(error)}."
            ) from error
        return self._read[1]


@dataclass(frozen=True)
class FunctionAccess:
    """A user's function from a token to its tenants; None or an empty list for an unknown token."""

    function: Callable[[str], Any]
    import_path: str
    is_open: bool = False

    def identify_viewer(self, token: str | None) -> Viewer:
        tenants = self._call_function(token) if token is not None else None
        if not tenants:
            raise _make_unknown_error(token)
        return _parse_viewer(tenants, f"The function {self.import_path} returned")

    def _call_function(self, token: str) -> Any:
        try:
            return self.function(token)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            # Its message may have the token in it, which no log shows.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            location = f"{Path(frame.filename).name}, line {frame.lineno}"
            raise ConfigError(
                f"The function {self.import_path} failed: {type(error).__name__} in {location}."
            ) from None


def load_access(setting: str) -> Access:
    """Return the access that a setting names: a file, or a function as `module:name`; empty: open.

    Raises ConfigError for a function that cannot be imported, or a file that cannot be used.
    """
    if not setting:
        return OpenAccess()
    if _FUNCTION.fullmatch(setting) and not Path(setting).exists():
        return FunctionAccess(
            function=import_object(setting, "function of tokens"), import_path=setting
        )
    file_access = FileAccess(Path(setting))
    file_access._read_tokens()  # noqa: SLF001 - reports a mistake in the file at startup
    return file_access


def parse_tokens(text: str, path: Path) -> dict[str, Viewer]:
    """Return the viewers by their tokens' digests. Raises ConfigError, which shows no token."""
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"The file of tokens {path} is not JSON.") from error
    if not isinstance(parsed, dict) or not parsed:
        raise ConfigError(
            f'The file of tokens {path} is not a JSON object; write {{"token": ["tenant"]}}.'
        )
    viewers = {}
    for number, (token, tenants) in enumerate(parsed.items(), start=1):
        digest = _DIGEST.fullmatch(token)
        if digest is None and not _BEARER.fullmatch(f"bearer {token}"):
            raise ConfigError(
                f"Token {number} in {path} is empty, or has characters that a header cannot have."
            )
        viewers[digest[1] if digest else _compute_digest(token)] = _parse_viewer(
            tenants, f"Token {number} in {path} has"
        )
    return viewers


def parse_bearer(header: str | None) -> str | None:
    """Return the token of an Authorization header; None without one, or for another scheme."""
    match = _BEARER.fullmatch(header) if header else None
    return match[1] if match else None


def _parse_viewer(tenants: Any, subject: str) -> Viewer:
    if tenants == EVERY_TENANT:
        return ALL_TENANTS_VIEWER
    is_list = isinstance(tenants, Collection) and not isinstance(tenants, str | bytes | Mapping)
    if is_list and all(isinstance(tenant, str) for tenant in tenants):
        return Viewer(tenants=frozenset(tenants))
    raise ConfigError(
        f'{subject} {type(tenants).__name__} as its tenants; use a list of names, or "*" for all.'
    )


def _compute_digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _make_unknown_error(token: str | None) -> UnauthenticatedError:
    if token is None:
        return UnauthenticatedError(
            "This server requires a token: send the header `Authorization: Bearer <token>`."
        )
    return UnauthenticatedError("The token is not known to this server.")


def _describe_error(error: BaseException) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
