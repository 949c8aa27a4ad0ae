"""Rows as a parameter of a statement, and the creation of tables."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
import sqlalchemy as sa

from sql_transactions.engine import begin_transaction
from sql_transactions.row_values import build_rows_table, escape_nul, make_insert
from sql_transactions.tables import ensure_tables, find_missing_column

LOCK = 7_001
METADATA = sa.MetaData()
PRICES = sa.Table(
    "prices",
    METADATA,
    sa.Column("item", sa.Text, primary_key=True),
    sa.Column("price", sa.Integer),
    sa.Column("share", sa.Float),
    sa.Column("at", sa.DateTime(timezone=True)),
    sa.Index("prices_by_price", "price"),
)
NAMES = ("item", "price", "share")
ROWS = [
    {"item": "pear", "price": 3, "share": 0.5},
    {"item": "plüm '\"\\", "price": None, "share": None},
]


def select_rows(engine, rows, names=NAMES):
    """Send the rows as a parameter, and select them."""
    columns = [PRICES.c[name] for name in names]
    with begin_transaction(engine, writes=False) as connection:
        table = build_rows_table(connection.dialect, columns, rows)
        return [dict(row) for row in connection.execute(sa.select(table)).mappings()]


def test_rows_are_a_table_of_their_values(engine):
    assert sorted(select_rows(engine, ROWS), key=lambda row: row["item"]) == ROWS
    assert select_rows(engine, []) == []


def test_only_the_named_columns_of_a_row_are_sent(engine):
    assert select_rows(engine, [ROWS[0] | {"more": object()}], ["price"]) == [{"price": 3}]


def test_many_rows_are_one_parameter(engine):
    rows = [{"item": str(number), "price": number, "share": 1.5} for number in range(40_000)]
    assert len(select_rows(engine, rows)) == len(rows)


def test_a_value_that_all_rows_share_is_in_each(engine):
    rows = [{"item": str(number), "price": None, "share": 1.5} for number in range(3)]
    assert select_rows(engine, rows) == rows
    assert select_rows(engine, rows[:1]) == rows[:1]
    assert select_rows(engine, [{"share": 2.0}, {"share": 2.0}], ["share"]) == [{"share": 2.0}] * 2


def test_sqlite_looks_rows_up_though_they_share_an_indexed_value(tmp_path):
    """It must not compare each row of the table with each row sent."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'rows.db'}")
    ensure_tables(engine, METADATA, lock=LOCK)
    steps = {number: count_steps(engine, number) for number in (500, 2_000)}
    assert steps[2_000] < 6 * steps[500]


def count_steps(engine, number):
    """SQLite's steps, in hundreds, to join so many rows with as many sent."""
    rows = [{"item": str(item), "price": 3, "share": 0.5} for item in range(number)]
    steps = []
    with begin_transaction(engine, writes=True) as connection:
        connection.execute(sa.delete(PRICES))
        connection.execute(sa.insert(PRICES), rows)
        sent = build_rows_table(connection.dialect, [PRICES.c.item, PRICES.c.price], rows)
        same = sa.and_(PRICES.c.item == sent.c.item, PRICES.c.price == sent.c.price)
        driver = connection.connection.driver_connection
        driver.set_progress_handler(lambda: steps.append(1), 100)
        assert len(connection.execute(sa.select(PRICES).join(sent, same)).all()) == number
        driver.set_progress_handler(None, 0)
    return len(steps)


def test_rows_are_inserted_unless_they_exist(engine):
    ensure_tables(engine, METADATA, lock=LOCK)
    for rows in (ROWS[:1], [ROWS[0] | {"price": 9}, ROWS[1]]):
        with begin_transaction(engine, writes=True) as connection:
            table = build_rows_table(connection.dialect, [PRICES.c[name] for name in NAMES], rows)
            insert = make_insert(connection.dialect, PRICES)
            insert = insert.from_select(NAMES, sa.select(table).where(sa.true()))
            connection.execute(insert.on_conflict_do_nothing())
    with begin_transaction(engine, writes=False) as connection:
        kept = connection.execute(sa.select(PRICES.c.item, PRICES.c.price)).all()
    assert sorted(kept) == [("pear", 3), ("plüm '\"\\", None)]


def test_a_time_of_any_zone_is_compared_with_stored_times(engine):
    ensure_tables(engine, METADATA, lock=LOCK)
    noon = datetime(2025, 6, 18, 12, 0, 0, 5, tzinfo=timezone.utc)
    elsewhere = noon.astimezone(timezone(timedelta(hours=2)))
    with begin_transaction(engine, writes=True) as connection:
        kept = noon if engine.dialect.name == "postgresql" else noon.replace(tzinfo=None)
        connection.execute(sa.insert(PRICES), {"item": "pear", "at": kept})
        table = build_rows_table(connection.dialect, [PRICES.c.at], [{"at": elsewhere}])
        items = sa.select(PRICES.c.item).join(table, table.c.at == PRICES.c.at)
        assert connection.scalars(items).all() == ["pear"]


def test_a_nul_is_escaped():
    assert escape_nul("a\0b\\") == "a\\0b\\"


def test_concurrent_processes_create_tables_and_indexes_once(engine):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: ensure_tables(engine, METADATA, lock=LOCK), range(4)))
    with engine.connect() as connection:
        inspector = sa.inspect(connection)
        assert inspector.get_table_names() == ["prices"]
        assert [index["name"] for index in inspector.get_indexes("prices")] == ["prices_by_price"]
        if engine.dialect.name == "sqlite":
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_a_column_that_another_version_lacked_is_found(engine):
    assert find_missing_column(engine, METADATA) is None
    with begin_transaction(engine, writes=True) as connection:
        connection.exec_driver_sql("CREATE TABLE prices (item TEXT, price INTEGER, at TEXT)")
    assert find_missing_column(engine, METADATA) == ("prices", "share")
    with begin_transaction(engine, writes=True) as connection:
        connection.exec_driver_sql("ALTER TABLE prices ADD COLUMN share REAL")
    assert find_missing_column(engine, METADATA) is None


@pytest.mark.parametrize("column", ["item", "share"])
def test_a_value_that_is_no_json_is_refused_before_it_is_sent(engine, column):
    with pytest.raises(TypeError):
        select_rows(engine, [ROWS[0] | {column: object()}])
