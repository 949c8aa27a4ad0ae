"""Ids that follow from what they name: the same commits give the same events the same ids."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import xxhash

from iscp_dagster.events.timestamps import SourceTimestamp
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.variables import EVENT_IDS

BYTES = 16
"""The length of an id: 32 hex digits, or 22 characters of base64url."""


def _hash_sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:BYTES]


def _hash_blake2b(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=BYTES).digest()


def _encode_base64url(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


ALGORITHMS: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType(
    {"sha256": _hash_sha256, "blake2b": _hash_blake2b, "xxh3_128": xxhash.xxh3_128_digest}
)
FORMS: Mapping[str, Callable[[bytes], str]] = MappingProxyType(
    {"hex": bytes.hex, "base64url": _encode_base64url}
)
_PREFIX = re.compile(r"[A-Za-z0-9_-]{0,40}")
_HELP = "such as algorithm=sha256,prefix=prod_eu,form=hex"


@dataclass(frozen=True, kw_only=True)
class IdScheme:
    """How a deployment makes its ids; changing it gives every event another id.

    `algorithm` is one of ALGORITHMS, `form` one of FORMS; a `prefix` (environment, region) is put
    before the id with `_` between. Raises ConfigError for anything else.
    """

    algorithm: str = "sha256"
    prefix: str = ""
    form: str = "hex"

    def __post_init__(self) -> None:
        _check_known("algorithm", self.algorithm, ALGORITHMS)
        _check_known("form", self.form, FORMS)
        if not _PREFIX.fullmatch(self.prefix):
            raise ConfigError(
                f"The prefix {self.prefix!r} of event ids has other characters than letters, "
                "digits, _ and -, or more than 40; a . would hide where a signed id ends."
            )

    def make_event_id(self, trigger: str, key: str, timestamp: SourceTimestamp) -> str:
        """The id of the event that a trigger fires for a key (`make_event_key`) in a commit.

        Raises ConfigError for a trigger name that is empty or has a colon.
        """
        if not trigger or ":" in trigger:
            raise ConfigError(f"The trigger name {trigger!r} is empty or has a colon; rename it.")
        return self._make_id(f"{trigger}:{key}:{timestamp.nanos}")

    def make_batch_id(self, event_ids: Sequence[str]) -> str:
        """The id of a batch of these events in this order. Raises ConfigError if there is none."""
        if not event_ids:
            raise ConfigError("A batch holds no events; send it when it holds one.")
        # No trigger's name begins with a colon, so no event's id is hashed from such a text.
        return self._make_id(f":{','.join(event_ids)}")

    def _make_id(self, text: str) -> str:
        encoded = FORMS[self.form](ALGORITHMS[self.algorithm](text.encode()))
        return f"{self.prefix}_{encoded}" if self.prefix else encoded

    @property
    def text(self) -> str:
        """The scheme as `parse` reads it."""
        parts = {"algorithm": self.algorithm, "prefix": self.prefix, "form": self.form}
        return ",".join(f"{name}={value}" for name, value in parts.items())

    @classmethod
    def parse(cls, text: str) -> IdScheme:
        """Read `name=value` parts, separated by commas. Raises ConfigError on anything else."""
        fields: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = part.partition("=")
            if name.strip() not in {"algorithm", "prefix", "form"} or name.strip() in fields:
                raise ConfigError(
                    f"{EVENT_IDS}={text!r}: {part!r} is unknown or repeated; write parts {_HELP}."
                )
            fields[name.strip()] = value.strip()
        return cls(**fields)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> IdScheme:
        """The scheme that ISCP_EVENT_IDS names; unset or empty: the default."""
        return cls.parse(environ.get(EVENT_IDS, ""))


def _check_known(what: str, value: str, choices: Mapping[str, object]) -> None:
    if value not in choices:
        raise ConfigError(
            f"The {what} {value!r} of event ids is unknown; use one of {', '.join(choices)}."
        )


DEFAULT_IDS = IdScheme()
