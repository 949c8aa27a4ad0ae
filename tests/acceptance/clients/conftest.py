"""Other people's clients and audits."""

import pytest

from support.clients import npm


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """Install the packages of npm; skip where they cannot be had."""
    return npm.install_packages(tmp_path_factory.mktemp("npm"))
