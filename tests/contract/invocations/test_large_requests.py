"""What the server of queries answers to a request that is too large, over a real connection."""

from asgiservers import uvicorn_of
from largerequests import status_of_large

from iscp_dagster.serve.catalog import ServedCatalog
from iscp_dagster.serve.graph.schemas import SchemaCache
from iscp_dagster.serve.web.app import GraphQLServerSettings, create_app


def test_the_server_of_queries_takes_in_what_is_too_large():
    queries = create_app(GraphQLServerSettings(schemas=SchemaCache(load=ServedCatalog), environ={}))
    with uvicorn_of(queries) as server:
        assert status_of_large(server.url, "/graphql") == 413
