import pytest

from support.jobs.one_table import Clock, in_memory, orders


@pytest.fixture
def source(tmp_path):
    return orders(tmp_path)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def deployment(clock):
    return in_memory(clock)
