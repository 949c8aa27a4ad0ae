"""What docs/service-consumers.md shows is what is declared and invoked."""

import json
import re
from dataclasses import fields

import pytest
import yaml

from iscp_dagster import ServiceConsumer, SourceTable, SourceTableComponent
from iscp_dagster.model.declared.linking.attach import Declarations
from iscp_dagster.serviceconsumers.chunks import TenantChanges, cut_chunks, format_line
from iscp_dagster.serviceconsumers.consumer import TENANTS
from iscp_dagster.serviceconsumers.invoking import SHOWN
from iscp_dagster.serviceconsumers.sorting import MEMORY
from support.paths import DOCS

PAGE = (DOCS / "service-consumers.md").read_text(encoding="utf-8")


def block(head):
    (found,) = re.findall(rf"^```{head}.*?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture(scope="module")
def declared():
    made = {}
    exec(block('python title="assets/orders.py"'), made)
    (table,) = Declarations.of(made.values()).build_tables()
    return table


def test_the_example_declares_a_job_beside_the_indexs(declared):
    assert [each.name for each in declared.consumers] == ["mirror", "orders_on_changes"]


def test_yaml_declares_what_python_declares(declared):
    attributes = yaml.safe_load(block("yaml title"))["attributes"]
    made = SourceTableComponent.from_attributes_dict(attributes=attributes)
    assert made.table == declared


def test_a_declaration_beside_the_table_means_the_same(declared):
    table = SourceTable("shop.orders", key="id", tenant="customer", indexes=declared.indexes)
    beside = ServiceConsumer("http://127.0.0.1:9080", handler="Orders/on_changes", on=table)
    (found,) = Declarations.of([table, beside]).build_tables()
    assert [each.definition for each in found.services] == [
        each.definition for each in declared.services
    ]


def test_the_options_are_those_that_there_are():
    lines = PAGE[PAGE.index("| option |") :].split("\n\n")[0].splitlines()[2:]
    said = {name for row in lines for name in re.findall(r"`(\w+)=?`", row.split("|")[1])}
    assert said == {each.name for each in fields(ServiceConsumer)}
    one = ServiceConsumer("http://a", handler="A/b")
    assert (one.rows, one.at_once, one.patience) == (1_000, 1, 60)


def test_the_batch_is_one_that_is_made():
    told = json.loads(block("json"))
    rows = told["rows"]
    lines = [
        format_line({k: v for k, v in row.items() if k[0] != "_"}, row["_version"], row["_change"])
        for row in rows
    ]
    part = TenantChanges(table="shop.orders", tenant="acme", from_=4, to=6, snapshot=False)
    (made,) = cut_chunks(part, sorted(lines), rows=1_000)
    assert json.loads(made.body) == told
    assert list(json.loads(made.body)) == list(told)


def test_the_numbers_are_those_of_the_code():
    assert "the last fifty" in PAGE
    assert SHOWN == 50
    assert "eight at a time" in PAGE
    assert TENANTS == 8
    decision = (DOCS / "adr/0038-a-chunk-of-changes-is-an-invocation.md").read_text()
    assert "beyond 128 MiB" in decision
    assert MEMORY == 128 * 1024**2
