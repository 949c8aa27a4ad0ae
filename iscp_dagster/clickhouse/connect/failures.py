"""ClickHouse's error codes, as temporary or permanent errors of this package."""

from __future__ import annotations

import re

from iscp_dagster.clickhouse.connect.barrier import CONSTRAINT_PREFIX
from iscp_dagster.model.errors import FenceError, IscpError, UnavailableError

_LONGEST = 600
"""Characters of a server's message that are worth showing."""
_CAUSE = re.compile(r"\(Caused by \w+\(.*?: (?P<message>.+?)['\"]?\)\)")
_URL = re.compile(r" with url: \S+")

TEMPORARY_CODES = {
    3: "UNEXPECTED_END_OF_FILE",
    107: "FILE_DOESNT_EXIST",
    122: "INCOMPATIBLE_COLUMNS",
    159: "TIMEOUT_EXCEEDED",
    164: "READONLY",
    202: "TOO_MANY_SIMULTANEOUS_QUERIES",
    203: "NO_FREE_CONNECTION",
    209: "SOCKET_TIMEOUT",
    210: "NETWORK_ERROR",
    236: "ABORTED",
    241: "MEMORY_LIMIT_EXCEEDED",
    242: "TABLE_IS_READ_ONLY",
    243: "NOT_ENOUGH_SPACE",
    252: "TOO_MANY_PARTS",
    285: "TOO_FEW_LIVE_REPLICAS",
    286: "UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE",
    319: "UNKNOWN_STATUS_OF_INSERT",
    341: "UNFINISHED",
    394: "QUERY_WAS_CANCELLED",
    425: "SYSTEM_ERROR",
    473: "DEADLOCK_AVOIDED",
    517: "CANNOT_ASSIGN_ALTER",
    999: "KEEPER_EXCEPTION",
}
"""src/Common/ErrorCodes.cpp of ClickHouse: errors that may be gone at a later attempt.

122, too: a partition was staged before the served table got a column or a wider type; the next
one staged has it.
"""


ROW_CODES = {
    6: "CANNOT_PARSE_TEXT",
    25: "CANNOT_PARSE_ESCAPE_SEQUENCE",
    26: "CANNOT_PARSE_QUOTED_STRING",
    27: "CANNOT_PARSE_INPUT_ASSERTION_FAILED",
    38: "CANNOT_PARSE_DATE",
    41: "CANNOT_PARSE_DATETIME",
    53: "TYPE_MISMATCH",
    69: "ARGUMENT_OUT_OF_BOUND",
    70: "CANNOT_CONVERT_TYPE",
    72: "CANNOT_PARSE_NUMBER",
    117: "INCORRECT_DATA",
    131: "TOO_LARGE_STRING_SIZE",
    321: "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE",
    349: "CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN",
    376: "CANNOT_PARSE_UUID",
    407: "DECIMAL_OVERFLOW",
    441: "CANNOT_PARSE_DOMAIN_VALUE_FROM_STRING",
    469: "VIOLATED_CONSTRAINT",
    675: "CANNOT_PARSE_IPV4",
    676: "CANNOT_PARSE_IPV6",
    691: "UNKNOWN_ELEMENT_OF_ENUM",
}
"""From the same file: errors that a single row of an insert may cause."""


class ClickHouseError(IscpError):
    """ClickHouse refused a statement, and would refuse it again."""

    code = 10_400


class RefusedRowsError(ClickHouseError):
    """ClickHouse refused an insert because of one of its rows."""

    code = 10_430


class ClickHouseBusyError(IscpError):
    """ClickHouse refused for now."""

    code = 1_400


class TooManyPartsError(ClickHouseBusyError):
    """ClickHouse takes no more parts until it has merged some."""

    code = 1_440


class LostRowsError(IscpError):
    """ClickHouse holds other rows than were sent; the next iteration rebuilds the tenant."""

    code = 1_410


class DoubledRowsError(IscpError):
    """ClickHouse forgot tokens and took rows twice; the next iteration rebuilds the tenant."""

    code = 1_420


class OvertakenError(FenceError):
    """ClickHouse rejected a late insert: another run has taken over a tenant's rows."""

    code = 1_310


def map_error(error: BaseException, address: str, action: str) -> IscpError | None:
    """Map an error of clickhouse-connect to this package's; None for any other error."""
    from clickhouse_connect.driver.exceptions import ClickHouseError as DriverError
    from clickhouse_connect.driver.exceptions import Error

    if not isinstance(error, DriverError):
        return None
    code = error.code if isinstance(error, Error) else None
    message = _strip_request(" ".join(str(error).split()))[:_LONGEST]
    if code is None:
        return UnavailableError(
            f"ClickHouse at {address} did not answer ({action}): {message}. "
            "Start it (`iscp up`), or set CLICKHOUSE_URL."
        )
    if ROW_CODES.get(code) == "VIOLATED_CONSTRAINT" and f"`{CONSTRAINT_PREFIX}" in message:
        return OvertakenError(
            f"ClickHouse at {address} rejected a late insert ({action}): another run has taken "
            "over "
            f"a tenant's rows. {message}"
        )
    return _choose_error_class(code)(
        f"ClickHouse at {address} refused ({action}), code {code}: {message}"
    )


def _strip_request(message: str) -> str:
    """Return the cause that urllib3 names, without the request that it shows before it."""
    cause = _CAUSE.search(message)
    return cause["message"].rstrip(".") if cause else _URL.sub("", message)


def _choose_error_class(code: int) -> type[IscpError]:
    if TEMPORARY_CODES.get(code) == "TOO_MANY_PARTS":
        return TooManyPartsError
    if code in TEMPORARY_CODES:
        return ClickHouseBusyError
    return RefusedRowsError if code in ROW_CODES else ClickHouseError
