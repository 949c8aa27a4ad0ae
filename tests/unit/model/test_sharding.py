"""Which shards may be declared, and what indexes come of them."""

import json
from dataclasses import replace
from itertools import combinations

import pytest

import iscp_dagster
from iscp_dagster import FullText, Mirror, Sharding, SourceTable, SpecUpdate, Vector
from iscp_dagster.api.checks import check_view_free
from iscp_dagster.api.environment import (
    count_shards,
    get_databases,
    open_deployment,
    parse_clickhouse_endpoints,
)
from iscp_dagster.clickhouse.connect.endpoint import ClickHouseEndpoint, parse_endpoints
from iscp_dagster.clickhouse.kinds.index_kind import resolve_index
from iscp_dagster.clickhouse.tables.ddl import IndexShape
from iscp_dagster.location.assets.index_assets import build_index_assets
from iscp_dagster.model.declared.linking.clashes import ClashError, check_declared_once
from iscp_dagster.model.declared.schema import DeltaField, Primitive
from iscp_dagster.model.declared.sharding import FUNCTIONS
from iscp_dagster.model.declared.tables import expand_shards
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.planning.job_specs import add_shard, make_job_spec, make_job_specs
from iscp_dagster.sync.deployment import Deployment
from support.errors import raises_naming
from support.jobs.log_rows import log_in_memory
from support.jobs.one_table import make_variables

BY_ID = {"hash_function": "cityHash64", "key": ["id"]}
BY_NAME = {"hash_function": "cityHash64", "key": ["name"]}
NAMES = (
    *("cityHash64", "xxHash64", "sipHash64", "murmurHash3_64"),
    *("intHash64", "javaHash", "farmHash64"),
)
SCHEMA = tuple(DeltaField(name=n, type=Primitive("string")) for n in ("tenant", "id", "body"))


def make_table(*indexes, **fields):
    return SourceTable("shop.t", **{"key": "id", "tenant": "tenant", "indexes": indexes} | fields)


def make_shards(count, *others, name="mirror"):
    """Return the table with a mirror spread over that number of shards, and other indexes."""
    return expand_shards(make_table(Mirror(name=name, sharding=BY_ID), *others), count)


def make_consumer(source, index):
    return make_job_spec(source, index).detail.consumer


def test_a_sharding_is_declared_as_such_or_as_a_mapping():
    sharding = Sharding(hash_function="cityHash64", key=("id",))
    assert Mirror(sharding=BY_ID).sharding == Mirror(sharding=sharding).sharding == sharding
    assert Mirror(sharding=BY_ID | {"key": "id"}).sharding == sharding
    for default in ({"key": ["id"]}, Sharding(key="id")):
        assert Mirror(sharding=default).placement == Mirror(sharding=BY_ID).placement
    assert Mirror().sharding is None
    assert iscp_dagster.Sharding is Sharding


def test_each_function_is_known_by_clickhouse_s_name():
    for name in NAMES:
        assert Sharding(hash_function=name, key=["id"]).function is FUNCTIONS[name]
    assert Sharding(hash_function="crc32", key=["id"]).hash_function == "CRC32"


@pytest.mark.parametrize(
    ("sharding", "culprits"),
    [
        (BY_ID | {"hash_function": "md5"}, ("hash_function", "'md5'", "CRC32")),
        (BY_ID | {"key": []}, ("key []",)),
        (BY_ID | {"key": ["id", "id"]}, ("key id, id",)),
        (
            {"hash_function": "javaHash", "key": ["tenant", "id"]},
            ("javaHash", "tenant, id", "cityHash64"),
        ),
        ({}, ("sharding {}", str(BY_ID))),
        ({"hash_function": "xxHash64"}, ("{'hash_function': 'xxHash64'}", str(BY_ID))),
        (BY_ID | {"shards": 3}, ("'shards'", str(BY_ID))),
        ("cityHash64(id)", ("'cityHash64(id)'", str(BY_ID))),
    ],
)
def test_an_impossible_sharding_is_refused_at_the_declaration(sharding, culprits):
    with raises_naming(ConfigError, "'mirror'", *culprits):
        Mirror(sharding=sharding)


def test_a_shard_is_below_the_number_of_shards():
    with raises_naming(ConfigError, "shard 2 of 2"):
        Sharding(hash_function="cityHash64", key=["id"], shard=2, shards=2)


@pytest.mark.parametrize(
    ("mirror", "fields", "culprits"),
    [
        (Mirror(sharding=BY_NAME), {}, ("'name'", "tenant, id")),
        (Mirror(sharding={"key": ["tenant"]}), {"tenant": None}, ("'tenant'", "id")),
        (Mirror(sharding=BY_NAME, append=True, columns=["id"]), {"key": ()}, ("'name'", "carry")),
    ],
)
def test_a_column_that_may_change_in_a_row_or_is_not_stored_is_refused(mirror, fields, culprits):
    with raises_naming(ConfigError, "shop.t/mirror", *culprits):
        make_table(mirror, **fields)


def test_tenant_and_key_place_a_row_and_any_stored_column_one_that_never_changes():
    for key in (["id"], ["tenant"], ["id", "tenant"]):
        make_table(Mirror(sharding={"hash_function": "sipHash64", "key": key}))
    make_table(Mirror(sharding=BY_NAME, append=True), key=())
    make_table(Mirror(sharding=BY_NAME, append=True, columns=["name"]), key=(), tenant=None)


def test_a_sharded_index_becomes_one_index_for_each_shard():
    others = FullText("body", sharding=BY_ID), Vector("v", dimension=2)
    source = make_shards(2, *others)
    assert [(index.name, index.shown, index.shard) for index in source.indexes] == [
        ("mirror_shard_0", "mirror", 0),
        ("mirror_shard_1", "mirror", 1),
        ("text_shard_0", "text", 0),
        ("text_shard_1", "text", 1),
        ("vector", "vector", 0),
    ]
    assert source.indexes[2].text == "body"
    assert expand_shards(source, 3) == source
    names = [index.name for index in make_shards(1, *others).indexes]
    assert names == ["mirror_shard_0", "text_shard_0", "vector"]
    plain = make_table(Mirror())
    assert expand_shards(plain, 3) is plain


def test_tables_have_the_index_s_own_name_on_every_shard():
    fields = [DeltaField(name=name, type=Primitive("long")) for name in ("tenant", "id")]

    def make_index_table(index):
        return IndexShape(source=make_table(), index=index, fields=fields)

    shards = [make_index_table(index) for index in make_shards(2).indexes]
    assert {(each.view, each.rows) for each in shards} == {("t_mirror", "t_mirror__rows")}
    sharding = json.loads(shards[1].definition)["sharding"]
    assert sharding == {**BY_ID, "shard": 1, "shards": 2}
    assert "shard" not in make_index_table(Mirror()).definition


def test_function_key_and_number_of_shards_are_the_index_s_definition():
    def get_definition(sharding, shards=2):
        return expand_shards(make_table(Mirror(sharding=sharding)), shards).indexes[0].definition

    definitions = [
        get_definition(BY_ID),
        get_definition({"hash_function": "xxHash64", "key": ["id"]}),
        get_definition({"hash_function": "cityHash64", "key": ["tenant", "id"]}),
        get_definition({"hash_function": "cityHash64", "key": ["id", "tenant"]}),
        get_definition(BY_ID, 3),
        get_definition(BY_ID, 1),
        Mirror().definition,
    ]
    assert get_definition(dict(BY_ID)) == definitions[0]
    assert not any(one == other for one, other in combinations(definitions, 2))


def test_a_shard_and_an_index_of_the_same_view_are_declared_twice():
    with raises_naming(ConfigError, "shop.t/mirror_shard_1", "_shard_"):
        make_table(Mirror(sharding=BY_ID), Mirror(name="mirror_shard_1"))
    sharded = replace(make_shards(2, name="b_mirror"), name="shop.a")
    other = replace(make_table(Mirror()), name="shop.a_b")
    with raises_naming(ClashError, "index view", "'shop.a_b_mirror'"):
        check_declared_once([sharded, other])
    check_declared_once([sharded])


def test_a_job_names_its_shard_and_keeps_it():
    source = make_shards(2)
    specs = make_job_specs(source, source.indexes)
    name = JobID(db="shop", table="t", job="mirror_shard_1")
    info = specs[name].detail.consumer
    assert info.options == {"shard": 1}
    assert resolve_index(source, info).placement == source.indexes[1].placement
    changed = SpecUpdate(options={"description": "x"}).apply_to(specs[name]).detail.consumer
    assert changed.options == {"shard": 1, "description": "x"}
    bare = ConsumerInfo(type="mirror", db="shop", table="t", job="mirror_shard_1")
    spec = replace(specs[name], detail=replace(specs[name].detail, consumer=bare))
    assert add_shard(source, spec) == specs[name]
    assert make_consumer(source, Mirror()).options == {}


ANOTHER_KIND = {"type": "text", "options": {"shard": 1, "text": "name"}}
REBUILD = "iscp job rebuild shop.t/mirror_shard_1"


@pytest.mark.parametrize(
    ("declared", "changes", "culprits"),
    [
        (make_shards(1), {}, ("mirror_shard_1", "shard 1")),
        (make_table(Mirror()), {}, ("mirror_shard_1", "shard 1")),
        (make_shards(2), ANOTHER_KIND, ("mirror", "text", REBUILD)),
        (
            make_table(),
            {"job": "mine", "options": {"sharding": BY_ID}},
            ("shop.t/mine", "'sharding'"),
        ),
    ],
    ids=["fewer shards", "no shards", "another kind", "a sharding of its own"],
)
def test_a_shard_s_job_that_is_not_as_declared_is_refused(declared, changes, culprits):
    source = make_shards(2)
    info = replace(make_consumer(source, source.indexes[1]), **changes)
    with raises_naming(ConfigError, *culprits):
        resolve_index(declared, info)


def make_deployment(count):
    shards = tuple(ClickHouseEndpoint(host=f"ch{n}", port=8123) for n in range(count))
    return Deployment(
        endpoint=shards[0], shards=shards, log=log_in_memory(), spark=lambda: None, lake="/"
    )


def test_each_shard_is_stored_at_its_own_endpoint():
    source = make_shards(2, FullText("body"))
    deployment = make_deployment(2)
    stores = [deployment.make_index_store(source, index, SCHEMA) for index in source.indexes]
    assert [store.endpoint.host for store in stores] == ["ch0", "ch1", "ch0"]
    with raises_naming(ConfigError, "'mirror_shard_0'", 2, "CLICKHOUSE_URLS", 3):
        make_deployment(3).make_index_store(source, source.indexes[0], SCHEMA)
    info = make_consumer(source, source.indexes[1])
    data = deployment.get_index_data(info)
    assert (data.endpoint.host, data.database, data.view) == ("ch1", "shop", "t_mirror")
    assert make_deployment(1).get_index_data(info) is None


@pytest.mark.parametrize("separator", [" ", ",", ", ", "\n"])
def test_servers_are_named_in_one_setting(separator):
    one, urls = "http://one:1", separator.join(["http://me:secret@one:1", "http://two:2"])
    environ = {"CLICKHOUSE_URLS": urls}
    assert count_shards(environ) == 2
    endpoints = parse_clickhouse_endpoints(environ)
    assert [each.address for each in endpoints] == [one, "http://two:2"]
    assert endpoints[0].password == "secret"
    assert parse_clickhouse_endpoints(environ | {"CLICKHOUSE_URL": one}) == endpoints
    assert count_shards({"CLICKHOUSE_URL": one}) == count_shards({"CLICKHOUSE_URLS": ""}) == 1
    assert len(parse_clickhouse_endpoints({"CLICKHOUSE_URL": one})) == 1


ONE = "http://u:secret@one:1"


@pytest.mark.parametrize(
    ("url", "urls", "culprits"),
    [
        ("http://two:2", f"{ONE} http://two:2", ("CLICKHOUSE_URL", "http://two:2", "http://one:1")),
        ("", f"{ONE} http://one:1", ("http://one:1 2 times", "http://one:1/?database=NAME")),
        (
            "",
            f"{ONE}/?database=a http://one:1",
            ("http://one:1 2 times", "http://one:1/?database=NAME"),
        ),
        ("", f"{ONE}/?database=a http://v@one:1/?database=a", ("http://one:1/?database=a twice",)),
        ("http://one:1", f"{ONE}/?database=a", ("http://one:1", "http://one:1/?database=a")),
        ("http://one:1/?database=system", "", ("database", "'system'")),
        ("http://one:1/?database=a-b", "", ("database", "'a-b'")),
        ("http://one:1/?database=a&database=b", "", ("database", "database=NAME")),
        ("http://one:1/?database=", "", ("database", "''")),
        ("", "http://one:1 ftp://u:secret@two", ("CLICKHOUSE_URL", "'ftp://two'")),
    ],
)
def test_settings_that_contradict_are_refused_without_a_password(url, urls, culprits):
    with raises_naming(ConfigError, *culprits) as refused:
        parse_endpoints(url, urls)
    assert "secret" not in str(refused.value)


TWO_DATABASES = "http://u:secret@one:1/?database=a http://one:1/?insert_quorum=2&database=b"


def test_a_server_with_two_databases_holds_two_shards():
    first, second = parse_endpoints("http://one:1/?database=a", TWO_DATABASES)
    assert [each.resolve_database("shop") for each in (first, second)] == ["a", "b"]
    assert (first.server, first.address) == ("http://one:1", "http://one:1/?database=a")
    assert (second.address, second.insert_quorum) == ("http://one:1/?database=b", "2")
    assert get_databases({"CLICKHOUSE_URLS": TWO_DATABASES}) == ("a", "b")
    assert get_databases({}) == ()
    deployment = replace(make_deployment(2), endpoint=first, shards=(first, second))
    source = make_shards(2, FullText("body"))
    stores = [deployment.make_index_store(source, index, SCHEMA) for index in source.indexes]
    assert [store.shape.database for store in stores] == ["a", "b", "a"]
    data = deployment.get_index_data(make_consumer(source, source.indexes[1]))
    assert (data.database, data.view) == ("b", "t_mirror")


def test_dagster_shows_an_index_where_its_url_has_it():
    source = make_shards(2, FullText("body"))

    def list_places(*databases):
        specs = build_index_assets(source, "pool", databases).specs
        return {each.key.path[-1]: each.metadata["dagster/table_name"] for each in specs}

    assert list_places("a", "b") == {
        "t_mirror_shard_0": "a.t_mirror",
        "t_mirror_shard_1": "b.t_mirror",
        "t_text": "a.t_text",
    }
    assert set(list_places().values()) == {"shop.t_mirror", "shop.t_text"}


def test_tables_of_one_name_do_not_share_a_database_that_a_url_names():
    sources = [SourceTable(f"{d}.t", key="id", indexes=[Mirror()]) for d in ("shop", "crm")]
    check_declared_once(sources)
    with raises_naming(ClashError, "index view", "'a.t_mirror'"):
        check_declared_once(sources, ("a",))
    shards = parse_endpoints("http://one:1/?database=a")
    deployment = replace(make_deployment(1), endpoint=shards[0], shards=shards)
    info = make_consumer(sources[0], Mirror(name="mine"))
    check_view_free(deployment, sources, sources[0], info)
    other = JobID(db="crm", table="t", job="mine")
    deployment.log.register("x", other, "1", make_job_spec(sources[1], Mirror(name="mine")))
    with raises_naming(ConfigError, "a.t_mine", "crm.t/mine"):
        check_view_free(deployment, sources, sources[0], info)
    check_view_free(make_deployment(1), sources, sources[0], info)


def test_the_deployment_of_an_environment_has_its_servers(tmp_path):
    servers = {"CLICKHOUSE_URL": "", "CLICKHOUSE_URLS": "http://one:1 http://two:2"}
    environ = make_variables(tmp_path) | servers
    deployment = open_deployment(environ)
    assert [each.host for each in deployment.endpoints] == ["one", "two"]
    assert deployment.endpoint == deployment.endpoints[0]
