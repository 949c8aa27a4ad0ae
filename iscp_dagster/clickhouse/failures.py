"""ClickHouse's error codes, as temporary or permanent errors of this package."""

from __future__ import annotations

from iscp_dagster.core.errors import IscpError, UnavailableError

_LONGEST = 600
"""Characters of a server's message that are worth showing."""

TEMPORARY_CODES = {
    3: "UNEXPECTED_END_OF_FILE",
    107: "FILE_DOESNT_EXIST",
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
    319: "UNKNOWN_STATUS_OF_INSERT",
    394: "QUERY_WAS_CANCELLED",
    425: "SYSTEM_ERROR",
    473: "DEADLOCK_AVOIDED",
    999: "KEEPER_EXCEPTION",
}
"""src/Common/ErrorCodes.cpp of ClickHouse: what a later try may find mended."""


class ClickHouseError(IscpError):
    """ClickHouse refused; the same statement would be refused again."""

    code = 10_400


class ClickHouseBusyError(IscpError):
    """ClickHouse refused for now."""

    code = 1_400


def mapped(error: BaseException, address: str, doing: str) -> IscpError | None:
    """The error of this package for one of clickhouse-connect's, None for any other."""
    from clickhouse_connect.driver.exceptions import ClickHouseError as DriverError
    from clickhouse_connect.driver.exceptions import Error

    if not isinstance(error, DriverError):
        return None
    code = error.code if isinstance(error, Error) else None
    said = " ".join(str(error).split())[:_LONGEST]
    if code is None:
        return UnavailableError(
            f"ClickHouse at {address} did not answer ({doing}): {said}. "
            "Start it (`iscp up`), or set CLICKHOUSE_URL."
        )
    kind = ClickHouseBusyError if code in TEMPORARY_CODES else ClickHouseError
    return kind(f"ClickHouse at {address} refused ({doing}), code {code}: {said}")
