"""Converts Arrow values for ClickHouse types without parts; values that do not fit raise.

ClickHouse's own Arrow reader wraps, clips and rounds: a UInt8 gets 44 for 300. So each function
here takes values of one Delta type and returns Arrow values that mean the same to ClickHouse, or
raises `Misfit` or one of Arrow's own errors. Nulls stay null.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from iscp_dagster.clickhouse.types.type_parser import ClickHouseType

Fit = Callable[[pa.Array, ClickHouseType], pa.Array]

INTEGERS = {f"{sign}Int{bits}": (sign, bits) for sign in ("", "U") for bits in (8, 16, 32, 64)}
FLOATS = {"Float32": pa.float32(), "Float64": pa.float64(), "BFloat16": pa.float32()}
DATE32_DAYS = -25_567, 120_529
"""1900-01-01 to 2299-12-31, the days of Date32."""
DATETIME64_MICROS = -2_208_988_800_000_000, 10_413_791_999_999_999
"""The same range in microseconds, for DateTime64."""
DATETIME64_9_MICROS = DATETIME64_MICROS[0], 9_223_372_036_854_775
"""The range of DateTime64(9), in whole microseconds."""
ALL_DAYS = -719_162, 2_932_896
ALL_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999, which can be written as text."""
DIGITS, NANO_DIGITS = 6, 9
"""Digits after the point of a second: in the source, and at most in ClickHouse."""
UTC = pa.timestamp("us", tz="UTC")
UUID = r"\A[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\z"
_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IPV4 = rf"\A{_OCTET}(\.{_OCTET}){{3}}\z"


class Misfit(Exception):  # noqa: N818 - not in the tree of errors; the catcher names the row
    """A value that the type does not hold."""


def unify_floats(values: pa.Array) -> pa.Array:
    """Write floats that Spark considers equal alike: 0.0 for -0.0, one NaN for all NaNs.

    ClickHouse orders them as equal, but hashes and looks them up apart.
    """
    if not pa.types.is_floating(values.type):
        return values
    for is_equal, number in ((pc.equal(values, 0.0), 0.0), (pc.is_nan(values), float("nan"))):
        values = pc.if_else(is_equal, pa.scalar(number, values.type), values)
    return values


def fit_any(values: pa.Array, _: ClickHouseType) -> pa.Array:
    return values


def fit_integers(values: pa.Array, type_: ClickHouseType) -> pa.Array:
    """Convert booleans, whole numbers and decimals to whole numbers."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.decimal128(38, 0))
    if type_.name in INTEGERS:
        sign, bits = INTEGERS[type_.name]
        return values.cast(getattr(pa, f"{sign.lower()}int{bits}")())
    if type_.name.startswith("U"):
        _check_range(values, 0, None)
    return values.cast(pa.decimal128(38, 0))


def fit_booleans(values: pa.Array, _: ClickHouseType) -> pa.Array:
    """Convert the numbers 0 and 1."""
    _check_range(values, 0, 1)
    return values.cast(pa.bool_())


def fit_floats(values: pa.Array, type_: ClickHouseType) -> pa.Array:
    """Convert numbers that the type holds exactly."""
    converted = values.cast(FLOATS[type_.name])
    if pa.types.is_floating(values.type) and converted.type != values.type:
        _check_all(pc.or_(pc.equal(converted.cast(values.type), values), pc.is_nan(values)))
    if pa.types.is_integer(values.type):
        _check_all(pc.equal(converted.cast(values.type), values))
    if type_.name == "BFloat16":
        low = pc.bit_wise_and(converted.view(pa.uint32()), pa.scalar(0xFFFF, pa.uint32()))
        _check_all(pc.or_(pc.equal(low, 0), pc.is_nan(converted)))
    return converted


def fit_decimals(values: pa.Array, type_: ClickHouseType) -> pa.Array:
    """Convert whole numbers and decimals to decimals, without losing digits."""
    precision, scale = type_.numbers
    if pa.types.is_integer(values.type):
        values = values.cast(pa.decimal128(19, 0))
    wide = pa.decimal128 if precision <= pa.decimal128(38, 0).precision else pa.decimal256
    return values.cast(wide(precision, scale))


def fit_text(values: pa.Array, _: ClickHouseType) -> pa.Array:
    """Write values as text, as ClickHouse and Arrow both write them."""
    return values if pa.types.is_decimal(values.type) else values.cast(pa.string())


def fit_fixed_bytes(values: pa.Array, type_: ClickHouseType) -> pa.Array:
    values = values.cast(pa.binary())
    _check_all(pc.equal(pc.binary_length(values), type_.numbers[0]))
    return values


def fit_enum_members(values: pa.Array, type_: ClickHouseType) -> pa.Array:
    """Check that the values are names of the Enum's members."""
    names = pa.array([name.encode() for name in type_.names], pa.binary())
    encoded = values.cast(pa.binary())
    _check_all(pc.or_(pc.is_in(encoded, value_set=names), pc.is_null(encoded)))
    return values


def fit_uuids(values: pa.Array, _: ClickHouseType) -> pa.Array:
    """Lower-case the UUIDs: keys that differ only in case are the same key."""
    return pc.ascii_lower(_check_pattern(values, UUID))


def lower_uuids(values: pa.Array) -> pa.Array:
    """Write UUIDs as ClickHouse writes them; leave other texts unchanged."""
    is_uuid = pc.match_substring_regex(values.cast(pa.binary()), UUID)
    return pc.if_else(is_uuid, pc.ascii_lower(values), values)


def fit_ipv4(values: pa.Array, _: ClickHouseType) -> pa.Array:
    return _check_pattern(values, IPV4)


def fit_dates(values: pa.Array, type_: ClickHouseType) -> pa.Array:
    """Convert days within the type's range; text holds the years 1 to 9999, numbers all days."""
    days = values.cast(pa.int32())
    if type_.name == "String":
        _check_range(days, *ALL_DAYS)
        return values.cast(pa.string())
    if type_.name in INTEGERS:
        return fit_integers(days, type_)
    _check_range(days, *((0, 65_535) if type_.name == "Date" else DATE32_DAYS))
    return values


def fit_timestamps(values: pa.Array, type_: ClickHouseType) -> pa.Array:
    """Convert microseconds within the type's range and precision."""
    micros = values.cast(pa.int64())
    if type_.name == "String":
        _check_range(micros, *ALL_MICROS)
        return values.cast(pa.timestamp("us", tz=values.type.tz and "UTC")).cast(pa.string())
    if type_.name in INTEGERS:
        return fit_integers(micros, type_)
    digits = type_.numbers[0] if type_.name == "DateTime64" else 0
    if type_.name == "DateTime":
        _check_range(micros, 0, (2**32 - 1) * 10**6)
    else:
        _check_range(micros, *(DATETIME64_9_MICROS if digits == NANO_DIGITS else DATETIME64_MICROS))
    if digits < DIGITS:
        unit = pa.scalar(10 ** (DIGITS - digits), pa.int64())
        _check_all(pc.equal(pc.multiply(pc.divide(micros, unit), unit), micros))
    return micros.cast(UTC)


def _check_pattern(values: pa.Array, pattern: str) -> pa.Array:
    _check_all(pc.match_substring_regex(values.cast(pa.binary()), pattern))
    return values


def _check_range(values: pa.Array, least: int | None, most: int | None) -> None:
    bounds = pc.min_max(values)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and (
        (least is not None and low < least) or (most is not None and high > most)
    ):
        raise Misfit


def _check_all(fits: pa.Array) -> None:
    """Raise Misfit unless all fit; nulls do."""
    if pc.all(fits, min_count=0).as_py() is False:
        raise Misfit
