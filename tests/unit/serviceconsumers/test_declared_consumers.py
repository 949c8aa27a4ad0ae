"""What can be declared as a service consumer, and what cannot."""

import re
from dataclasses import replace

import pytest

from iscp_dagster import Mirror, ServiceConsumer, SourceTable
from iscp_dagster.api.checks import check_spec
from iscp_dagster.model.consumers.kinds import get_consumer_kind
from iscp_dagster.model.declared.lineage import find_parents
from iscp_dagster.model.declared.linking.attach import Declarations, UnfitError
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.planning.declared import make_job_spec

ORDERS = SourceTable("shop.orders", key="id", tenant="customer")
HERE = "http://127.0.0.1:9080"


def service(**options):
    return ServiceConsumer(options.pop("url", HERE), **({"handler": "Orders/changed"} | options))


def attached(*declared):
    return Declarations.of(declared).build_tables()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"url": "ftp://a"}, r"url='ftp://a' is not a plain http or https address; write one"),
        ({"url": "http://u:secret@a"}, r"url='http://a' is not a plain http or https address"),
        ({"url": "http://u:secret@a", "handler": "Orders"}, r"consumer 'http://a': handler="),
        ({"url": "http://a/p?x=secret"}, r"url='http://a/p' is not a plain http or https address"),
        ({"url": "http://a?"}, r"url='http://a' is not a plain http or https address"),
        ({"url": "http://a#secret"}, r"url='http://a' is not a plain http or https address"),
        ({"url": "http://a?secret", "handler": 7}, r"consumer 'http://a': handler="),
        ({"url": 7}, r"url='7' is not a plain http or https address"),
        ({"handler": "Orders"}, r"handler='Orders' does not name a service and its handler"),
        ({"handler": 7}, r"handler=7 does not name"),
        ({"name": "a b"}, r"The service consumer name 'a b' is not an identifier"),
        ({"columns": "item"}, r"columns='item' is not a list of names; write columns=\['item'\]"),
        ({"rows": 0}, r"rows=0 is not a whole number from 1 on"),
        ({"at_once": True}, r"at_once=True is not a whole number"),
        ({"patience": 0}, r"patience=0 is not a number of seconds above 0"),
        ({"priority": "high"}, r"'orders_changed': The priority 'high' is not a whole number"),
    ],
)
def test_what_cannot_be_invoked_is_refused(options, why):
    with pytest.raises(ConfigError, match=why) as told:
        service(**options)
    assert "secret" not in str(told.value)


def test_an_address_loses_its_last_slash_and_a_handler_gives_the_job_its_name():
    made = service(url=f"{HERE}/", handler="My.Orders/on-changes")
    assert (made.url, made.name) == (HERE, "my_orders_on_changes")
    assert (made.service, made.method) == ("My.Orders", "on-changes")


def test_one_in_a_table_or_on_it_is_the_tables():
    inside, beside = service(name="one"), service(name="two", on=ORDERS)
    table = replace(ORDERS, services=[inside])
    (found,) = attached(table, inside, beside)
    assert [each.name for each in found.services] == ["one", "two"]
    assert find_parents(found) == {}


@pytest.mark.parametrize(
    ("services", "why"),
    [
        ([service()], r"'orders_changed' is on no source table; give on=, or put it into"),
        ([service(on=SourceTable("a.b", key="k"))], r"'a.b' is not a source table of the location"),
        ([service(on=4)], r"on=4 is not a source table"),
        (
            [service(on=ORDERS), service(on=ORDERS, name="x", url="http://other")],
            r"the service 'Orders' is at http://other, and 'orders_changed' has it at http://127",
        ),
    ],
)
def test_one_that_does_not_fit_is_refused(services, why):
    with pytest.raises(UnfitError, match=why):
        attached(ORDERS, *services)


def test_one_in_the_services_of_another_table_is_refused():
    inside = service(on=SourceTable("a.b", key="k"))
    with pytest.raises(UnfitError, match=r"in the services of 'shop.orders', and on 'a.b'"):
        attached(replace(ORDERS, services=[inside]), inside)


def test_two_jobs_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="job 'mirror' is declared twice"):
        replace(ORDERS, indexes=[Mirror()], services=[service(name="mirror")])
    with pytest.raises(ConfigError, match=re.escape("services=3 is not a list of service")):
        SourceTable("a.b", key="k", services=3)


def test_it_gets_the_columns_that_it_asks_for_with_key_and_tenant():
    table = replace(ORDERS, services=[service(columns=["item"]), service(name="whole")])
    available = ["customer", "id", "item", "note"]
    for each, wanted in zip(table.services, [available[:3], available], strict=True):
        info = make_job_spec(table, each).detail.consumer
        assert get_consumer_kind(info.type).list_columns(table, info, available) == tuple(wanted)


def test_its_job_is_as_declared_or_none():
    table = replace(ORDERS, services=[service(priority=3)])
    spec = make_job_spec(table, table.services[0])
    nobody, changed = (
        JobID(db="shop", table="orders", job=job) for job in ("nobody", "orders_changed")
    )
    assert spec.detail.priority == 3
    check_spec(table, changed, spec)
    info = ConsumerInfo(type="service", db="shop", table="orders", job="nobody")
    undeclared = replace(spec, detail=replace(spec.detail, consumer=info))
    with pytest.raises(ConfigError, match="no service consumer of that name is declared"):
        check_spec(table, nobody, undeclared)
    with pytest.raises(ConfigError, match="has no service consumer 'nobody'; it has: orders_cha"):
        table.get_service("nobody")
    other = replace(spec.detail.consumer, type="mirror")
    with pytest.raises(ConfigError, match="a service consumer of that name is declared, and the"):
        check_spec(table, changed, replace(spec, detail=replace(spec.detail, consumer=other)))
    more = replace(spec.detail.consumer, columns=("item",))
    with pytest.raises(ConfigError, match="a service consumer's columns and options are those of"):
        check_spec(table, changed, replace(spec, detail=replace(spec.detail, consumer=more)))
