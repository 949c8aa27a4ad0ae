"""A runtime of invocations for the tests of a module."""

import pytest

from runtime_support.runtimes.live_runtime import running


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with running(tmp_path_factory.mktemp("runtime")) as runtime:
        yield runtime
