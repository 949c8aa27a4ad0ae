"""A table in `defs.yaml`: the same definitions as in Python, and errors that say where."""

import json
import re
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
from iscp_dagster.model.errors import ConfigError, IscpError

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


def write(project, **attributes):
    """Write a `defs.yaml` for each."""
    for folder, said in attributes.items():
        place = project.defs_folder_path / folder
        place.mkdir(exist_ok=True)
        body = {"type": TYPE, "attributes": yaml.safe_load(said)}
        (place / "defs.yaml").write_text(yaml.safe_dump(body, sort_keys=False))


def snapshot(definitions):
    """Return all that Dagster's processes exchange about them, except where they were declared."""
    return plain(
        json.loads(serialize_value(RepositorySnap.from_def(definitions.get_repository_def())))
    )


ORIGIN = {"dagster/code_references", "dagster/component_origin", "plugin_component_types_json"}


def plain(value):
    if isinstance(value, dict):
        kept = {name: plain(each) for name, each in value.items() if name not in ORIGIN}
        return {name: each for name, each in kept.items() if name != "component_tree" and each}
    if isinstance(value, list):
        entries = [each for each in value if isinstance(each, dict)]
        origin = [each for each in entries if each.get("label") in ORIGIN]
        return [plain(each) for each in value if each not in origin]
    return value


@pytest.mark.parametrize("servers", [1, 2])
def test_tables_in_yaml_are_the_definitions_of_tables_in_python(
    project, tables, monkeypatch, servers
):
    urls = ",".join(f"http://ch{number}:8123" for number in range(servers))
    monkeypatch.setenv("CLICKHOUSE_URLS", urls)
    write(project, events=EVENTS, orders=ORDERS)
    with project.build_all_defs() as found:
        declared = snapshot(found)
    assert declared == snapshot(build_definitions(tables, resources_from_environment()))
    sensors = {each["name"] for each in declared["external_sensor_datas"]}
    assert sensors == {"iscp_news", "iscp_runner"}


def test_yaml_says_all_that_python_says(tables):
    """Every field of a table and its indexes has a value other than its default above."""
    said = yaml.safe_load(ORDERS)
    given = set(said).union(*said["indexes"])
    kinds = (SourceTable, Mirror, FullText, Vector)
    offered = {each.name for kind in kinds for each in fields(kind)}
    assert given - offered == {"kind"}
    # A table has either this or a key; the other table has this one.
    assert offered - given == {"append", "left_out", "services", "triggers"}
    said = {each.name for each in fields(SourceTable)} - {"left_out"}
    assert set(build_table_model().model_fields) == said | {"views", "endpoints"}


def test_yaml_says_all_that_python_says_of_what_is_over_a_table(project):
    said = yaml.safe_load(TRADES)
    for kind, here in ((View, "views"), (Trigger, "triggers")):
        given = set().union(*said[here])
        # YAML reads the word `on` as true.
        assert {"of" if each.name == "on" else each.name for each in fields(kind)} == given
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
    with project.build_all_defs() as found:
        declared = snapshot(found)
    bonds = replace(trades, name="shop.bonds")
    big_bonds = replace(big, of=bonds)
    in_python = build_definitions(
        [bonds, trades],
        resources_from_environment(),
        views=[big, huge, big_bonds, replace(huge, of=big_bonds)],
        triggers=[*triggers, Trigger("bonds", on=bonds, match="amount > 3", to=[alerts])],
    )
    assert declared == snapshot(in_python)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            "  - name: big\n",
            "  - name: big\n    of: huge\n",
            r"defs\.yaml:9, attributes\.views: The views form a cycle: '\w+' of '\w+' of",
        ),
        ("of: big", "of: bg", r"attributes\.views: View 'huge': of='bg' is neither the table"),
        (
            "of: huge\n",
            "of: hg\n",
            r"attributes\.triggers\.0: 'hg' is neither the table 'shop\.trades' nor a view",
        ),
        ("match: amount > 1\n", "match: ''\n", r"attributes\.triggers\.1: Trigger 'any': match="),
        ("name: any", "name: a:b", r"attributes\.triggers\.1: The trigger name 'a:b' has a ':'"),
        ("name: alerts", "name: a b", r"attributes\.endpoints\.0: The endpoint name 'a b'"),
        ("where: amount > 100", "where: ' '", r"attributes\.views\.1: View 'big': its predicate"),
    ],
)
def test_what_is_wrong_over_a_table_is_told_with_its_place(project, before, after, told):
    assert before in TRADES
    write(project, trades=TRADES.replace(before, after))
    assert re.search(told, str(failure(project, ConfigError)))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("to: [alerts]", "to: [lost]", "Trigger 'large': to='lost' is not an endpoint"),
        ("name: any", "name: large", "Trigger 'large' is declared twice in the location"),
    ],
)
def test_what_does_not_fit_is_left_out_and_told_with_its_place(
    project, before, after, told, caplog
):
    assert before in TRADES
    write(project, trades=TRADES.replace(before, after))
    with project.build_all_defs() as definitions:
        keys = {spec.key.to_user_string() for spec in definitions.resolve_all_asset_specs()}
    assert {"shop/trades", "shop/trades_mirror"} < keys
    place = project.defs_folder_path / "trades" / "defs.yaml"
    assert re.search(rf"\[10120\] {place}:\d+: {told}.* the trigger large is left out", caplog.text)


def test_dagster_offers_it_by_the_packages_entry_point():
    (offered,) = entry_points(group="dagster_dg_cli.registry_modules", name="iscp_dagster")
    objects = dict(get_package_objects_in_module(offered.load()))
    assert objects == {"SourceTableComponent": SourceTableComponent}


def test_several_tables_of_one_file_are_one_location(project, tables):
    place = project.defs_folder_path / "shop"
    place.mkdir()
    documents = [{"type": TYPE, "attributes": yaml.safe_load(said)} for said in (EVENTS, ORDERS)]
    (place / "defs.yaml").write_text(yaml.safe_dump_all(documents))
    with project.build_all_defs() as found:
        assert snapshot(found) == snapshot(build_definitions(tables, resources_from_environment()))


def test_templates_give_numbers_lists_and_functions(monkeypatch):
    monkeypatch.setenv("DIMENSION", "5")
    index = {"kind": "vector", "vector": "v", "dimension": "{{ env.DIMENSION | int }}"}
    said = {"name": "a.b", "key": "id", "description": "1", "indexes": [index]}
    (made,) = SourceTableComponent.from_attributes_dict(attributes=said).table.indexes
    assert made.dimension == 5
    assert SourceTableComponent.from_attributes_dict(attributes=said).table.description == "1"


@pytest.mark.parametrize(
    ("said", "line", "told"),
    [
        (EVENTS.replace("append: true", "append: 3"), 6, "indexes.0.append .*valid boolean"),
        (EVENTS.replace("mirror", "mirrow"), 5, "indexes.0 .*'mirror', 'text', 'vector'"),
        (EVENTS + "key_: id\n", 7, "key_ .*Extra inputs are not permitted"),
        (EVENTS.replace("name", "nom"), 2, "name .*Field required"),
    ],
)
def test_what_does_not_fit_is_told_with_file_line_and_field(project, said, line, told):
    write(project, events=said)
    error = failure(project, ValidationError)
    place = project.defs_folder_path / "events" / "defs.yaml"
    assert re.search(f"{told.replace(' .*', f' at {place}:{line}.*')}", str(error), re.DOTALL)


@pytest.mark.parametrize(
    ("said", "line", "told"),
    [
        (EVENTS.replace("append: true", "name: no good"), 5, "attributes.indexes.0: .*'no good'"),
        (EVENTS.replace("append: true", "append: false"), 2, "attributes: .*at least one key"),
        (EVENTS + "load: nowhere:load\n", 7, "attributes.load: The load 'nowhere:load' cannot"),
        (
            "name: a.b\nkey: id\nindexes: '{{ env.ORDERS }}'\n",
            2,
            "attributes: .*'/lake' is not a list",
        ),
        (
            "name: a.b\nindexes: \"{{ ['x'] }}\"\n",
            4,
            "attributes.indexes.0: 'x' is not an index; give",
        ),
        (
            EVENTS + "tenants: here\n",
            7,
            "attributes.tenants: The tenants 'here' is not an import path",
        ),
    ],
)
def test_what_cannot_be_is_told_with_file_and_line(project, monkeypatch, said, line, told):
    monkeypatch.setenv("ORDERS", "/lake")
    write(project, events=said)
    place = project.defs_folder_path / "events" / "defs.yaml"
    assert re.match(f"{place}:{line}, {told}", str(failure(project, IscpError)))


def failure(project, kind):
    """Return the cause of that kind for which the definitions cannot be built."""
    with pytest.raises(ComponentTreeException) as failed, project.build_all_defs():
        pass
    error = failed.value
    while not isinstance(error, kind):
        assert error.__cause__ is not None, error
        error = error.__cause__
    return error


def test_a_table_that_is_declared_twice_is_left_out_the_second_time(project, caplog):
    write(project, one=EVENTS, two=EVENTS)
    with project.build_all_defs() as definitions:
        keys = [spec.key.to_user_string() for spec in definitions.resolve_all_asset_specs()]
    assert len(keys) == len(set(keys)) > 1
    place = project.defs_folder_path / "two" / "defs.yaml:2"
    said = "source table 'shop.events' is declared twice"
    assert f"[10130] {place}: The location: {said}" in caplog.text


def test_a_file_without_attributes_says_what_to_give(project):
    write(project, events="")
    told = str(failure(project, ConfigError))
    assert "events/defs.yaml: the table has no attributes; give name, key and indexes" in told


@pytest.mark.parametrize("form", ["yaml", "python"])
def test_what_is_scaffolded_loads_as_it_is(project, form):
    asked = {"name": "shop.orders", "key": "number", "tenant": "tenant", "path": "/lake"}
    project.scaffold_component(
        SourceTableComponent, "orders", scaffold_params=asked, scaffold_format=form
    )
    project.scaffold_component(SourceTableComponent, "bare", scaffold_format=form)
    orders = SourceTable(
        "shop.orders", key="number", tenant="tenant", path="/lake", indexes=[Mirror()]
    )
    bare = SourceTable("my_database.bare", key="id", indexes=[Mirror()])
    with project.build_component_tree() as tree:
        made = tree.get_all_components(SourceTableComponent)
        assert [each.table for each in made] == [bare, orders]
        assert len(tree.build_defs().sensors) == 2


def test_a_name_that_cannot_be_is_told_before_there_is_a_file(project):
    with pytest.raises(ConfigError, match=r"'orders': name it database\.table"):
        project.scaffold_component(SourceTableComponent, "a", scaffold_params={"name": "orders"})
    assert not list(project.defs_folder_path.rglob("*.yaml"))


def test_a_function_that_hides_its_component_is_told(project):
    place = project.defs_folder_path / "bare"
    project.scaffold_component(SourceTableComponent, "bare", scaffold_format="python")
    project.scaffold_component(SourceTableComponent, "shown")
    file = place / "component.py"
    file.write_text(file.read_text().replace(" -> SourceTableComponent", ""))
    assert "annotate it with `-> SourceTableComponent`" in str(failure(project, ConfigError))


PROJECT = """from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__))
"""


def importable(project, monkeypatch):
    """Give the project definitions, and let it be imported; return its package's folder."""
    package = project.defs_folder_path.parent
    (package / "definitions.py").write_text(PROJECT)
    monkeypatch.syspath_prepend(str(package.parent))
    return package


def test_iscp_finds_the_tables_of_a_project_by_its_definitions(project, tables, monkeypatch):
    write(project, events=EVENTS, orders=ORDERS)
    package = importable(project, monkeypatch)
    assert load_tables({"ISCP_ASSETS": package.name}) == [
        expand_shards(table, 1) for table in tables
    ]
    write(project, events=EVENTS.replace("append: true", "priority: high"))
    place = project.defs_folder_path / "events" / "defs.yaml"
    said = (
        f"attributes.indexes.0.priority at {place}:6: Input should be a valid integer, not 'high'"
    )
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_tables({"ISCP_ASSETS": package.name})


def test_iscp_finds_what_is_over_a_table_of_a_project(project, monkeypatch):
    write(project, trades=TRADES)
    package = importable(project, monkeypatch)
    (found,) = load_tables({"ISCP_ASSETS": package.name})
    names = ["mirror", "changes", "big", "huge", "large", "any"]
    assert [each.name for each in found.consumers] == names
    (endpoint,) = load_endpoints({"ISCP_ASSETS": package.name})
    assert found.get_trigger("large").to == (endpoint,)


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
