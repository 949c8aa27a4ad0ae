"""What the server of queries answers to a request that is too large, over a real connection."""

from iscp_dagster.serve.catalog import ServedCatalog
from iscp_dagster.serve.graph.schemas import SchemaCache
from iscp_dagster.serve.web.app import GraphQLServerSettings, create_app
from runtime_support.endpoints.asgi_servers import uvicorn_of
from runtime_support.large_requests import status_of_large


def test_the_server_of_queries_takes_in_what_is_too_large():
    queries = create_app(GraphQLServerSettings(schemas=SchemaCache(load=ServedCatalog), environ={}))
    with uvicorn_of(queries) as server:
        assert status_of_large(server.url, "/graphql") == 413
