"""A declared endpoint: where the events of triggers are delivered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from ipaddress import ip_network
from typing import Any

from durable_invocations.addresses import parse_http_address
from iscp_dagster.model.declared.names import check_identifier
from iscp_dagster.model.errors import ConfigError

RETRIES = (5, 300, 1_800, 7_200, 18_000, 36_000, 36_000)
"""The seconds before each further attempt, by default."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Endpoint:
    """A receiver of webhooks, by the Standard Webhooks specification."""

    name: str
    _: KW_ONLY
    url: str
    """Where events are posted to, http or https; without a user, a password or a fragment."""
    secrets: Sequence[str]
    """The environment variables that hold its secrets, newest first; all of them sign."""
    batch: int = 1
    """The most events of one request; 1: one event a request."""
    concurrency: int = 8
    """The most requests under way."""
    timeout: float = 15.0
    """The seconds that one attempt may take, from resolving the name to the end of the answer."""
    retries: Sequence[float] = RETRIES
    """The seconds before each further attempt, without the jitter; the last one repeats."""
    jitter: float = 0.2
    """The part of such a delay by which it may be shorter or longer."""
    longest_wait: float = 36_000.0
    """The longest `Retry-After` of an answer that is followed, in seconds."""
    refusals: int = 20
    """How many answers such as 404 or 301, in a row, pause it."""
    failing_days: float = 5.0
    """For how long it may fail before it is disabled."""
    allow: Sequence[str] = ()
    """Networks (CIDR) that it may be in beside public ones."""
    pending: int = 100_000
    """The most events of one trigger that may wait for it; beyond, the trigger's job stops."""

    def __post_init__(self) -> None:
        check_identifier(self.name, "endpoint")
        for option in ("secrets", "retries", "allow"):
            value = getattr(self, option)
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise ConfigError(
                    f"Endpoint {self.name!r}: {option}={value!r} is not a list; write "
                    f"{option}=[...]."
                )
            object.__setattr__(self, option, tuple(value))
        self._check_url()
        self._check_secrets()
        self._check_numbers()
        for network in self.allow:
            self._check_network(network)

    def _check_url(self) -> None:
        prefix = f"Endpoint {self.name!r}: its url"
        parts = parse_http_address(self.url)
        if parts is None and "@" in str(self.url):
            raise ConfigError(
                f"{prefix} is not an http or https address in ASCII, and has an @, which a "
                "password may precede; write one such as https://example.com/hook."
            )
        if parts is None:
            raise ConfigError(
                f"{prefix} {self.url!r} is not an http or https address in ASCII; write one such "
                "as https://example.com/hook."
            )
        # The message must not show what may be a password.
        if "@" in parts.netloc:
            raise ConfigError(
                f"{prefix} has a user or password before {parts.hostname!r}; leave it out: the "
                "signature identifies the sender."
            )
        if parts.fragment:
            raise ConfigError(f"{prefix} ends in a fragment, #{parts.fragment}; leave it out.")

    def _check_secrets(self) -> None:
        prefix = f"Endpoint {self.name!r}: secrets=[...]"
        if not self.secrets:
            raise ConfigError(f"{prefix} is empty; name the environment variable of a secret.")
        for name in self.secrets:
            # The message must not show what may be a secret.
            if not isinstance(name, str) or not _VARIABLE.fullmatch(name) or "whsec_" in name:
                raise ConfigError(
                    f"{prefix} has an entry that is not the name of an environment variable; set a "
                    f"variable to the secret, and name it, such as {self.name.upper()}_SECRET."
                )

    def _check_numbers(self) -> None:
        for option, least in (("batch", 1), ("concurrency", 1), ("refusals", 1), ("pending", 1)):
            value = getattr(self, option)
            if type(value) is not int or value < least:
                self._refuse(option, value, f"a whole number from {least} on")
        for option in ("timeout", "longest_wait", "failing_days"):
            if not _is_positive(value := getattr(self, option)):
                self._refuse(option, value, "a number above 0")
        if not self.retries or not all(map(_is_positive, self.retries)):
            self._refuse("retries", list(self.retries), "a list of seconds above 0")
        if not _is_number(self.jitter) or not 0 <= self.jitter < 1:
            self._refuse("jitter", self.jitter, "a number from 0 to less than 1")

    def _check_network(self, network: Any) -> None:
        try:
            # As a number it would be an address, too.
            ip_network(str(network))
        except ValueError as error:
            raise ConfigError(
                f"Endpoint {self.name!r}: allow has {network!r}, which is not a network: {error}. "
                "Write one such as 10.1.0.0/16."
            ) from None

    def _refuse(self, option: str, value: object, expected: str) -> None:
        raise ConfigError(f"Endpoint {self.name!r}: {option}={value!r} is not {expected}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and 0 < value < 2**31
