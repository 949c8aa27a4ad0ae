"""Endpoints to drive: the services of the tests, written with each SDK."""

from __future__ import annotations

import pytest
from sdkvenv import sdk_python
from served import served


@pytest.fixture(scope="session")
def sdk_endpoint(tmp_path_factory):
    """Run the services written with restate-sdk, in its own environment."""
    with served(sdk_python(), "sdkservices:app", tmp_path_factory.mktemp("sdk")) as server:
        yield server
