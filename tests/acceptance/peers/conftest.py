"""Endpoints to drive, with the services of the tests written with each SDK, and a database."""

import sys

import pytest

from durable_invocations.runtime.sql.database import open_database
from support.invocations.asgi_process import PROJECT_SERVICES, SDK_SERVICES, served, uvicorn
from support.invocations.sdk_venv import sdk_python


@pytest.fixture(scope="session")
def sdk_endpoint(tmp_path_factory):
    """Run the services written with restate-sdk, in its own environment."""
    with served(sdk_python(), SDK_SERVICES, tmp_path_factory.mktemp("sdk")) as server:
        yield server


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory):
    """Run the same services, and more, written with this project."""
    with served(sys.executable, PROJECT_SERVICES, tmp_path_factory.mktemp("ours")) as server:
        yield server


@pytest.fixture(scope="session")
def endpoint_of_uvicorn(tmp_path_factory):
    """Run them with uvicorn, which speaks HTTP/1.1 alone."""
    folder = tmp_path_factory.mktemp("uvicorn")
    with served(sys.executable, PROJECT_SERVICES, folder, uvicorn) as server:
        yield server


@pytest.fixture(params=["sdk_endpoint", "endpoint"], ids=["sdk", "ours"])
def url(request):
    """Return the address of the services, as each SDK serves them."""
    return request.getfixturevalue(request.param).url


@pytest.fixture(params=[1, 2], ids=["exchange", "duplex"])
def http(request):
    """Return the version of HTTP: with 1 the whole request comes before the response."""
    return request.param


@pytest.fixture
def engine(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path}/log.db", keep_open=True)
    yield engine
    engine.dispose()
