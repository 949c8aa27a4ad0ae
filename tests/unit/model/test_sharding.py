"""Which shards may be declared, and which indexes they become."""

import json
from dataclasses import replace

import pytest

import iscp_dagster
from iscp_dagster import FullText, Mirror, Sharding, SourceTable, SpecUpdate, Vector
from iscp_dagster.api.checks import check_view_free
from iscp_dagster.api.environment import count_shards, get_databases, get_endpoints, open_deployment
from iscp_dagster.clickhouse.connect.endpoint import Endpoint, parse_endpoints
from iscp_dagster.clickhouse.kinds.indexes import resolve_index
from iscp_dagster.clickhouse.tables.ddl import IndexTable
from iscp_dagster.location.assets.index_assets import build_index_assets
from iscp_dagster.model.declared.linking.clashes import check_declared_once
from iscp_dagster.model.declared.schema import DeltaField, Primitive
from iscp_dagster.model.declared.sharding import FUNCTIONS
from iscp_dagster.model.declared.tables import expand_shards
from iscp_dagster.model.errors import ConfigError
from iscp_dagster.model.jobs import JobID
from iscp_dagster.model.specs import ConsumerInfo
from iscp_dagster.planning.declared import add_shard, make_job_spec, make_job_specs
from iscp_dagster.sync.deployment import Deployment
from support.jobs.log_rows import log_in_memory

BY_ID = {"hash_function": "cityHash64", "key": ["id"]}
NAMED = (
    "cityHash64",
    "xxHash64",
    "sipHash64",
    "murmurHash3_64",
    "intHash64",
    "javaHash",
    "farmHash64",
)


def table(*indexes, **fields):
    return SourceTable("shop.t", **{"key": "id", "tenant": "tenant", "indexes": indexes} | fields)


def test_it_is_declared_as_a_sharding_or_as_a_mapping():
    wanted = Sharding(hash_function="cityHash64", key=("id",))
    assert Mirror(sharding=BY_ID).sharding == Mirror(sharding=wanted).sharding == wanted
    assert Mirror(sharding={"hash_function": "cityHash64", "key": "id"}).sharding == wanted
    assert Mirror().sharding is None
    assert iscp_dagster.Sharding is Sharding


@pytest.mark.parametrize("name", NAMED)
def test_each_function_is_known_by_clickhouses_name(name):
    assert Sharding(hash_function=name, key=["id"]).function is FUNCTIONS[name]


def test_crc32_is_clickhouses_function_of_that_name():
    assert Sharding(hash_function="crc32", key=["id"]).hash_function == "CRC32"


@pytest.mark.parametrize(
    ("sharding", "said"),
    [
        ({"hash_function": "md5", "key": ["id"]}, r"Index 'mirror': .*'md5' is not one of: CRC32,"),
        ({"hash_function": "cityHash64", "key": []}, "key .* names no columns; name one or more"),
        ({"hash_function": "cityHash64", "key": ["id", "id"]}, "id, id names a column twice"),
        (
            {"hash_function": "javaHash", "key": ["tenant", "id"]},
            "javaHash takes one column, but the key is tenant, id; .* use one of: cityHash64",
        ),
        ({}, "is malformed; write it as .*'hash_function': 'cityHash64'"),
        ({"hash_function": "cityHash64"}, "is malformed; write it as"),
        ({**BY_ID, "shards": 3}, "is malformed"),
        ("cityHash64(id)", r"Index 'mirror': sharding 'cityHash64\(id\)' is malformed"),
    ],
)
def test_what_cannot_be_is_refused_at_the_declaration(sharding, said):
    with pytest.raises(ConfigError, match=said):
        Mirror(sharding=sharding)


def test_a_shard_is_one_of_those_there_are():
    with pytest.raises(ConfigError, match="there is no shard 2 of 2"):
        Sharding(hash_function="cityHash64", key=["id"], shard=2, shards=2)


@pytest.mark.parametrize(
    ("key", "fields", "said"),
    [
        (
            "name",
            {},
            "'name', which is neither the tenant nor a key column.* from: tenant, id",
        ),
        ("tenant", {"tenant": None}, "'tenant', which is neither .*: id"),
    ],
)
def test_a_column_that_may_change_in_a_row_is_refused(key, fields, said):
    sharding = {"hash_function": "cityHash64", "key": [key]}
    with pytest.raises(ConfigError, match=said):
        table(Mirror(sharding=sharding), **fields)


def test_any_column_that_it_has_places_a_row_that_never_changes():
    sharding = {"hash_function": "cityHash64", "key": ["name"]}
    table(Mirror(sharding=sharding, append=True), key=())
    table(Mirror(sharding=sharding, append=True, columns=["name"]), key=(), tenant=None)
    with pytest.raises(ConfigError, match="has 'name', which is not one of its columns"):
        table(Mirror(sharding=sharding, append=True, columns=["id"]), key=())


@pytest.mark.parametrize("key", [["id"], ["tenant"], ["id", "tenant"]])
def test_tenant_and_key_place_a_row(key):
    table(Mirror(sharding={"hash_function": "sipHash64", "key": key}))


def test_a_sharded_index_is_spread_into_one_index_a_shard():
    source = table(
        Mirror(sharding=BY_ID), FullText("body", sharding=BY_ID), Vector("v", dimension=2)
    )
    found = expand_shards(source, 2)
    assert [each.name for each in found.indexes] == [
        "mirror_shard_0",
        "mirror_shard_1",
        "text_shard_0",
        "text_shard_1",
        "vector",
    ]
    assert [each.shard for each in found.indexes] == [0, 1, 0, 1, 0]
    assert [each.shown for each in found.indexes] == ["mirror", "mirror", "text", "text", "vector"]
    assert found.indexes[2].text == "body"
    assert expand_shards(found, 3) == found
    assert [each.name for each in expand_shards(source, 1).indexes] == [
        "mirror_shard_0",
        "text_shard_0",
        "vector",
    ]
    plain = table(Mirror())
    assert expand_shards(plain, 3) is plain


def test_tables_bear_the_indexs_own_name_on_every_shard():
    field = [DeltaField(name=name, type=Primitive("long")) for name in ("tenant", "id")]
    first, second = expand_shards(table(Mirror(sharding=BY_ID)), 2).indexes
    shapes = [IndexTable(source=table(), index=each, fields=field) for each in (first, second)]
    assert {(each.view, each.rows) for each in shapes} == {("t_mirror", "t_mirror__rows")}
    said = [json.loads(each.definition)["sharding"] for each in shapes]
    assert said[1] == {**BY_ID, "shard": 1, "shards": 2}
    whole = IndexTable(source=table(), index=Mirror(), fields=field)
    assert "shard" not in whole.definition


def test_function_key_and_number_of_shards_are_the_indexs_definition():
    def definition(sharding, shards=2):
        return expand_shards(table(Mirror(sharding=sharding)), shards).indexes[0].definition

    others = [
        definition({"hash_function": "xxHash64", "key": ["id"]}),
        definition({"hash_function": "cityHash64", "key": ["tenant", "id"]}),
        definition({"hash_function": "cityHash64", "key": ["id", "tenant"]}),
        definition(BY_ID, 3),
        definition(BY_ID, 1),
        Mirror().definition,
    ]
    assert definition(BY_ID) == definition(dict(BY_ID))
    assert all(each != definition(BY_ID) for each in others)
    assert others[1] != others[2]


def test_a_shard_and_an_index_of_the_same_view_are_declared_twice():
    with pytest.raises(
        ConfigError, match="/mirror_shard_1: names that end in _shard_ and a number"
    ):
        table(Mirror(sharding=BY_ID), Mirror(name="mirror_shard_1"))
    other = replace(expand_shards(table(Mirror(name="b_mirror", sharding=BY_ID)), 2), name="shop.a")
    same = replace(table(Mirror()), name="shop.a_b")
    with pytest.raises(ConfigError, match=r"would both have the index view 'shop\.a_b_mirror'"):
        check_declared_once([other, same])
    check_declared_once([other])


def test_a_job_says_its_shard_and_keeps_it():
    source = expand_shards(table(Mirror(sharding=BY_ID)), 2)
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
    assert make_job_spec(source, Mirror()).detail.consumer.options == {}


@pytest.mark.parametrize("count", [1, 0])
def test_a_shard_that_is_declared_no_more_is_refused(count):
    source = expand_shards(table(Mirror(sharding=BY_ID)), 2)
    info = make_job_spec(source, source.indexes[1]).detail.consumer
    fewer = expand_shards(table(Mirror(sharding=BY_ID)), 1) if count else table(Mirror())
    with pytest.raises(ConfigError, match=r"keeps shard 1 of an index.*no such shard.*unregister"):
        resolve_index(fewer, info)


def test_a_shards_job_keeps_the_kind_that_is_declared():
    source = expand_shards(table(Mirror(sharding=BY_ID)), 2)
    info = make_job_spec(source, source.indexes[1]).detail.consumer
    said = r"a shard of a mirror index, and only a declared text.*as one.*rebuild shop\.t/mirror_sh"
    with pytest.raises(ConfigError, match=said):
        resolve_index(source, replace(info, type="text", options=info.options | {"text": "name"}))


def test_a_job_is_no_place_to_declare_shards():
    info = ConsumerInfo(
        type="mirror", db="shop", table="t", job="mine", options={"sharding": BY_ID}
    )
    with pytest.raises(ConfigError, match="no option 'sharding'"):
        resolve_index(table(), info)


def deployment(count):
    shards = tuple(Endpoint(host=f"ch{n}", port=8123) for n in range(count))
    return Deployment(
        endpoint=shards[0], shards=shards, log=log_in_memory(), spark=lambda: None, lake="/"
    )


def test_each_shard_is_stored_at_its_own_endpoint():
    source = expand_shards(table(Mirror(sharding=BY_ID), FullText("body")), 2)
    schema = tuple(DeltaField(name=n, type=Primitive("string")) for n in ("tenant", "id", "body"))
    hosts = [
        deployment(2).make_index_store(source, each, schema).endpoint.host
        for each in source.indexes
    ]
    assert hosts == ["ch0", "ch1", "ch0"]
    with pytest.raises(ConfigError, match="spread over 2 servers, and CLICKHOUSE_URLS names 3"):
        deployment(3).make_index_store(source, source.indexes[0], schema)
    info = make_job_spec(source, source.indexes[1]).detail.consumer
    data = deployment(2).get_index_data(info)
    assert (data.endpoint.host, data.database, data.view) == ("ch1", "shop", "t_mirror")
    assert deployment(1).get_index_data(info) is None


@pytest.mark.parametrize("between", [" ", ",", ", ", "\n"])
def test_servers_are_named_in_one_setting(between):
    urls = between.join(["http://me:secret@one:1", "http://two:2"])
    environ = {"CLICKHOUSE_URLS": urls}
    assert count_shards(environ) == 2
    assert [each.address for each in get_endpoints(environ)] == ["http://one:1", "http://two:2"]
    assert get_endpoints(environ)[0].password == "secret"
    assert (
        count_shards({"CLICKHOUSE_URL": "http://one:1"})
        == count_shards({"CLICKHOUSE_URLS": ""})
        == 1
    )
    assert len(get_endpoints({"CLICKHOUSE_URL": "http://one:1"})) == 1
    both = environ | {"CLICKHOUSE_URL": "http://one:1"}
    assert get_endpoints(both) == get_endpoints(environ)


@pytest.mark.parametrize(
    ("url", "urls", "said"),
    [
        (
            "http://two:2",
            "http://u:secret@one:1 http://two:2",
            "CLICKHOUSE_URL is http://two:2, but",
        ),
        (
            "",
            "http://u:secret@one:1 http://one:1",
            "names http://one:1 2 times.*a database of their own",
        ),
        (
            "",
            "http://u:secret@one:1/?database=a http://one:1",
            r"names http://one:1 2 times.*Write http://one:1/\?database=NAME",
        ),
        (
            "",
            "http://u:secret@one:1/?database=a http://other@one:1/?database=a",
            r"http://one:1/\?database=a twice",
        ),
        ("http://one:1", "http://u:secret@one:1/?database=a", "CLICKHOUSE_URL is http://one:1, "),
        ("http://one:1/?database=system", "", "database 'system' is ClickHouse's own"),
        ("http://one:1/?database=a-b", "", "database name 'a-b' is not an identifier"),
        ("http://one:1/?database=a&database=b", "", "once each"),
        ("http://one:1/?database=", "", "database name '' is not"),
        ("", "http://one:1 ftp://u:secret@two", "'ftp://two' is not http"),
    ],
)
def test_settings_that_contradict_are_refused_without_a_password(url, urls, said):
    with pytest.raises(ConfigError, match=said) as refused:
        parse_endpoints(url, urls)
    assert "secret" not in str(refused.value)


TWO_DATABASES = "http://u:secret@one:1/?database=a http://one:1/?insert_quorum=2&database=b"


def test_a_database_each_makes_two_shards_of_one_server():
    first, second = parse_endpoints("http://one:1/?database=a", TWO_DATABASES)
    assert [each.resolve_database("shop") for each in (first, second)] == ["a", "b"]
    assert (first.server, first.address) == ("http://one:1", "http://one:1/?database=a")
    assert (second.address, second.insert_quorum) == ("http://one:1/?database=b", "2")
    assert get_databases({"CLICKHOUSE_URLS": TWO_DATABASES}) == ("a", "b")
    assert get_databases({}) == ()
    served = replace(deployment(2), endpoint=first, shards=(first, second))
    source = expand_shards(table(Mirror(sharding=BY_ID), FullText("body")), 2)
    schema = tuple(DeltaField(name=n, type=Primitive("string")) for n in ("tenant", "id", "body"))
    names = [
        served.make_index_store(source, each, schema).shape.database for each in source.indexes
    ]
    assert names == ["a", "b", "a"]
    info = make_job_spec(source, source.indexes[1]).detail.consumer
    assert (served.get_index_data(info).database, served.get_index_data(info).view) == (
        "b",
        "t_mirror",
    )


def test_dagster_shows_an_index_where_its_url_has_it():
    source = expand_shards(table(Mirror(sharding=BY_ID), FullText("body")), 2)

    def places(*databases):
        specs = build_index_assets(source, "pool", databases).specs
        return {each.key.path[-1]: each.metadata["dagster/table_name"] for each in specs}

    assert places("a", "b") == {
        "t_mirror_shard_0": "a.t_mirror",
        "t_mirror_shard_1": "b.t_mirror",
        "t_text": "a.t_text",
    }
    assert set(places().values()) == {"shop.t_mirror", "shop.t_text"}


def test_tables_of_one_name_do_not_share_a_database_that_a_url_names():
    sources = [SourceTable(f"{d}.t", key="id", indexes=[Mirror()]) for d in ("shop", "crm")]
    check_declared_once(sources)
    with pytest.raises(ConfigError, match=r"would both have the index view 'a\.t_mirror'"):
        check_declared_once(sources, ("a",))
    shard = parse_endpoints("http://one:1/?database=a")
    within = replace(deployment(1), endpoint=shard[0], shards=shard)
    info = make_job_spec(sources[0], Mirror(name="mine")).detail.consumer
    check_view_free(within, sources, sources[0], info)
    other = JobID(db="crm", table="t", job="mine")
    within.log.register("x", other, "1", make_job_spec(sources[1], Mirror(name="mine")))
    with pytest.raises(ConfigError, match=r"view a\.t_mine already belongs to index crm\.t/mine"):
        check_view_free(within, sources, sources[0], info)
    check_view_free(deployment(1), sources, sources[0], info)


def test_the_deployment_of_an_environment_has_its_servers(tmp_path):
    environ = {
        "CLICKHOUSE_URLS": "http://one:1 http://two:2",
        "SPARK_REMOTE": "sc://127.0.0.1:9",
        "ISCP_LOG_URL": f"sqlite:///{tmp_path / 'log.sqlite'}",
        "ISCP_LAKE": str(tmp_path),
    }
    found = open_deployment(environ)
    assert [each.host for each in found.endpoints] == ["one", "two"]
    assert found.endpoint == found.endpoints[0]


@pytest.mark.parametrize("declared", [{"key": ["id"]}, Sharding(key="id")])
def test_a_hash_function_may_be_left_out(declared):
    assert Mirror(sharding=declared).placement == Mirror(sharding=BY_ID).placement
