"""Engines and transactions: what is refused, what is told, and how writers wait."""

import subprocess
import sys
import threading

import pytest
import sqlalchemy as sa

from sql_transactions.engine import (
    DatabaseRole,
    begin_transaction,
    open_engine,
    prepare_engine,
    use_wal,
)

ADDS = """
import sys
from sql_transactions.engine import DatabaseRole, begin_transaction, open_engine, prepare_engine
role = DatabaseRole(name="shop", setting="SHOP_URL")
engine = prepare_engine(open_engine(sys.argv[1], role), role)
for _ in range(50):
    with begin_transaction(engine, writes=True) as connection:
        held = connection.exec_driver_sql("SELECT n FROM counted").scalar()
        connection.exec_driver_sql(f"UPDATE counted SET n = {held + 1}")
"""


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "SHOP_URL names no file"),
        ("sqlite:///:memory:", "SHOP_URL names no file"),
        ("mysql://u:hush@host/db?password=hush", r"mysql://u:\*\*\*@host/db: the shop needs"),
        ("not a url hush", "SHOP_URL is not a database URL"),
        ("postgresql://u:hush@host:port/db", "SHOP_URL is not a database URL"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(shop, url, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_engine(url, shop)
    assert "hush" not in str(caught.value)


def test_the_refusal_is_the_callers_own_error():
    role = DatabaseRole(name="shop", setting="SHOP_URL", invalid=LookupError)
    with pytest.raises(LookupError):
        open_engine("mysql://host/db", role)


def test_a_database_that_does_not_answer_is_told_without_its_password(shop):
    url = "postgresql://me:hush%21@127.0.0.1:1/db?password=hush%21&connect_timeout=2"
    engine = prepare_engine(open_engine(url, shop), shop)
    told = pytest.raises(shop.unavailable, match=r"(?s)^shop .*127\.0\.0\.1.* Check SHOP_URL")
    with told as caught, begin_transaction(engine, writes=False):
        pass
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_table_that_is_missing_is_told_in_the_callers_error(engine, shop):
    told = pytest.raises(shop.unavailable, match=r"(?s)^shop .*counted")
    with told, begin_transaction(engine, writes=False) as connection:
        connection.exec_driver_sql("SELECT n FROM counted")


def test_an_error_of_the_caller_rolls_back_and_is_raised_as_it_is(engine):
    counted(engine)
    told = pytest.raises(KeyError)
    with told, begin_transaction(engine, writes=True) as connection:
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
    counted(engine)
    use_wal(engine)
    workers = [subprocess.Popen([sys.executable, "-c", ADDS, url]) for _ in range(3)]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    assert count(engine) == 150


def test_a_reader_sees_what_is_committed_while_another_writes(shop, tmp_path):
    engine = prepare_engine(open_engine(f"sqlite:///{tmp_path}/shop.db", shop), shop)
    counted(engine)
    use_wal(engine)
    use_wal(engine)
    with begin_transaction(engine, writes=True) as connection:
        connection.exec_driver_sql("UPDATE counted SET n = 1")
        assert count(engine) == 0
    assert count(engine) == 1


def test_a_writer_waits_until_the_other_has_committed(shop, tmp_path):
    engine = prepare_engine(open_engine(f"sqlite:///{tmp_path}/shop.db", shop), shop)
    counted(engine)
    found = []

    def add():
        with begin_transaction(engine, writes=True) as connection:
            found.append(connection.exec_driver_sql("SELECT n FROM counted").scalar())

    other = threading.Thread(target=add)
    with begin_transaction(engine, writes=True) as connection:
        connection.exec_driver_sql("UPDATE counted SET n = 7")
        other.start()
        # Long enough for it to ask for the lock; less would only weaken the test.
        other.join(0.2)
        assert found == []
    other.join(60)
    assert found == [7]


def test_an_engine_of_the_callers_own_gets_the_role_and_the_lock(shop, tmp_path):
    engine = prepare_engine(sa.create_engine(f"sqlite:///{tmp_path}/shop.db"), shop)
    assert prepare_engine(engine, shop) is engine
    told = pytest.raises(shop.unavailable, match="no such table: counted")
    with told, begin_transaction(engine, writes=False) as connection:
        connection.exec_driver_sql("SELECT n FROM counted")
    engine.dispose()


def counted(engine):
    with begin_transaction(engine, writes=True) as connection:
        connection.exec_driver_sql("CREATE TABLE counted (n INTEGER)")
        connection.exec_driver_sql("INSERT INTO counted VALUES (0)")


def count(engine):
    with begin_transaction(engine, writes=False) as connection:
        return connection.exec_driver_sql("SELECT n FROM counted").scalar()
