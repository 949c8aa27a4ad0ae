"""How an index's rows are spread over ClickHouse servers, as a Distributed table does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from iscp_dagster.model.errors import ConfigError

DEFAULT_HASH = "cityHash64"
SHARD = "shard"
"""The option of a job's consumer that holds its shard's number."""


@dataclass(frozen=True, kw_only=True)
class HashFunction:
    """A hash function of ClickHouse whose result is a number of `bits`."""

    bits: int
    signed: bool = False
    several: bool = True
    """Whether it takes several columns."""


_MANY_64 = (
    "cityHash64",
    "farmHash64",
    "gccMurmurHash",
    "halfMD5",
    "metroHash64",
    "murmurHash2_64",
    "murmurHash3_64",
    "sipHash64",
    "wyHash64",
    "xxHash64",
    "xxh3",
)
_MANY_32 = ("kafkaMurmurHash", "murmurHash2_32", "murmurHash3_32", "xxHash32")
FUNCTIONS: Mapping[str, HashFunction] = MappingProxyType(
    {
        **{name: HashFunction(bits=64) for name in _MANY_64},
        **{name: HashFunction(bits=32) for name in _MANY_32},
        "intHash64": HashFunction(bits=64, several=False),
        "intHash32": HashFunction(bits=32, several=False),
        "CRC64": HashFunction(bits=64, several=False),
        "CRC32": HashFunction(bits=32, several=False),
        "CRC32IEEE": HashFunction(bits=32, several=False),
        "javaHash": HashFunction(bits=32, signed=True, several=False),
        "hiveHash": HashFunction(bits=32, signed=True, several=False),
    }
)
"""By their names in ClickHouse."""
ALIASES: Mapping[str, str] = MappingProxyType({"crc32": "CRC32", "crc64": "CRC64"})


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Rows lie on shard `hash_function(key...) % shards`, the hash taken as unsigned.

    The deployment sets `shard` and `shards`: 0 of 0 until an index is spread over its endpoints.
    """

    hash_function: str = DEFAULT_HASH
    key: Sequence[str]
    shard: int = 0
    shards: int = 0

    def __post_init__(self) -> None:
        name = ALIASES.get(self.hash_function, self.hash_function)
        if name not in FUNCTIONS:
            raise ConfigError(
                f"sharding: hash_function {self.hash_function!r} is not one of: "
                f"{', '.join(sorted(FUNCTIONS))}."
            )
        key = (self.key,) if isinstance(self.key, str) else tuple(self.key)
        if not key or not all(isinstance(column, str) and column for column in key):
            raise ConfigError(f"sharding: key {self.key!r} names no columns; name one or more.")
        if len(set(key)) < len(key):
            raise ConfigError(f"sharding: key {', '.join(key)} names a column twice.")
        if len(key) > 1 and not FUNCTIONS[name].several:
            names = ", ".join(
                sorted(hash_name for hash_name, function in FUNCTIONS.items() if function.several)
            )
            raise ConfigError(
                f"sharding: {name} takes one column, but the key is {', '.join(key)}; name one, or "
                f"use one of: {names}."
            )
        if not 0 <= self.shard < max(self.shards, 1):
            raise ConfigError(f"sharding: there is no shard {self.shard} of {self.shards}.")
        object.__setattr__(self, "hash_function", name)
        object.__setattr__(self, "key", key)

    @property
    def function(self) -> HashFunction:
        return FUNCTIONS[self.hash_function]

    @property
    def suffix(self) -> str:
        """What a shard's job adds to the index's name."""
        return format_suffix(self.shard) if self.shards else ""

    def make_shards(self, shards: int) -> list[Sharding]:
        """One copy for each shard."""
        return [replace(self, shard=shard, shards=shards) for shard in range(shards)]

    def to_json(self) -> dict[str, Any]:
        return {
            "hash_function": self.hash_function,
            "key": list(self.key),
            "shard": self.shard,
            "shards": self.shards,
        }


def format_suffix(shard: int) -> str:
    """The suffix of the name of a shard's job."""
    return f"_shard_{shard}"


def parse_sharding(index: str, declared: object) -> Sharding:
    """The sharding that `index` declares, perhaps as a mapping. Raises ConfigError."""
    if isinstance(declared, Sharding):
        return declared
    fields = set(declared) if isinstance(declared, Mapping) else set()
    if not isinstance(declared, Mapping) or fields | {"hash_function"} != {"hash_function", "key"}:
        raise ConfigError(
            f"Index {index!r}: sharding {declared!r} is malformed; write it as "
            "{'hash_function': 'cityHash64', 'key': ['id']}; the function may be left out."
        )
    try:
        return Sharding(**declared)
    except ConfigError as error:
        raise ConfigError(f"Index {index!r}: {error}") from error


def get_shard(options: Mapping[str, Any]) -> int | None:
    """The shard in a consumer's options; None for an index that is not sharded."""
    shard = options.get(SHARD)
    return shard if isinstance(shard, int) and not isinstance(shard, bool) else None


def strip_shard_suffix(name: str, shard: int | None) -> str:
    """The name of the index that the job `name` keeps a shard of."""
    return name if shard is None else name.removesuffix(format_suffix(shard))
