"""Values as messages show them, even if Python has no such value."""

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from iscp_dagster.clickhouse.types.formatting import format_row, format_value

FAR_DAY = pa.array([10**7], pa.int32()).cast(pa.date32())
FAR_TIME = pa.array([10**18]).cast(pa.timestamp("us", tz="UTC"))
NESTED = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), FAR_DAY)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (pa.array(["x"]), "'x'"),
        (pa.array([Decimal("1.50")]), "'1.50'"),
        (pa.array([date(1, 1, 1)]), "'0001-01-01'"),
        (pa.array([None], pa.string()), "None"),
        (FAR_DAY, "'date32[day] 10000000 since 1970'"),
        (FAR_TIME, "'timestamp[us, tz=UTC] 1000000000000000000 since 1970'"),
        (NESTED, "'list<item: date32[day]> with a time before the year 1 or after 9999'"),
    ],
)
def test_a_value_is_shown_whatever_it_is(values, shown):
    assert format_value(values[0]) == shown
    assert format_row(pa.table({"a": values})) == f"{{'a': {shown}}}"
