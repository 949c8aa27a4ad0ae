"""A table in `defs.yaml`: the same definitions as in Python, and errors that say where."""

import json
from dataclasses import fields, replace
from importlib.metadata import entry_points

import pytest
import yaml
from dagster import BetaWarning, Config, PreviewWarning
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.core.package_entry import get_package_objects_in_module
from dagster.components.testing.utils import create_defs_folder_sandbox
from dagster_shared.serdes import serialize_value
from pydantic import ValidationError
from pydantic.warnings import PydanticDeprecatedSince20

from iscp_dagster import (
    Changes,
    Endpoint,
    FullText,
    Mirror,
    SourceTable,
    SourceTableComponent,
    Trigger,
    Vector,
    View,
    build_definitions,
    resources_from_environment,
)
from iscp_dagster.api.discovery import load_endpoints, load_tables
from iscp_dagster.location.component.schema import build_table_model
from iscp_dagster.model.declared.tables import expand_shards
from iscp_dagster.model.errors import ConfigError
from support.errors import assert_names, raises_naming

TYPE = "iscp_dagster.SourceTableComponent"
# Dagster warns about what it does itself.
pytestmark = [
    *(
        pytest.mark.filterwarnings(f"ignore::{kind.__module__}.{kind.__name__}")
        for kind in (BetaWarning, PreviewWarning, PydanticDeprecatedSince20)
    ),
    pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition.environment_vars`"),
]


def load(_):
    """A source's load, by its import path."""


def tenants():
    return ["acme"]


ORDERS = f"""
name: shop.orders
key: [id, line]
tenant: tenant
path: "{{{{ env.ORDERS }}}}"
on_replace: rebuild
nulls: json
load: {__name__}:load
tenants: {__name__}:tenants
load_config: dagster:Config
description: "2024"
owners: ["team:shop"]
tags: {{domain: "1"}}
indexes:
  - kind: mirror
    columns: [body]
    types: {{body: LowCardinality(String)}}
    priority: 3
    errors: dead_letter
    sharding: {{hash_function: cityHash64, key: id}}
  - kind: text
    text: [body]
    tokenizer: ngrams(3)
    exclude: [embedding]
    nulls: {{tags: flag}}
    auto_register: false
    description: words
    owners: [a@b.example]
    tags: {{weight: "0.5"}}
  - kind: vector
    name: near
    vector: embedding
    dimension: 3
    metric: l2
    quantization: i8
    connectivity: 16
    expansion: 64
"""
TRADES = """
name: shop.trades
key: id
tenant: desk
indexes: [{kind: mirror}, {kind: changes}]
views:
  - name: huge
    of: big
    where: gross > 1000
    description: the largest
    owners: [team:shop]
    tags: {domain: "1"}
    priority: 3
    types: {gross: Float64}
    nulls: flag
    auto_register: false
  - name: big
    where: amount > 100
    columns: {gross: amount * 1.19}
triggers:
  - name: large
    of: huge
    match: gross > 5000
    unmatch: gross < 4000
    columns: [id, gross]
    initial: fire
    to: [alerts]
    priority: 4
    description: tells
    owners: [team:shop]
    tags: {domain: "2"}
    auto_register: false
  - name: any
    match: amount > 1
endpoints:
  - name: alerts
    url: https://example.com/hook
    secrets: [ALERTS_SECRET]
"""
EVENTS = "name: shop.events\nindexes:\n  - kind: mirror\n    append: true\n"


@pytest.fixture
def tables(monkeypatch):
    """Return the tables of the two texts, declared in Python."""
    monkeypatch.setenv("ORDERS", "/lake/orders")
    orders = SourceTable(
        "shop.orders",
        key=["id", "line"],
        tenant="tenant",
        path="/lake/orders",
        on_replace="rebuild",
        nulls="json",
        load=load,
        tenants=tenants,
        load_config=Config,
        description="2024",
        owners=["team:shop"],
        tags={"domain": "1"},
        indexes=[
            Mirror(
                columns=["body"],
                types={"body": "LowCardinality(String)"},
                priority=3,
                errors="dead_letter",
                sharding={"hash_function": "cityHash64", "key": "id"},
            ),
            FullText(
                ["body"],
                tokenizer="ngrams(3)",
                exclude=["embedding"],
                nulls={"tags": "flag"},
                auto_register=False,
                description="words",
                owners=["a@b.example"],
                tags={"weight": "0.5"},
            ),
            Vector(
                "embedding",
                name="near",
                dimension=3,
                metric="l2",
                quantization="i8",
                connectivity=16,
                expansion=64,
            ),
        ],
    )
    return [SourceTable("shop.events", indexes=[Mirror(append=True)]), orders]


@pytest.fixture
def project():
    with create_defs_folder_sandbox() as sandbox:
        yield sandbox


def write(project, **texts):
    """Write a `defs.yaml` with each text as the table's attributes, in a folder of that name."""
    for folder, text in texts.items():
        file = project.defs_folder_path / folder / "defs.yaml"
        file.parent.mkdir(exist_ok=True)
        body = {"type": TYPE, "attributes": yaml.safe_load(text)}
        file.write_text(yaml.safe_dump(body, sort_keys=False))


def replace_part(text, part, other):
    assert part in text
    return text.replace(part, other)


def build(project):
    """Return what Dagster's processes exchange about the project's definitions."""
    with project.build_all_defs() as definitions:
        return make_snapshot(definitions)


def make_snapshot(definitions):
    """Return what Dagster's processes exchange, except where each definition was declared."""
    snapshot = RepositorySnap.from_def(definitions.get_repository_def())
    return remove_origins(json.loads(serialize_value(snapshot)))


ORIGINS = {"dagster/code_references", "dagster/component_origin", "plugin_component_types_json"}


def remove_origins(value):
    if isinstance(value, dict):
        kept = {name: remove_origins(part) for name, part in value.items() if name not in ORIGINS}
        return {name: part for name, part in kept.items() if name != "component_tree" and part}
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, dict)]
        origins = [entry for entry in entries if entry.get("label") in ORIGINS]
        return [remove_origins(entry) for entry in value if entry not in origins]
    return value


def list_asset_keys(project):
    with project.build_all_defs() as definitions:
        return [spec.key.to_user_string() for spec in definitions.resolve_all_asset_specs()]


@pytest.mark.parametrize("servers", [1, 2])
def test_tables_in_yaml_and_in_python_make_the_same_definitions(
    project, tables, monkeypatch, servers
):
    urls = ",".join(f"http://ch{number}:8123" for number in range(servers))
    monkeypatch.setenv("CLICKHOUSE_URLS", urls)
    write(project, events=EVENTS, orders=ORDERS)
    snapshot = build(project)
    assert snapshot == make_snapshot(build_definitions(tables, resources_from_environment()))
    sensors = {sensor["name"] for sensor in snapshot["external_sensor_datas"]}
    assert sensors == {"iscp_news", "iscp_runner"}


def test_yaml_has_every_option_of_tables_and_indexes(tables):
    """Every field of a table and its indexes has a value other than its default above."""
    attributes = yaml.safe_load(ORDERS)
    used = set(attributes).union(*attributes["indexes"])
    kinds = (SourceTable, Mirror, FullText, Vector)
    options = {field.name for kind in kinds for field in fields(kind)}
    assert used - options == {"kind"}
    # A table has either this or a key; the other table has this one.
    assert options - used == {"append", "left_out", "services", "triggers"}
    of_table = {field.name for field in fields(SourceTable)} - {"left_out"}
    assert set(build_table_model().model_fields) == of_table | {"views", "endpoints"}


def test_yaml_has_every_option_of_views_and_triggers(project):
    attributes = yaml.safe_load(TRADES)
    for kind, name in ((View, "views"), (Trigger, "triggers")):
        # YAML reads the word `on` as true.
        options = {"of" if field.name == "on" else field.name for field in fields(kind)}
        assert options == set().union(*attributes[name])
    trades = SourceTable(
        "shop.trades", key="id", tenant="desk", indexes=[Mirror(), Changes(name="changes")]
    )
    big = View("big", of=trades, where="amount > 100", columns={"gross": "amount * 1.19"})
    whole = {"owners": ["team:shop"], "auto_register": False}
    huge = View(
        "huge",
        of=big,
        where="gross > 1000",
        description="the largest",
        tags={"domain": "1"},
        priority=3,
        types={"gross": "Float64"},
        nulls="flag",
        **whole,
    )
    alerts = Endpoint("alerts", url="https://example.com/hook", secrets=["ALERTS_SECRET"])
    large = Trigger(
        "large",
        on=huge,
        match="gross > 5000",
        unmatch="gross < 4000",
        columns=["id", "gross"],
        initial="fire",
        to=[alerts],
        priority=4,
        description="tells",
        tags={"domain": "2"},
        **whole,
    )
    triggers = [large, Trigger("any", on=trades, match="amount > 1")]
    # An endpoint of another table.
    other = TRADES.replace("shop.trades", "shop.bonds").partition("triggers:")[0]
    other += 'triggers: [{name: bonds, match: "amount > 3", to: [alerts]}]\n'
    write(project, trades=TRADES, a_bonds=other)
    bonds = replace(trades, name="shop.bonds")
    big_bonds = replace(big, of=bonds)
    in_python = build_definitions(
        [bonds, trades],
        resources_from_environment(),
        views=[big, huge, big_bonds, replace(huge, of=big_bonds)],
        triggers=[*triggers, Trigger("bonds", on=bonds, match="amount > 3", to=[alerts])],
    )
    assert build(project) == make_snapshot(in_python)


def find_failure(project):
    """Return the error for which the definitions cannot be built."""
    with pytest.raises(ComponentTreeException) as failed, project.build_all_defs():
        pass
    error = failed.value
    while not isinstance(error, ConfigError | ValidationError):
        assert error.__cause__ is not None, error
        error = error.__cause__
    return error


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (
            replace_part(TRADES, "  - name: big\n", "  - name: big\n    of: huge\n"),
            ("defs.yaml:9", "attributes.views", "cycle", "'big'", "'huge'"),
        ),
        (replace_part(TRADES, "of: big", "of: bg"), ("attributes.views", "'huge'", "'bg'")),
        (
            replace_part(TRADES, "of: huge\n", "of: hg\n"),
            ("attributes.triggers.0", "'hg'", "'shop.trades'"),
        ),
        (
            replace_part(TRADES, "match: amount > 1\n", "match: ''\n"),
            ("attributes.triggers.1", "'any'", "match=''"),
        ),
        (replace_part(TRADES, "name: any", "name: a:b"), ("attributes.triggers.1", "'a:b'")),
        (replace_part(TRADES, "name: alerts", "name: a b"), ("attributes.endpoints.0", "'a b'")),
        (
            replace_part(TRADES, "where: amount > 100", "where: ' '"),
            ("attributes.views.1", "'big'", "where=' '"),
        ),
        (
            replace_part(EVENTS, "append: true", "name: no good"),
            ("defs.yaml:5", "attributes.indexes.0", "'no good'"),
        ),
        (
            replace_part(EVENTS, "append: true", "append: false"),
            ("defs.yaml:2", "attributes", "'shop.events'", "append=True"),
        ),
        (EVENTS + "load: nowhere:load\n", ("defs.yaml:7", "attributes.load", "'nowhere:load'")),
        (EVENTS + "tenants: here\n", ("defs.yaml:7", "attributes.tenants", "'here'")),
        (
            "name: a.b\nkey: id\nindexes: '{{ env.ORDERS }}'\n",
            ("defs.yaml:2", "attributes", "'/lake'"),
        ),
        (
            "name: a.b\nindexes: \"{{ ['x'] }}\"\n",
            ("defs.yaml:4", "attributes.indexes.0", "'x'", "mirror", "text"),
        ),
        ("", ("shop/defs.yaml", "dg scaffold defs")),
        (
            replace_part(EVENTS, "append: true", "append: 3"),
            ("defs.yaml:6", "attributes.indexes.0.append", "type=bool_type"),
        ),
        (
            replace_part(EVENTS, "mirror", "mirrow"),
            ("defs.yaml:5", "attributes.indexes.0", "'mirror'", "'text'", "'vector'"),
        ),
        (EVENTS + "key_: id\n", ("defs.yaml:7", "attributes.key_", "type=extra_forbidden")),
        (
            replace_part(EVENTS, "name", "nom"),
            ("defs.yaml:2", "attributes.name", "type=missing"),
        ),
    ],
)
def test_a_wrong_declaration_is_named_with_its_place(project, monkeypatch, text, values):
    monkeypatch.setenv("ORDERS", "/lake")
    write(project, shop=text)
    assert_names(str(find_failure(project)), *values)


@pytest.mark.parametrize(
    ("part", "other", "kept", "values"),
    [
        ("to: [alerts]", "to: [lost]", 0, ["to='lost'"]),
        ("name: any", "name: large", 1, ["huge", "shop.trades"]),
    ],
)
def test_an_inconsistent_trigger_is_left_out_and_named_with_its_place(
    project, part, other, kept, values, caplog
):
    write(project, trades=replace_part(TRADES, part, other))
    keys = list_asset_keys(project)
    assert {"shop/trades", "shop/trades_mirror"} < set(keys)
    assert keys.count("shop/trades_large") == kept
    place = project.defs_folder_path / "trades" / "defs.yaml"
    assert_names(caplog.text, "[10120]", place, "'large'", *values)


def test_the_second_declaration_of_a_table_is_left_out(project, caplog):
    write(project, one=EVENTS, two=EVENTS)
    keys = list_asset_keys(project)
    assert len(keys) == len(set(keys)) > 1
    place = project.defs_folder_path / "two" / "defs.yaml:2"
    assert_names(caplog.text, "[10130]", place, "'shop.events'")


def test_dagster_finds_the_component_by_the_package_s_entry_point():
    (entry_point,) = entry_points(group="dagster_dg_cli.registry_modules", name="iscp_dagster")
    objects = dict(get_package_objects_in_module(entry_point.load()))
    assert objects == {"SourceTableComponent": SourceTableComponent}


def test_several_tables_of_one_file_are_one_location(project, tables):
    folder = project.defs_folder_path / "shop"
    folder.mkdir()
    documents = [{"type": TYPE, "attributes": yaml.safe_load(text)} for text in (EVENTS, ORDERS)]
    (folder / "defs.yaml").write_text(yaml.safe_dump_all(documents))
    in_python = build_definitions(tables, resources_from_environment())
    assert build(project) == make_snapshot(in_python)


def test_only_templates_become_numbers(monkeypatch):
    monkeypatch.setenv("DIMENSION", "5")
    index = {"kind": "vector", "vector": "v", "dimension": "{{ env.DIMENSION | int }}"}
    attributes = {"name": "a.b", "key": "id", "description": "1", "indexes": [index]}
    table = SourceTableComponent.from_attributes_dict(attributes=attributes).table
    assert (table.indexes[0].dimension, table.description) == (5, "1")


@pytest.mark.parametrize("form", ["yaml", "python"])
def test_a_scaffolded_table_loads_unchanged(project, form):
    options = {"name": "shop.orders", "key": "number", "tenant": "tenant", "path": "/lake"}
    project.scaffold_component(
        SourceTableComponent, "orders", scaffold_params=options, scaffold_format=form
    )
    project.scaffold_component(SourceTableComponent, "bare", scaffold_format=form)
    orders = SourceTable(
        "shop.orders", key="number", tenant="tenant", path="/lake", indexes=[Mirror()]
    )
    bare = SourceTable("my_database.bare", key="id", indexes=[Mirror()])
    with project.build_component_tree() as tree:
        components = tree.get_all_components(SourceTableComponent)
        assert [component.table for component in components] == [bare, orders]
        assert len(tree.build_defs().sensors) == 2


def test_a_wrong_name_is_refused_before_there_is_a_file(project):
    with raises_naming(ConfigError, "'orders'", "database.table"):
        project.scaffold_component(SourceTableComponent, "a", scaffold_params={"name": "orders"})
    assert not list(project.defs_folder_path.rglob("*.yaml"))


def test_a_function_without_its_return_type_is_refused(project):
    project.scaffold_component(SourceTableComponent, "bare", scaffold_format="python")
    project.scaffold_component(SourceTableComponent, "shown")
    file = project.defs_folder_path / "bare" / "component.py"
    file.write_text(file.read_text().replace(" -> SourceTableComponent", ""))
    error = find_failure(project)
    assert_names(str(error), "'my_database.bare'", "-> SourceTableComponent")


PROJECT = """from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__))
"""


def make_importable(project, monkeypatch):
    """Give the project definitions, and let it be imported; return its package's folder."""
    package = project.defs_folder_path.parent
    (package / "definitions.py").write_text(PROJECT)
    monkeypatch.syspath_prepend(str(package.parent))
    return package


def test_iscp_finds_the_tables_of_a_project_by_its_definitions(project, tables, monkeypatch):
    write(project, events=EVENTS, orders=ORDERS)
    package = make_importable(project, monkeypatch)
    assert load_tables({"ISCP_ASSETS": package.name}) == [
        expand_shards(table, 1) for table in tables
    ]
    write(project, events=EVENTS.replace("append: true", "priority: high"))
    place = project.defs_folder_path / "events" / "defs.yaml"
    with raises_naming(ConfigError, f"attributes.indexes.0.priority at {place}:6", "'high'"):
        load_tables({"ISCP_ASSETS": package.name})


def test_iscp_finds_the_views_and_triggers_of_a_project(project, monkeypatch):
    write(project, trades=TRADES)
    package = make_importable(project, monkeypatch)
    (table,) = load_tables({"ISCP_ASSETS": package.name})
    names = ["mirror", "changes", "big", "huge", "large", "any"]
    assert [consumer.name for consumer in table.consumers] == names
    (endpoint,) = load_endpoints({"ISCP_ASSETS": package.name})
    assert table.get_trigger("large").to == (endpoint,)


def test_tables_of_definitions_that_python_builds_are_found_once(tmp_path, monkeypatch):
    (tmp_path / "many.py").write_text(
        "from dagster import Definitions\n"
        "from iscp_dagster import *\n"
        "named = SourceTable('a.named', key='id', indexes=[Mirror()])\n"
        "unnamed = [SourceTable('a.unnamed', key='id', indexes=[Mirror()])]\n"
        "own = build_definitions([named, *unnamed], resources_from_environment())\n"
        "defs = Definitions.merge(own, Definitions())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [table.name for table in load_tables({"ISCP_ASSETS": "many"})] == [
        "a.named",
        "a.unnamed",
    ]
