"""Engines and transactions: invalid URLs, errors, and writers that wait."""

import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from sql_transactions.engine import (
    DatabaseUse,
    begin_transaction,
    open_engine,
    prepare_engine,
    use_wal,
)

ADDS = """
import sys
from sql_transactions.engine import DatabaseUse, begin_transaction, open_engine, prepare_engine
role = DatabaseUse(name="shop", setting="SHOP_URL")
engine = prepare_engine(open_engine(sys.argv[1], role), role)
for _ in range(50):
    with begin_transaction(engine, writes=True) as connection:
        held = connection.exec_driver_sql("SELECT n FROM counted").scalar()
        connection.exec_driver_sql(f"UPDATE counted SET n = {held + 1}")
"""


@pytest.mark.parametrize(
    ("url", "values"),
    [
        ("sqlite://", ["SHOP_URL", "file"]),
        ("sqlite:///:memory:", ["SHOP_URL", "file"]),
        ("mysql://u:hush@host/db?password=hush", ["mysql://u:***@host/db", "shop"]),
        ("not a url hush", ["SHOP_URL"]),
        ("postgresql://u:hush@host:port/db", ["SHOP_URL"]),
    ],
)
def test_an_invalid_url_is_refused_without_its_password(shop, url, values):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        open_engine(url, shop)
    assert all(value in str(caught.value) for value in values)
    assert "hush" not in str(caught.value)


def test_the_refusal_is_the_callers_own_error():
    role = DatabaseUse(name="shop", setting="SHOP_URL", invalid=LookupError)
    with pytest.raises(LookupError):
        open_engine("mysql://host/db", role)


@contextmanager
def raises_unavailable(shop, *values):
    """Expect the role's own error, whose message has these values."""
    with pytest.raises(shop.unavailable) as caught:
        yield caught
    assert all(value in str(caught.value) for value in ("shop", *values))


def test_a_database_that_does_not_answer_is_an_error_without_its_password(shop):
    url = "postgresql://me:hush%21@127.0.0.1:1/db?password=hush%21&connect_timeout=2"
    engine = prepare_engine(open_engine(url, shop), shop)
    with (
        raises_unavailable(shop, "127.0.0.1", "SHOP_URL") as caught,
        begin_transaction(engine, writes=False),
    ):
        pass
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_table_raises_the_callers_error(engine, shop):
    with (
        raises_unavailable(shop, "counted"),
        begin_transaction(engine, writes=False) as connection,
    ):
        connection.exec_driver_sql("SELECT n FROM counted")


def test_an_error_of_the_caller_rolls_back_and_is_raised_unchanged(engine):
    create_counter(engine)
    expected = pytest.raises(KeyError)
    with expected, begin_transaction(engine, writes=True) as connection:
        connection.exec_driver_sql("UPDATE counted SET n = 5")
        raise KeyError
    assert count(engine) == 0


@pytest.mark.parametrize("kept", [False, True])
def test_a_connection_is_kept_between_transactions_only_where_that_is_asked_for(
    shop, tmp_path, kept
):
    engine = prepare_engine(
        open_engine(f"sqlite:///{tmp_path}/shop.db", shop, keep_open=kept), shop
    )
    opened = []
    sa.event.listen(engine, "connect", lambda *_: opened.append(1))
    for _ in range(3):
        with begin_transaction(engine, writes=False) as connection:
            connection.exec_driver_sql("SELECT 1")
    engine.dispose()
    assert len(opened) == (1 if kept else 3)


def test_processes_that_read_and_then_write_on_sqlite_wait_for_each_other(shop, tmp_path):
    """Without the lock at the beginning, one of two would fail, or undo what the other did."""
    url = f"sqlite:///{tmp_path}/shop.db"
    engine = prepare_engine(open_engine(url, shop), shop)
    create_counter(engine)
    use_wal(engine)
    workers = [subprocess.Popen([sys.executable, "-c", ADDS, url]) for _ in range(3)]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    assert count(engine) == 150


def test_a_reader_sees_what_is_committed_while_another_writes(shop, tmp_path):
    engine = prepare_engine(open_engine(f"sqlite:///{tmp_path}/shop.db", shop), shop)
    create_counter(engine)
    use_wal(engine)
    use_wal(engine)
    with begin_transaction(engine, writes=True) as connection:
        connection.exec_driver_sql("UPDATE counted SET n = 1")
        assert count(engine) == 0
    assert count(engine) == 1


def test_a_writer_waits_until_the_other_has_committed(shop, tmp_path):
    engine = prepare_engine(open_engine(f"sqlite:///{tmp_path}/shop.db", shop), shop)
    create_counter(engine)
    counts = []

    def add():
        with begin_transaction(engine, writes=True) as connection:
            counts.append(connection.exec_driver_sql("SELECT n FROM counted").scalar())

    other = threading.Thread(target=add)
    with begin_transaction(engine, writes=True) as connection:
        connection.exec_driver_sql("UPDATE counted SET n = 7")
        other.start()
        # Long enough for it to ask for the lock; less would only weaken the test.
        other.join(0.2)
        assert counts == []
    other.join(60)
    assert counts == [7]


def test_an_engine_of_the_callers_own_gets_the_role_and_the_lock(shop, tmp_path):
    engine = prepare_engine(sa.create_engine(f"sqlite:///{tmp_path}/shop.db"), shop)
    assert prepare_engine(engine, shop) is engine
    with (
        raises_unavailable(shop, "counted"),
        begin_transaction(engine, writes=False) as connection,
    ):
        connection.exec_driver_sql("SELECT n FROM counted")
    engine.dispose()


def create_counter(engine):
    with begin_transaction(engine, writes=True) as connection:
        connection.exec_driver_sql("CREATE TABLE counted (n INTEGER)")
        connection.exec_driver_sql("INSERT INTO counted VALUES (0)")


def count(engine):
    with begin_transaction(engine, writes=False) as connection:
        return connection.exec_driver_sql("SELECT n FROM counted").scalar()
