"""What docs/service-consumers.md shows is what is declared and invoked."""

import json
import re
from dataclasses import fields

import pytest
import yaml

from iscp_dagster import ServiceConsumer, SourceTable, SourceTableComponent
from iscp_dagster.model.declared.linking.attach import Declarations
from iscp_dagster.serviceconsumers.chunks import TenantRange, cut_chunks, format_line
from iscp_dagster.serviceconsumers.consumer import TENANTS
from iscp_dagster.serviceconsumers.invoking import SHOWN
from iscp_dagster.serviceconsumers.sorting import MEMORY
from support.paths import DOCS

PAGE = (DOCS / "service-consumers.md").read_text(encoding="utf-8")


def find_block(head):
    (block,) = re.findall(rf"^```{head}.*?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return block


@pytest.fixture(scope="module")
def table():
    names = {}
    exec(find_block('python title="assets/orders.py"'), names)
    (table,) = Declarations.of(names.values()).build_tables()
    return table


def test_the_example_declares_a_job_beside_the_indexs(table):
    assert [each.name for each in table.consumers] == ["mirror", "orders_on_changes"]


def test_yaml_declares_what_python_declares(table):
    attributes = yaml.safe_load(find_block("yaml title"))["attributes"]
    assert SourceTableComponent.from_attributes_dict(attributes=attributes).table == table


def test_a_declaration_beside_the_table_means_the_same(table):
    source = SourceTable("shop.orders", key="id", tenant="customer", indexes=table.indexes)
    beside = ServiceConsumer("http://127.0.0.1:9080", handler="Orders/on_changes", on=source)
    (other,) = Declarations.of([source, beside]).build_tables()
    definitions = [[each.definition for each in one.services] for one in (table, other)]
    assert definitions[0] == definitions[1]


def test_the_table_of_options_has_every_option():
    rows = PAGE[PAGE.index("| option |") :].split("\n\n")[0].splitlines()[2:]
    names = {name for row in rows for name in re.findall(r"`(\w+)=?`", row.split("|")[1])}
    assert names == {each.name for each in fields(ServiceConsumer)}
    consumer = ServiceConsumer("http://a", handler="A/b")
    assert (consumer.rows, consumer.at_once, consumer.patience) == (1_000, 1, 60)


def test_the_batch_is_one_that_the_code_makes():
    batch = json.loads(find_block("json"))
    lines = [
        format_line({k: v for k, v in row.items() if k[0] != "_"}, row["_version"], row["_change"])
        for row in batch["rows"]
    ]
    part = TenantRange(table="shop.orders", tenant="acme", from_=4, to=6, snapshot=False)
    (chunk,) = cut_chunks(part, sorted(lines), rows=1_000)
    body = json.loads(chunk.body)
    assert (body, list(body)) == (batch, list(batch))


def test_the_numbers_are_those_of_the_code():
    assert "the last fifty" in PAGE
    assert SHOWN == 50
    assert "eight at a time" in PAGE
    assert TENANTS == 8
    decision = (DOCS / "adr/0038-a-chunk-of-changes-is-an-invocation.md").read_text()
    assert "beyond 128 MiB" in decision
    assert MEMORY == 128 * 1024**2
