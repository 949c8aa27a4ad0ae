"""Endpoints to drive: the services of the tests, written with each SDK."""

from __future__ import annotations

import sys

import pytest
from sdkvenv import sdk_python
from served import served


@pytest.fixture(scope="session")
def sdk_endpoint(tmp_path_factory):
    """Run the services written with restate-sdk, in its own environment."""
    with served(sdk_python(), "sdkservices:app", tmp_path_factory.mktemp("sdk")) as server:
        yield server


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory):
    """Run the same services, and more, written with this project."""
    with served(sys.executable, "ourservices:app", tmp_path_factory.mktemp("ours")) as server:
        yield server
