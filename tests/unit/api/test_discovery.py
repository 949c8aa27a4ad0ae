"""What the modules of a location declare is found: each once, and what is wrong by its file."""

from __future__ import annotations

from itertools import count

import pytest

from iscp_dagster.api.discovery import (
    load_declarations,
    load_endpoints,
    load_tables,
    resolve_declarations,
)
from iscp_dagster.api.names import format_names
from iscp_dagster.model.errors import ConfigError
from support.errors import assert_names, raises_naming

NUMBERS = count()
TABLES = """
from iscp_dagster import Mirror, SourceTable, View
trades = SourceTable("shop.trades", key="id", tenant="desk", indexes=[Mirror()])
big = View("big", of=trades, where="amount > 100")
same = big
"""
EVENTS = """
from iscp_dagster import Endpoint, Trigger, View
from {package}.tables import big, trades
alerts = Endpoint("alerts", url="https://example.com/hook", secrets=["ALERTS_SECRET"])
quiet = Endpoint("quiet", url="https://example.com/quiet", secrets=["QUIET_SECRET"])
huge = View("huge", of=big, where="amount > 1000")
large = Trigger("large", on=huge, match="amount > 5000", to=[alerts])
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Give a function that writes a package of modules, and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"shop_{next(NUMBERS)}"

    def write(**modules: str) -> str:
        (tmp_path / name).mkdir()
        modules = {"__init__": "", "tables": TABLES, "trading": EVENTS, **modules}
        for module, text in modules.items():
            (tmp_path / name / f"{module}.py").write_text(text.replace("{package}", name))
        return name

    return write


def test_what_is_over_a_table_may_be_in_any_module_and_counts_once(package):
    environ = {"ISCP_ASSETS": package()}
    (trades,) = load_tables(environ)
    assert [consumer.name for consumer in trades.consumers] == ["mirror", "big", "huge", "large"]
    assert [endpoint.name for endpoint in load_endpoints(environ)] == ["alerts", "quiet"]


HEAD = "from iscp_dagster import *\nfrom {package}.tables import big, trades\n\n"


@pytest.mark.parametrize(
    ("declaration", "values"),
    [
        (
            'Trigger("large", on=trades, match="amount > 1")',
            ["trading.py: Trigger 'large'", "the trigger large"],
        ),
        (
            'Trigger("x", on=big, match="a", to=["lost"])',
            ["more.py: Trigger 'x'", "to='lost'", "the trigger x"],
        ),
        (
            'View("mirror", of=trades, where="a")',
            ["more.py: View 'mirror'", "shop.trades: index 'mirror'", "the view mirror"],
        ),
        (
            'View("v", of=big, where="a", types={"b": "Text"})',
            ["more.py: Index shop.trades/v", "'Text'", "the view v"],
        ),
        (
            'SourceTable("shop.trades_mirror", key="id")',
            ["more.py", "shop.trades/mirror", "the source table shop.trades_mirror"],
        ),
    ],
)
def test_what_cannot_stand_is_left_out_with_the_file_that_declares_it(package, declaration, values):
    name = package(more=f"{HEAD}wrong = {declaration}\n")
    tables = load_tables({"ISCP_ASSETS": name})
    trades = next(table for table in tables if table.name == "shop.trades")
    (error,) = trades.left_out
    assert str(error).startswith(f"{name}/{values[0]}")
    assert_names(str(error), *values)
    assert {consumer.name for consumer in trades.consumers} == {"mirror", "big", "huge", "large"}
    with pytest.raises(ConfigError) as caught:
        load_tables({"ISCP_ASSETS": name, "ISCP_STRICT": "true"})
    assert_names(str(caught.value), f"{name}/{values[0]}", *values[1:-1])


def test_of_two_endpoints_of_one_name_the_first_stands(package):
    endpoint = 'again = Endpoint("alerts", url="https://a.example", secrets=["A"])\n'
    environ = {"ISCP_ASSETS": package(more=HEAD + endpoint)}
    resolved = resolve_declarations(load_declarations(environ), environ)
    (error,) = resolved.placeless
    assert_names(str(error), "trading.py", "Endpoint 'alerts'")
    assert [endpoint.name for endpoint in resolved.endpoints] == ["alerts", "quiet"]


@pytest.mark.parametrize(
    ("declaration", "values"),
    [
        ('Trigger("x", on=big, match=" ")', ["Trigger 'x'", "match=' '"]),
        ('View("v", of=big)', ["View 'v'", "where=", "columns="]),
    ],
)
def test_what_is_no_declaration_is_refused_with_its_file_and_line(package, declaration, values):
    name = package(more=f"{HEAD}wrong = {declaration}\n")
    with raises_naming(ConfigError, f"{name}/more.py, line 4", *values):
        load_tables({"ISCP_ASSETS": name})


def test_what_is_wrong_in_the_package_itself_is_named_with_its_file(package):
    head = "from iscp_dagster import View\nfrom {package}.tables import trades\n"
    name = package(__init__=f'{head}again = View("mirror", of=trades, where="a")\n')
    (trades,) = load_tables({"ISCP_ASSETS": name})
    (error,) = trades.left_out
    assert str(error).startswith(f"{name}/__init__.py: View 'mirror'")


def test_definitions_hold_what_they_were_built_from(package):
    text = (
        f"{HEAD}from {{package}}.trading import large\n"
        "own = View('own', of=big, where='amount > 7')\n"
        "defs = build_definitions(\n"
        "    [trades], resources_from_environment(), views=[big, own], triggers=[large]\n"
        ")\n"
    )
    (trades,) = load_tables({"ISCP_ASSETS": package(definitions=text)})
    names = [consumer.name for consumer in trades.consumers]
    assert names == ["mirror", "big", "own", "huge", "large"]


def test_names_that_would_not_be_seen_are_quoted_in_a_list():
    names = ["acme", "a, b", " ", "\x1b[31mred", "line\nbreak", "x" * 300, "größe/%2F"]
    text = format_names(names)
    assert "\x1b" not in text
    assert "\n" not in text
    quoted = ("' '", "'a, b'", r"'\x1b[31mred'", r"'line\nbreak'", f"'{'x' * 60}...'")
    assert_names(text, "acme, größe/%2F", *quoted)
