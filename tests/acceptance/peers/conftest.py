"""Endpoints to drive: the services of the tests, written with each SDK."""

import sys

import pytest

from support.invocations.asgi_process import served, uvicorn
from support.invocations.sdk_venv import sdk_python


@pytest.fixture(scope="session")
def sdk_endpoint(tmp_path_factory):
    """Run the services written with restate-sdk, in its own environment."""
    with served(sdk_python(), "sdk_services:app", tmp_path_factory.mktemp("sdk")) as server:
        yield server


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory):
    """Run the same services, and more, written with this project."""
    with served(sys.executable, "project_services:app", tmp_path_factory.mktemp("ours")) as server:
        yield server


@pytest.fixture(scope="session")
def endpoint_of_uvicorn(tmp_path_factory):
    """Run them with uvicorn, which speaks HTTP/1.1 alone."""
    folder = tmp_path_factory.mktemp("uvicorn")
    with served(sys.executable, "project_services:app", folder, uvicorn) as server:
        yield server
