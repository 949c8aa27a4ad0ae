"""What the server of queries answers to a request that is too large, over a real connection."""

from asgiservers import uvicorn_of
from largerequests import status_of_large

from iscp_dagster.serve.catalog import Catalog
from iscp_dagster.serve.graph.schemas import Schemas
from iscp_dagster.serve.web.app import Settings, create_app


def test_the_server_of_queries_takes_in_what_is_too_large():
    queries = create_app(Settings(schemas=Schemas(load=Catalog), environ={}))
    with uvicorn_of(queries) as server:
        assert status_of_large(server.url, "/graphql") == 413
