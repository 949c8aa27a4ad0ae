"""A table in `defs.yaml`: the same definitions as in Python, and errors that say where."""

import json
from dataclasses import fields

import pytest
import yaml
from dagster import BetaWarning, Config, PreviewWarning
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster.components.core.component_tree import ComponentTreeException
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
buckets: 8
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


IN_PYTHON = {"path": "/lake/orders", "load": load, "tenants": tenants, "load_config": Config}
"""What the attributes of `ORDERS` that name something are in Python."""


@pytest.fixture
def tables(monkeypatch):
    """Return the tables of the two texts, declared in Python."""
    monkeypatch.setenv("ORDERS", IN_PYTHON["path"])
    kinds = {kind.kind: kind for kind in (Mirror, FullText, Vector)}
    orders = yaml.safe_load(ORDERS) | IN_PYTHON
    orders["indexes"] = [kinds[index.pop("kind")](**index) for index in orders["indexes"]]
    return [SourceTable("shop.events", indexes=[Mirror(append=True)]), SourceTable(**orders)]


@pytest.fixture
def project():
    with create_defs_folder_sandbox() as sandbox:
        yield sandbox


def write(project, **folders):
    """Write a `defs.yaml` in each folder; each of its texts has the attributes of one table."""
    for folder, texts in folders.items():
        file = project.defs_folder_path / folder / "defs.yaml"
        file.parent.mkdir(exist_ok=True)
        tables = [{"type": TYPE, "attributes": yaml.safe_load(text)} for text in texts]
        file.write_text(yaml.safe_dump_all(tables, sort_keys=False))


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


@pytest.mark.parametrize(
    ("servers", "folders"),
    [(1, {"events": [EVENTS], "orders": [ORDERS]}), (2, {"shop": [EVENTS, ORDERS]})],
)
def test_tables_in_yaml_and_in_python_make_the_same_definitions(
    project, tables, monkeypatch, servers, folders
):
    urls = ",".join(f"http://ch{number}:8123" for number in range(servers))
    monkeypatch.setenv("CLICKHOUSE_URLS", urls)
    write(project, **folders)
    snapshot = build(project)
    assert snapshot == make_snapshot(build_definitions(tables, resources_from_environment()))
    sensors = {sensor["name"] for sensor in snapshot["external_sensor_datas"]}
    assert sensors == {"iscp_news", "iscp_runner"}


def test_yaml_has_every_option_of_tables_and_indexes():
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
    trades = SourceTable("shop.trades", key="id", tenant="desk", indexes=[Mirror(), Changes()])
    huge, big = attributes["views"]
    big = View(**big, of=trades)
    huge = View(**huge | {"of": big})
    (alerts,) = attributes["endpoints"]
    alerts = Endpoint(**alerts)
    large, of_table = attributes["triggers"]
    del large["of"]
    large = Trigger(**large | {"to": [alerts]}, on=huge)
    # An endpoint of another table.
    other = "name: shop.bonds\nkey: id\nindexes: [{kind: changes}]\n"
    other += 'triggers: [{name: bonds, match: "amount > 3", to: [alerts]}]\n'
    write(project, trades=[TRADES], a_bonds=[other])
    bonds = SourceTable("shop.bonds", key="id", indexes=[Changes()])
    triggers = [large, Trigger(**of_table, on=trades)]
    triggers += [Trigger("bonds", on=bonds, match="amount > 3", to=[alerts])]
    declared = {"views": [big, huge], "triggers": triggers}
    in_python = build_definitions([bonds, trades], resources_from_environment(), **declared)
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
    ("text", "part", "wrong", "values"),
    [
        (
            *(TRADES, "  - name: big\n", "  - name: big\n    of: huge\n"),
            ("defs.yaml:9", "attributes.views", "cycle", "'big'", "'huge'"),
        ),
        (TRADES, "of: big", "of: bg", ("attributes.views", "'huge'", "'bg'")),
        (TRADES, "of: huge\n", "of: hg\n", ("attributes.triggers.0", "'hg'", "'shop.trades'")),
        (TRADES, "amount > 1\n", "''\n", ("attributes.triggers.1", "'any'", "match=''")),
        (TRADES, "name: alerts", "name: a b", ("attributes.endpoints.0", "'a b'")),
        (TRADES, "amount > 100", "' '", ("attributes.views.1", "'big'", "where=' '")),
        (
            *(EVENTS, "append: true", "name: no good"),
            ("defs.yaml:5", "attributes.indexes.0", "'no good'"),
        ),
        (EVENTS, "true", "false", ("defs.yaml:2", "attributes", "'shop.events'", "append=True")),
        (EVENTS, "true", "true\nload: no:load", ("defs.yaml:7", "attributes.load", "'no:load'")),
        (EVENTS, "true", "true\ntenants: here", ("defs.yaml:7", "attributes.tenants", "'here'")),
        (EVENTS, "true", "3", ("defs.yaml:6", "attributes.indexes.0.append", "type=bool_type")),
        (
            *(EVENTS, "mirror", "mirrow"),
            ("defs.yaml:5", "attributes.indexes.0", "'mirror'", "'text'", "'vector'"),
        ),
        (
            *(EVENTS, "true", "true\nkey_: id"),
            ("defs.yaml:7", "attributes.key_", "type=extra_forbidden"),
        ),
        (EVENTS, "name", "nom", ("defs.yaml:2", "attributes.name", "type=missing")),
        (EVENTS, EVENTS, "", ("shop/defs.yaml", "dg scaffold defs")),
        (
            *(EVENTS, EVENTS, "name: a.b\nkey: id\nindexes: '{{ env.ORDERS }}'\n"),
            ("defs.yaml:2", "attributes", "'/lake'"),
        ),
        (
            *(EVENTS, EVENTS, "name: a.b\nindexes: \"{{ ['x'] }}\"\n"),
            ("defs.yaml:4", "attributes.indexes.0", "'x'", "mirror", "text"),
        ),
    ],
)
def test_a_wrong_declaration_is_named_with_its_place(
    project, monkeypatch, text, part, wrong, values
):
    monkeypatch.setenv("ORDERS", "/lake")
    write(project, shop=[replace_part(text, part, wrong)])
    assert_names(str(find_failure(project)), *values)


def test_what_is_inconsistent_is_left_out_and_named_with_its_place(project, caplog):
    trades = replace_part(TRADES, "to: [alerts]", "to: [lost]")
    write(project, trades=[trades], one=[EVENTS], two=[EVENTS])
    with project.build_all_defs() as definitions:
        keys = [spec.key.to_user_string() for spec in definitions.resolve_all_asset_specs()]
    assert {"shop/trades", "shop/trades_mirror", "shop/events"} < set(keys)
    assert "shop/trades_large" not in keys
    assert len(keys) == len(set(keys))
    folder = project.defs_folder_path
    assert_names(caplog.text, "[10120]", folder / "trades" / "defs.yaml", "'large'", "to='lost'")
    assert_names(caplog.text, "[10130]", folder / "two" / "defs.yaml:2", "'shop.events'")


def test_only_templates_become_numbers(monkeypatch):
    monkeypatch.setenv("DIMENSION", "5")
    index = {"kind": "vector", "vector": "v", "dimension": "{{ env.DIMENSION | int }}"}
    attributes = {"name": "a.b", "key": "id", "description": "1", "indexes": [index]}
    table = SourceTableComponent.from_attributes_dict(attributes=attributes).table
    assert (table.indexes[0].dimension, table.description) == (5, "1")


@pytest.mark.parametrize("form", ["yaml", "python"])
def test_a_scaffolded_table_loads_unchanged(project, form):
    options = {"name": "shop.orders", "key": "number", "tenant": "tenant", "path": "/lake"}
    for name, parameters in (("orders", {"scaffold_params": options}), ("bare", {})):
        project.scaffold_component(SourceTableComponent, name, scaffold_format=form, **parameters)
    orders = SourceTable(**options, indexes=[Mirror()])
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


def test_iscp_finds_what_a_project_declares_by_its_definitions(project, tables, monkeypatch):
    write(project, events=[EVENTS], orders=[ORDERS], trades=[TRADES])
    package = project.defs_folder_path.parent
    (package / "definitions.py").write_text(PROJECT)
    monkeypatch.syspath_prepend(str(package.parent))
    environ = {"ISCP_ASSETS": package.name}
    *others, trades = load_tables(environ)
    assert others == [expand_shards(table, 1) for table in tables]
    names = ["mirror", "changes", "big", "huge", "large", "any"]
    assert [consumer.name for consumer in trades.consumers] == names
    (endpoint,) = load_endpoints(environ)
    assert trades.get_trigger("large").to == (endpoint,)
    write(project, events=[EVENTS.replace("append: true", "priority: high")])
    place = project.defs_folder_path / "events" / "defs.yaml"
    with raises_naming(ConfigError, f"attributes.indexes.0.priority at {place}:6", "'high'"):
        load_tables(environ)
