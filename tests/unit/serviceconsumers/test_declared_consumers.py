"""What can be declared as a service consumer, and what cannot."""

from dataclasses import replace

import pytest

from iscp_dagster import Mirror, ServiceConsumer, SourceTable
from iscp_dagster.api.checks import check_spec
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.lineage import find_parents
from iscp_dagster.model.declared.linking.attach import Declarations, UnfitError
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.planning.job_specs import make_job_spec
from support.errors import raises_naming

ORDERS = SourceTable("shop.orders", key="id", tenant="customer")
HERE = "http://127.0.0.1:9080"


def declare(**options):
    return ServiceConsumer(options.pop("url", HERE), **({"handler": "Orders/changed"} | options))


def build_tables(*declarations):
    return Declarations.of(declarations).build_tables()


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"url": "ftp://a"}, ["url='ftp://a'"]),
        ({"url": "http://u:secret@a"}, ["url='http://a'"]),
        ({"url": "http://u:secret@a", "handler": "Orders"}, ["'http://a'", "handler='Orders'"]),
        ({"url": "http://a/p?x=secret"}, ["url='http://a/p'"]),
        ({"url": "http://a?"}, ["url='http://a'"]),
        ({"url": "http://a#secret"}, ["url='http://a'"]),
        ({"url": "http://a?secret", "handler": 7}, ["'http://a'", "handler=7"]),
        ({"url": 7}, ["url='7'"]),
        ({"handler": "Orders"}, ["handler='Orders'"]),
        ({"name": "a b"}, ["'a b'"]),
        ({"columns": "item"}, ["columns='item'", "columns=['item']"]),
        ({"rows": 0}, ["rows=0"]),
        ({"at_once": True}, ["at_once=True"]),
        ({"patience": 0}, ["patience=0"]),
        ({"priority": "high"}, ["'orders_changed'", "'high'"]),
    ],
)
def test_a_consumer_that_cannot_be_invoked_is_refused(options, values):
    with raises_naming(ConfigError, *values) as caught:
        declare(**options)
    assert "secret" not in str(caught.value)


def test_an_address_loses_its_last_slash_and_a_handler_gives_the_job_its_name():
    consumer = declare(url=f"{HERE}/", handler="My.Orders/on-changes")
    assert (consumer.url, consumer.name) == (HERE, "my_orders_on_changes")
    assert (consumer.service, consumer.method) == ("My.Orders", "on-changes")


def test_a_consumer_in_a_table_or_on_it_is_the_tables():
    inside, both = declare(name="one"), declare(name="both", on=ORDERS)
    beside = declare(name="two", on=ORDERS)
    (table,) = build_tables(replace(ORDERS, services=[inside, both]), inside, both, beside)
    assert [each.name for each in table.services] == ["one", "both", "two"]
    assert find_parents(table) == {}


ELSEWHERE = declare(on=SourceTable("a.b", key="k"))


@pytest.mark.parametrize(
    ("declarations", "values"),
    [
        ([ORDERS, declare()], ["on=", "shop.orders"]),
        ([ORDERS, ELSEWHERE], ["on='a.b'", "shop.orders"]),
        ([ORDERS, declare(on=4)], ["on=4", "shop.orders"]),
        (
            [ORDERS, declare(on=ORDERS), declare(on=ORDERS, name="x", url="http://other")],
            ["'x'", "'Orders'", "http://other", HERE],
        ),
        ([replace(ORDERS, services=[ELSEWHERE]), ELSEWHERE], ["'shop.orders'", "'a.b'"]),
    ],
)
def test_a_consumer_that_does_not_fit_the_others_is_refused(declarations, values):
    with raises_naming(UnfitError, "'orders_changed'", *values):
        build_tables(*declarations)


def test_two_jobs_of_one_name_are_refused():
    with raises_naming(ConfigError, "'mirror'"):
        replace(ORDERS, indexes=[Mirror()], services=[declare(name="mirror")])
    with raises_naming(ConfigError, "services=3"):
        SourceTable("a.b", key="k", services=3)


def test_it_gets_the_columns_that_it_asks_for_with_key_and_tenant():
    table = replace(ORDERS, services=[declare(columns=["item"]), declare(name="whole")])
    available = ["customer", "id", "item", "note"]
    for each, wanted in zip(table.services, [available[:3], available], strict=True):
        info = make_job_spec(table, each).detail.consumer
        assert get_consumer_kind(info.type).list_columns(table, info, available) == tuple(wanted)


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"job": "nobody"}, ["shop.orders/nobody", "orders_changed", "name='nobody'"]),
        ({"type": "mirror"}, ["shop.orders/orders_changed", "'mirror'"]),
        ({"columns": ("item",)}, ["shop.orders/orders_changed", "columns"]),
        ({"options": {"a": 1}}, ["shop.orders/orders_changed", "options"]),
    ],
)
def test_its_job_is_as_declared_or_refused(changes, values):
    table = replace(ORDERS, services=[declare(priority=3)])
    spec = make_job_spec(table, table.services[0])
    assert spec.detail.priority == 3
    check_spec(table, JobID(db="shop", table="orders", job="orders_changed"), spec)
    info = replace(spec.detail.consumer, **changes)
    other = replace(spec, detail=replace(spec.detail, consumer=info))
    with raises_naming(ConfigError, *values):
        check_spec(table, JobID(db="shop", table="orders", job=info.job), other)


def test_an_unknown_name_of_a_consumer_is_refused_with_the_declared_ones():
    table = replace(ORDERS, services=[declare()])
    with raises_naming(ConfigError, "'shop.orders'", "'nobody'", "orders_changed"):
        table.get_service("nobody")
