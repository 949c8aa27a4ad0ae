"""Assets of people's own that return a frame, written into ClickHouse by the IO manager."""

from __future__ import annotations

import itertools
from datetime import datetime, timezone
from decimal import Decimal

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest

from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint
from iscp_dagster.clickhouse.tables.frames import STAGED
from iscp_dagster.location.assets.io_manager import ClickHouseIOManager
from iscp_dagster.location.frames import get_database_and_table
from support.errors import assert_names
from support.jobs.one_table import Clock, in_memory

NUMBERS = itertools.count()
TENANTS = ["acme", "globex"]
DAY = datetime(2026, 11, 27, tzinfo=timezone.utc)


@pytest.fixture
def manager(clickhouse_url):
    deployment = in_memory(Clock())
    object.__setattr__(deployment, "endpoint", ClickHouseEndpoint.parse(clickhouse_url))
    return ClickHouseIOManager(lambda: deployment)


def make_totals(database, amount, tenants=None, **options):
    """Return an asset below an index, of one row for each of these tenants, or of the run's."""

    @dg.asset(
        key=[database, "totals"],
        io_manager_key="clickhouse",
        partitions_def=dg.StaticPartitionsDefinition(TENANTS),
        **({"metadata": {"partition_expr": "customer"}} | options),
    )
    def totals(context) -> pd.DataFrame:
        return pd.DataFrame({"customer": tenants or context.partition_keys, "amount": amount})

    return totals


def run(asset, manager, first=TENANTS[0], last=TENANTS[-1], **options):
    tags = {
        "dagster/asset_partition_range_start": first,
        "dagster/asset_partition_range_end": last,
    }
    resources = {"clickhouse": manager}
    return dg.materialize([asset], resources=resources, tags=tags, **options)


def read_totals(manager, database):
    """Return the amounts by tenant, and the names of tables in which rows are staged."""
    query = manager.writer.deployment.endpoint.get_client().query
    rows = query(f"SELECT customer, amount FROM `{database}`.totals").result_rows
    names = query(f"SELECT name FROM system.tables WHERE database = '{database}'").result_rows
    return dict(rows), [name for (name,) in names if STAGED in name]


@pytest.fixture
def database():
    return f"own{next(NUMBERS)}"


def test_a_key_of_one_part_is_a_table_of_the_default_database():
    key = dg.AssetKey("totals")
    assert get_database_and_table(key, {}) == ("default", "totals")
    assert get_database_and_table(key, {"schema": "sales"}) == ("sales", "totals")


def test_the_partitions_of_a_run_are_replaced_and_can_be_loaded(manager, database):
    for amount in (1, 2):
        result = run(make_totals(database, amount), manager)
    assert read_totals(manager, database) == ({"acme": 2, "globex": 2}, [])
    run(make_totals(database, 3), manager, last="acme")
    assert read_totals(manager, database) == ({"acme": 3, "globex": 2}, [])
    (event,) = [e for e in result.get_asset_materialization_events() if e.partition == "acme"]
    metadata = event.materialization.metadata
    assert metadata["dagster/row_count"].value == 2
    assert metadata["dagster/table_name"].value == f"{database}.totals"

    partitions = dg.StaticPartitionsDefinition(TENANTS)
    result = run_below(make_totals(database, 4), manager, partitions, partition_key="globex")
    assert result.output_for_node("below") == [4]


@pytest.mark.parametrize(
    ("type_", "value", "key"),
    [
        (pa.timestamp("us", "UTC"), DAY, "2026-11-27"),
        (pa.int64(), 1, "01"),
        (pa.decimal128(5, 2), Decimal("1.50"), "1.50"),
    ],
)
def test_a_partition_is_loaded_by_the_name_that_it_was_stored_by(
    manager, database, type_, value, key
):
    partitions = dg.StaticPartitionsDefinition([key, "other"])

    @dg.asset(
        key=[database, "totals"],
        io_manager_key="clickhouse",
        partitions_def=partitions,
        metadata={"partition_expr": "at", "clickhouse/order_by": "amount"},
    )
    def upstream() -> pa.Table:
        return pa.table({"at": pa.array([value], type_), "amount": [4]})

    result = run_below(upstream, manager, partitions, partition_key=key)
    assert result.output_for_node("below") == [4]


def test_a_run_for_no_partition_of_an_asset_that_has_some_is_refused(manager, database):
    run(make_totals(database, 1), manager)
    careless = make_totals(database, 9, ["acme"])
    result = dg.materialize([careless], resources={"clickhouse": manager}, raise_on_error=False)
    assert_names(find_message(result, "ConfigError"), f"{database}/totals")
    assert read_totals(manager, database) == ({"acme": 1, "globex": 1}, [])


def test_an_asset_without_partitions_loads_all_of_one_that_has_some(manager, database):
    upstream = make_totals(database, 1)
    run(upstream, manager)
    alone = {"selection": [dg.AssetKey("below")]}
    result = run_below(upstream, manager, None, **alone)
    assert result.output_for_node("below") == [1, 1]
    manager.writer.deployment.endpoint.get_client().command(f"DROP TABLE `{database}`.totals")
    result = run_below(upstream, manager, None, **alone, raise_on_error=False)
    assert_names(find_message(result, "ClickHouseError"), database, "totals")


def find_message(result, error):
    """Return the message of the error of that class that failed a run."""
    (event,) = [each for each in result.all_node_events if each.is_step_failure]
    info = event.step_failure_data.error
    while info.cls_name != error:
        info = info.cause
    return info.message


def run_below(upstream, manager, partitions, **options):
    """Materialize an asset, and one below it that gives the amounts that it loads."""

    @dg.asset(partitions_def=partitions)
    def below(totals: pa.Table) -> list[int]:
        return totals["amount"].to_pylist()

    linked = below.with_attributes(asset_key_replacements={dg.AssetKey("totals"): upstream.key})
    resources = {"clickhouse": manager, "io_manager": dg.mem_io_manager}
    return dg.materialize([upstream, linked], resources=resources, **options)


def test_what_is_no_frame_or_has_no_column_of_partitions_is_refused(manager, database):
    bare = make_totals(database, 1, metadata={})
    result = run(bare, manager, raise_on_error=False)
    assert_names(find_message(result, "ConfigError"), f"{database}/totals", "partition_expr")

    @dg.asset(io_manager_key="clickhouse")
    def number() -> int:
        return 7

    result = dg.materialize([number], resources={"clickhouse": manager}, raise_on_error=False)
    assert_names(find_message(result, "ConfigError"), "number", "int", "io_manager_key")
