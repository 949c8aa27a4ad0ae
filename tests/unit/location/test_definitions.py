"""What the location's settings make of its definitions."""

from __future__ import annotations

import re
import runpy
import sys

import pytest
from dagster import AssetKey, Definitions, build_output_context, mem_io_manager

import assets
from iscp_dagster import Mirror, SourceTable
from iscp_dagster.api.discovery import load_tables as declared_by
from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.location.assets.io_manager import ClickHouseIOManager
from iscp_dagster.location.assets.maintenance import RUN_BY
from iscp_dagster.location.assets.source_asset import build_source_spec
from iscp_dagster.location.build import build_definitions, build_runner_definitions
from iscp_dagster.location.names import get_clickhouse_pool
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.model.declared.schema import DeltaField, Primitive
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.sync.iteration.outcomes import PendingCommit, WriteResult
from iscp_dagster.sync.reading.requests import ReadRequest
from support.jobs.log_rows import add, key, over
from support.jobs.one_table import in_memory
from support.paths import ROOT

WRITERS = ("index_docs_symbols", "batch_sync_docs_symbols_op")

STUBS = {"iscp": object(), "clickhouse": mem_io_manager}


@pytest.fixture
def defined(monkeypatch):
    """Give a function that loads the location's definitions under only the given settings."""

    def load(**settings: str) -> Definitions:
        for name in ("CLICKHOUSE_URL", "ISCP_SCAN_SECONDS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        return runpy.run_module("iscp_dagster.definitions")["defs"]

    return load


def pools(definitions: Definitions) -> dict[str, set[str]]:
    """Return the pools of each op that has any, of the demo's table; assets/ may have others."""
    jobs = definitions.resolve_all_job_defs()
    nodes = [node for job in jobs for node in job.all_node_defs]
    return {
        node.name: set(node.pools) for node in nodes if node.pools and "docs_symbols" in node.name
    }


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, {"iscp_runner": 4, "iscp_news": 20}),
        ({"ISCP_SCAN_SECONDS": "60"}, {"iscp_runner": 4, "iscp_news": 120}),
        ({"ISCP_SCAN_SECONDS": "3"}, {"iscp_runner": 3, "iscp_news": 6}),
    ],
)
def test_a_tick_may_begin_in_each_round_of_the_daemon_or_as_set(defined, settings, seconds):
    """Dagster's daemon begins a round every 5 s."""
    found = {each.name: each.minimum_interval_seconds for each in defined(**settings).sensors}
    assert found == seconds


@pytest.mark.parametrize("said", ["ten", "1.5", "0", "-3", "86401"])
def test_a_time_between_looks_that_is_none_is_refused(said):
    said_so = f"ISCP_SCAN_SECONDS is '{said}'; set whole seconds from 1 to 86400"
    with pytest.raises(ConfigError, match=said_so):
        build_runner_definitions([], {}, environ={"ISCP_SCAN_SECONDS": said})


def test_all_that_a_person_sees_is_described(defined):
    definitions = defined()
    specs = {spec.key.to_user_string(): spec for spec in definitions.resolve_all_asset_specs()}
    jobs = [each for each in definitions.resolve_all_job_defs() if not each.name.startswith("__")]
    shown = [*specs.values(), *jobs, *definitions.schedules, *definitions.sensors]
    assert [each for each in shown if not each.description] == []


def test_what_a_module_defines_for_dagster_besides_tables_is_in_the_location(
    tmp_path, monkeypatch, defined
):
    """As docs/library.md shows an asset of one's own beside its table."""
    package = tmp_path / "of_a_shop"
    package.mkdir()
    for name in ("orders", "totals"):
        (package / f"{name}.py").write_text(example(f"assets/{name}.py"))
    (package / "__init__.py").touch()
    (package / "others.py").write_text(
        "import dagster as dg\n"
        "from of_a_shop.totals import totals\n"
        "daily = dg.define_asset_job('daily_totals', [totals])\n"
        "at_night = dg.ScheduleDefinition(name='at_night', job=daily, cron_schedule='@daily')\n"
        "@dg.asset\n"
        "def apart(): ...\n"
        "defs = dg.Definitions(assets=[apart, dg.AssetSpec('elsewhere')])\n"
        "@dg.definitions\n"
        "def lazy(): return dg.Definitions(assets=[dg.AssetSpec('later')])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    definitions = defined(ISCP_ASSETS="of_a_shop")
    own = {"shop/orders", "shop/orders_mirror", "shop/totals", "apart", "elsewhere", "later"}
    assert {each.to_user_string() for each in definitions.resolve_all_asset_keys()} == own
    assert "daily_totals" in {each.name for each in definitions.resolve_all_job_defs()}
    assert "at_night" in {each.name for each in definitions.schedules}


def example(title):
    """Return the code of docs/library.md that has this title."""
    return (ROOT / "docs/library.md").read_text().partition(f'title="{title}"\n')[2].split("```")[0]


def test_a_table_that_is_declared_without_a_description_has_one():
    source = SourceTable("shop.orders", key="id", tenant="region", indexes=[])
    assert "`shop.orders`" in build_source_spec(source).description


def test_all_that_write_to_a_clickhouse_are_in_its_pool(defined):
    assert pools(defined()) == {name: {"clickhouse"} for name in WRITERS}
    found = pools(defined(CLICKHOUSE_URL="http://me:secret@ch.example.com:8124"))
    assert found == {name: {"clickhouse:ch.example.com:8124"} for name in WRITERS}


@pytest.mark.parametrize("package", ["no_such", "no_such.within", "assets.no_such"])
def test_a_module_that_is_not_there_is_named_with_its_variable(package):
    said = f"ISCP_ASSETS names the module '{package}', which is neither in the working directory"
    with pytest.raises(ConfigError, match=said):
        declared_by({"ISCP_ASSETS": package})


def test_what_a_module_imports_and_is_not_there_is_the_module_s_fault(tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text("import no_such\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"of_mine\.py, line 1: ModuleNotFoundError: .*no_such"):
        declared_by({"ISCP_ASSETS": "of_mine"})


def test_without_a_module_of_declarations_the_variable_is_named(monkeypatch):
    monkeypatch.setattr("iscp_dagster.api.discovery.DEFAULT_PACKAGE", "no_such")
    with pytest.raises(ConfigError, match=r"no module 'no_such' .* name yours in .* ISCP_ASSETS"):
        declared_by({})


@pytest.mark.parametrize(
    ("url", "pool"),
    [
        ("", "clickhouse"),
        ("http://127.0.0.1:8123", "clickhouse:127.0.0.1:8123"),
        ("https://me:secret@ch.example.com/?insert_quorum=2", "clickhouse:ch.example.com:8443"),
        ("http://[::1]:8123", "clickhouse:::1:8123"),
        ("http://odd host", "clickhouse:odd_host:8123"),
    ],
)
def test_a_pool_is_named_by_host_and_port_without_secrets(url, pool):
    assert get_clickhouse_pool(url) == pool


def test_a_pool_of_several_servers_is_named_after_the_first():
    urls = "http://ch1:8123, http://ch2:8123"
    assert (
        get_clickhouse_pool("", urls)
        == get_clickhouse_pool("http://ch1:8123")
        == "clickhouse:ch1:8123"
    )


def test_a_url_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="CLICKHOUSE_URL"):
        get_clickhouse_pool("localhost:8123")


IMPORTED = "from iscp_dagster import FullText, Mirror, SourceTable\n"


@pytest.mark.parametrize(
    ("text", "said", "cause"),
    [
        ("SourceTable('a.b', indexs=[])", "line 2: TypeError: SourceTable.*'indexs'", TypeError),
        ("FullText()", "line 2: TypeError: .*missing 1 required .*'text'", TypeError),
        ("SourceTable('oops', key='id')", "line 2: Source table 'oops': name it", ConfigError),
        ("\nt = SourceTable('a.b',", r"line 3: SyntaxError: '\(' was never closed", SyntaxError),
        ("import no_such_module", "line 2: ModuleNotFoundError: No .*'no_such_", ImportError),
        ("from iscp_dagster import Mirorr", "line 2: ImportError: .*'Mirorr'", ImportError),
        ("raise ValueError('one\\ntwo')", "line 2: ValueError: one two", ValueError),
        ("raise SystemExit(7)", "line 2: SystemExit: 7", SystemExit),
    ],
)
def test_a_mistake_in_a_file_of_declarations_names_file_and_line(
    tmp_path, monkeypatch, text, said, cause
):
    monkeypatch.setattr(assets, "__path__", [str(tmp_path / "assets")])
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "oops.py").write_text(IMPORTED + text + "\n")
    with pytest.raises(ConfigError, match=f"^assets/oops.py, {said}") as told:
        declared_by({})
    assert "\n" not in str(told.value)
    assert ("Correct the file" in str(told.value)) is (cause is not ConfigError)
    assert isinstance(told.value.__cause__, cause)


def test_a_file_of_declarations_that_is_gone_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(assets, "__path__", [str(tmp_path)])
    (tmp_path / "oops.py").symlink_to(tmp_path / "gone.py")
    with pytest.raises(ConfigError, match=r"^assets/oops\.py: .*No module named 'assets\.oops'"):
        declared_by({})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("Foo", "types has 'Foo' for the column 'n': no column can be kept as 'Foo'. Use"),
        ("Array(Itn8)", "no column can be kept as 'Itn8'"),
        ("UInt8)", r"expected the end, found '\)'"),
    ],
)
def test_a_type_that_is_none_is_told_where_it_is_declared(tmp_path, monkeypatch, asked, said):
    monkeypatch.setattr(assets, "__path__", [str(tmp_path)])
    index = f"Mirror(types={{'m': 'Variant(Time, String)', 'n': {asked!r}}})"
    text = f"{IMPORTED}t = SourceTable('a.b', key='id', indexes=[{index}])\n"
    (tmp_path / "oops.py").write_text(text)
    try:
        (error,) = next(e.left_out for e in declared_by({}) if e.name == "a.b")
        assert re.match(rf"assets/oops\.py: Index a\.b/mirror: .*{said}", str(error))
    finally:
        sys.modules.pop("assets.oops")
        del assets.oops


def test_what_is_stored_is_told_of_when_clickhouse_has_gone_since():
    """A failure here would fail the run, and with it the indexes still to come."""
    source = SourceTable("docs.symbols", key="id", indexes=[Mirror()])
    deployment = in_memory(get_utc_now)
    add(deployment.log, key())
    (claim,) = deployment.log.begin(over(key()), "run", {})
    fields = (DeltaField(name="id", type=Primitive("long")),)
    reading = ReadRequest(
        plan=ReadPlan(kind=ReadKind.SNAPSHOT, reason="first synchronization"), range=claim.range
    )
    store = deployment.make_index_store(source, Mirror(), fields)
    written = WriteResult(reading=reading, store=store, inserted={"acme": 3})
    now = deployment.clock()
    delivery = PendingCommit(claim=claim, written=written, published=now)
    context = build_output_context()
    ClickHouseIOManager(lambda: deployment).handle_output(context, delivery)
    shown = context.consume_logged_metadata()
    assert shown["rows_inserted"].value == 3
    assert "lost_columns" not in shown


@pytest.mark.parametrize(
    "other",
    [
        *("tenants_shop.t", "batch_sync_shop.t", "sync_shop.t", "load_shop.t", "verify_shop.t"),
        *("index_shop.t", "shop.t_indexes", "load_shop.t_indexes", "shop.t_tenants", "iscp.t"),
    ],
)
def test_no_name_of_one_table_is_another_s(other):
    tables = [
        SourceTable(name, key="id", tenant="x", indexes=[Mirror()], load=lambda _: None)
        for name in ("shop.t", other)
    ]
    definitions = build_definitions(tables, STUBS)
    jobs = [job.name for job in definitions.resolve_all_job_defs()]
    assert len(jobs) == len(set(jobs)) == 9
    assert all(definitions.resolve_job_def(name(table)) for table in tables for name in RUN_BY)


@pytest.mark.parametrize("other", [("a_b.c", "a.b_c"), ("a._b", "a_.b"), ("x._b__c", "x___b.c")])
def test_of_tables_of_one_name_in_dagster_the_second_is_left_out(other, caplog):
    tables = [SourceTable(name, key="id", indexes=[Mirror()]) for name in other]
    one, two = other
    definitions = build_definitions(tables, STUBS)
    database, _, table = one.partition(".")
    keys = {spec.key for spec in definitions.resolve_all_asset_specs()}
    assert keys == {AssetKey([database, table]), AssetKey([database, f"{table}_mirror"])}
    said = rf"\[10130\] The location: {one} and {two} would both have .*source table {two} is left"
    assert re.search(said, caplog.text)
    with pytest.raises(ConfigError, match=rf"{one} and {two} would both have .*; rename one"):
        build_definitions(tables, STUBS, environ={"ISCP_STRICT": "true"})
    with pytest.raises(ConfigError, match="ISCP_STRICT is 'yes'; use true or false"):
        build_definitions(tables, STUBS, environ={"ISCP_STRICT": "yes"})
