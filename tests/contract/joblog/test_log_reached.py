"""The watermarks that readers of changes ask for, on SQLite and PostgreSQL."""

from iscp_dagster.joblog.sql.watermarks import IndexWatermarks, read_watermarks
from support.jobs.log_rows import at, key, name


def test_the_watermarks_of_one_index_are_those_of_its_live_jobs(log):
    engine = log.engine
    assert read_watermarks(engine, name()) == IndexWatermarks()
    at(log, 5, key(tenant="acme"), key(tenant="globex"), key("text", tenant="acme"))
    at(log, 7, key(tenant="late"))
    found = read_watermarks(engine, name())
    assert found.table_id == "t-1"
    assert found.versions == {"acme": 5, "globex": 5, "late": 7}
    assert found.registrations["late"] > found.registrations["acme"]
    assert read_watermarks(engine, name(), ["late", "unknown"]).versions == {"late": 7}
    log.unregister("globex", name())
    assert set(read_watermarks(engine, name()).versions) == {"acme", "late"}
    # A table that took its place counts alone.
    at(log, 2, key(tenant="acme", table_id="t-2"))
    found = read_watermarks(engine, name())
    assert (found.table_id, found.versions) == ("t-2", {"acme": 2})
