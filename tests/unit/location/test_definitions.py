"""What the location's settings make of its definitions."""

from __future__ import annotations

import runpy
import sys

import pytest
from dagster import AssetKey, Config, Definitions, build_output_context, mem_io_manager
from pydantic import BaseModel, Field

import assets
from iscp_dagster import Mirror, SourceTable
from iscp_dagster.api.discovery import load_endpoints, load_tables
from iscp_dagster.delta.read_plans import ReadKind, ReadPlan
from iscp_dagster.location.assets.io_manager import ClickHouseIOManager
from iscp_dagster.location.assets.maintenance import JOB_NAME_GETTERS
from iscp_dagster.location.assets.source_asset import to_dagster_config
from iscp_dagster.location.build import build_definitions, build_shared_definitions
from iscp_dagster.location.names import get_clickhouse_pool
from iscp_dagster.model.clock import get_utc_now
from iscp_dagster.model.declared.schema import DeltaField, Primitive
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.sync.iteration.outcomes import RowDelivery, WriteResult
from iscp_dagster.sync.reading.requests import ReadRequest
from support.clients.scripts import import_modules
from support.errors import assert_names, raises_naming
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
    nodes = [node for job in definitions.resolve_all_job_defs() for node in job.all_node_defs]
    ours = [node for node in nodes if node.pools and "docs_symbols" in node.name]
    return {node.name: set(node.pools) for node in ours}


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
    sensors = defined(**settings).sensors
    assert {sensor.name: sensor.minimum_interval_seconds for sensor in sensors} == seconds


@pytest.mark.parametrize("value", ["ten", "1.5", "0", "-3", "86401"])
def test_a_wrong_time_between_looks_is_refused(value):
    with raises_naming(ConfigError, "ISCP_SCAN_SECONDS", f"'{value}'", 1, 86_400):
        build_shared_definitions([], {}, environ={"ISCP_SCAN_SECONDS": value})


def test_all_that_a_person_sees_is_described(defined):
    definitions = defined()
    specs = definitions.resolve_all_asset_specs()
    jobs = [job for job in definitions.resolve_all_job_defs() if not job.name.startswith("__")]
    shown = [*specs, *jobs, *definitions.schedules, *definitions.sensors]
    assert [definition for definition in shown if not definition.description] == []


def test_a_module_s_other_definitions_for_dagster_are_in_the_location(
    tmp_path, monkeypatch, defined
):
    """As docs/library.md shows an asset of one's own beside its table."""
    package = tmp_path / "of_a_shop"
    package.mkdir()
    page = (ROOT / "docs/library.md").read_text()
    for name in ("orders", "totals"):
        example = page.partition(f'title="assets/{name}.py"\n')[2].split("```")[0]
        (package / f"{name}.py").write_text(example)
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
    assert {key.to_user_string() for key in definitions.resolve_all_asset_keys()} == own
    assert "daily_totals" in {job.name for job in definitions.resolve_all_job_defs()}
    assert "at_night" in {schedule.name for schedule in definitions.schedules}


def test_all_that_write_to_a_clickhouse_are_in_its_pool(defined):
    assert pools(defined()) == {name: {"clickhouse"} for name in WRITERS}
    definitions = defined(CLICKHOUSE_URL="http://me:secret@ch.example.com:8124")
    assert pools(definitions) == {name: {"clickhouse:ch.example.com:8124"} for name in WRITERS}


@pytest.mark.parametrize("load", [load_tables, load_endpoints])
@pytest.mark.parametrize("package", ["no_such", "no_such.within", "assets.no_such"])
def test_a_missing_module_is_named_with_its_variable(package, load):
    with raises_naming(ConfigError, "ISCP_ASSETS", f"'{package}'"):
        load({"ISCP_ASSETS": package})


def test_without_a_module_of_declarations_the_variable_is_named(monkeypatch):
    monkeypatch.setattr("iscp_dagster.api.discovery.DEFAULT_PACKAGE", "no_such")
    with raises_naming(ConfigError, "'no_such'", "ISCP_ASSETS"):
        load_tables({})


@pytest.mark.parametrize(
    ("urls", "pool"),
    [
        ([""], "clickhouse"),
        (["http://127.0.0.1:8123"], "clickhouse:127.0.0.1:8123"),
        (["https://me:secret@ch.example.com/?insert_quorum=2"], "clickhouse:ch.example.com:8443"),
        (["http://[::1]:8123"], "clickhouse:::1:8123"),
        (["http://odd host"], "clickhouse:odd_host:8123"),
        (["", "http://ch1:8123, http://ch2:8123"], "clickhouse:ch1:8123"),
    ],
)
def test_a_pool_is_named_by_the_first_host_and_port_without_secrets(urls, pool):
    assert get_clickhouse_pool(*urls) == pool


IMPORTED = "from iscp_dagster import FullText, Mirror, SourceTable\n"


@pytest.fixture
def write_declarations(tmp_path, monkeypatch):
    """Give a function that writes `assets/oops.py`, the only file of declarations."""
    monkeypatch.setattr(assets, "__path__", [str(tmp_path / "assets")])
    file = tmp_path / "assets" / "oops.py"
    file.parent.mkdir()
    yield lambda text: file.write_text(f"{IMPORTED}{text}\n")
    # A module that could be imported would be the next test's too.
    if sys.modules.pop("assets.oops", None):
        del assets.oops


@pytest.mark.parametrize(
    ("text", "values", "cause"),
    [
        ("SourceTable('a.b', indexs=[])", (2, "TypeError", "'indexs'"), TypeError),
        ("FullText()", (2, "TypeError", "'text'"), TypeError),
        ("SourceTable('oops', key='id')", (2, "'oops'", "database.table"), ConfigError),
        ("\nt = SourceTable('a.b',", (3, "SyntaxError", "'('"), SyntaxError),
        ("import no_such", (2, "ModuleNotFoundError", "'no_such'"), ImportError),
        ("from iscp_dagster import Mirorr", (2, "ImportError", "'Mirorr'"), ImportError),
        ("raise ValueError('one\\ntwo')", (2, "ValueError: one two"), ValueError),
        ("raise SystemExit(7)", (2, "SystemExit: 7"), SystemExit),
    ],
)
def test_a_mistake_in_a_file_of_declarations_is_named_with_file_and_line(
    write_declarations, text, values, cause
):
    write_declarations(text)
    line, *others = values
    with raises_naming(ConfigError, f"assets/oops.py, line {line}", *others) as caught:
        load_tables({})
    message, error = str(caught.value), caught.value.__cause__
    assert message.startswith("assets/oops.py")
    assert "\n" not in message
    assert isinstance(error, cause)
    assert message.endswith(str(error)) is (cause is ConfigError), "others get a remedy"


def test_a_dangling_link_to_a_file_of_declarations_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(assets, "__path__", [str(tmp_path)])
    (tmp_path / "oops.py").symlink_to(tmp_path / "gone.py")
    with raises_naming(ConfigError, "'assets.oops'") as caught:
        load_tables({})
    assert str(caught.value).startswith("assets/oops.py")


@pytest.mark.parametrize(
    ("type_", "values"),
    [("Foo", ["'Foo'"]), ("Array(Itn8)", ["'Itn8'"]), ("UInt8)", ["'UInt8)'", "')'"])],
)
def test_a_wrong_type_is_named_with_its_declaration(write_declarations, type_, values):
    index = f"Mirror(types={{'m': 'Variant(Time, String)', 'n': {type_!r}}})"
    write_declarations(f"t = SourceTable('a.b', key='id', indexes=[{index}])")
    (error,) = next(table.left_out for table in load_tables({}) if table.name == "a.b")
    assert str(error).startswith("assets/oops.py")
    assert_names(str(error), "a.b/mirror", "'n'", *values)


def test_an_iteration_is_reported_even_if_clickhouse_is_gone():
    """A failure here would fail the run, and with it the indexes still to come."""
    source = SourceTable("docs.symbols", key="id", indexes=[Mirror()])
    deployment = in_memory(get_utc_now)
    add(deployment.log, key())
    (claim,) = deployment.log.claim_jobs(over(key()), "run", {})
    id_ = DeltaField(name="id", type=Primitive("long"), nullable=False)
    fields = (id_, DeltaField(name="gross", type=Primitive("double")))
    plan = ReadPlan(kind=ReadKind.SNAPSHOT, reason="first synchronization")
    reading = ReadRequest(plan=plan, range=claim.range)
    store = deployment.make_index_store(source, Mirror(), fields)
    written = WriteResult(request=reading, store=store, inserted={"acme": 3})
    delivery = RowDelivery(claim=claim, written=written, published=deployment.clock())
    context = build_output_context()
    ClickHouseIOManager(lambda: deployment).handle_output(context, delivery)
    metadata = context.consume_logged_metadata()
    assert metadata["rows_inserted"].value == 3
    assert "lost_columns" not in metadata
    columns = metadata["dagster/column_schema"].schema.columns
    shown = {column.name: column.type for column in columns}
    assert shown == {"id": "Int64", "gross": "Nullable(Float64)"}


@pytest.mark.parametrize(
    "other",
    [
        *("tenants_shop.t", "batch_sync_shop.t", "sync_shop.t", "load_shop.t", "verify_shop.t"),
        *("index_shop.t", "shop.t_indexes", "load_shop.t_indexes", "shop.t_tenants", "iscp.t"),
    ],
)
def test_two_tables_share_no_name(other):
    options = {"key": "id", "tenant": "x", "indexes": [Mirror()], "load": lambda _: None}
    tables = [SourceTable(name, **options) for name in ("shop.t", other)]
    definitions = build_definitions(tables, STUBS)
    jobs = [job.name for job in definitions.resolve_all_job_defs()]
    assert len(jobs) == len(set(jobs)) == 9
    assert all(
        definitions.resolve_job_def(name(table)) for table in tables for name in JOB_NAME_GETTERS
    )


@pytest.mark.parametrize("other", [("a_b.c", "a.b_c"), ("a._b", "a_.b"), ("x._b__c", "x___b.c")])
def test_the_second_table_with_the_same_name_in_dagster_is_left_out(other, caplog):
    tables = [SourceTable(name, key="id", indexes=[Mirror()]) for name in other]
    one, two = other
    definitions = build_definitions(tables, STUBS)
    database, _, table = one.partition(".")
    keys = {spec.key for spec in definitions.resolve_all_asset_specs()}
    assert keys == {AssetKey([database, table]), AssetKey([database, f"{table}_mirror"])}
    assert_names(caplog.text, "[10130]", one, two)
    with raises_naming(ConfigError, one, two):
        build_definitions(tables, STUBS, environ={"ISCP_STRICT": "true"})
    with raises_naming(ConfigError, "ISCP_STRICT", "'yes'"):
        build_definitions(tables, STUBS, environ={"ISCP_STRICT": "yes"})


class Plain(BaseModel):
    summary: bool = Field(default=False, description="Less of it.")
    most: int


def test_the_options_of_a_load_are_a_model_of_pydantic_or_of_dagster():
    config = to_dagster_config(Plain)
    shown = {
        name: (field.config_type.key, field.is_required, field.description)
        for name, field in config.to_fields_dict().items()
    }
    assert shown == {
        "summary": ("Noneable.BoolSourceType", False, "Less of it."),
        "most": ("IntSourceType", True, None),
    }
    assert config.__name__ == "Plain"
    assert to_dagster_config(Config) is Config


def test_the_demo_s_declarations_are_read_without_dagster():
    """Commands of `iscp` read them; importing Dagster would make them take half as long again."""
    assert not {"dagster", "pyspark"} & import_modules("assets.docs")
