"""A source table, a deployment without services, and runners that look at tables."""

import pytest

from iscp_dagster.planning.reporter import Reporter
from iscp_dagster.planning.runner import Runner
from support.jobs.log_rows import carry_out
from support.jobs.one_table import Clock, commit, in_memory, orders


class Sensor:
    """A runner, and the cursors that Dagster keeps of its looks and reports."""

    def __init__(self, deployment, sources, *, cursor=None, **options):
        self.deployment, self.cursor, self.report_cursor = deployment, cursor, None
        self.runner = Runner(deployment, sources, **options)

    def look(self):
        look = self.runner.look(self.cursor)
        self.cursor = look.cursor
        return look

    def synchronize(self):
        """Look, and do to the log what the look's runs would do."""
        look = self.look()
        carry_out(self.deployment, look)
        return look

    def settle(self):
        """Synchronize until nothing changes any more."""
        last_cursor = object()
        while self.cursor != last_cursor:
            last_cursor = self.cursor
            self.synchronize()

    def report(self):
        report = Reporter(self.runner).report(self.report_cursor)
        self.report_cursor = report.cursor
        return report

    def restart(self, *sources):
        """Continue with another runner, of these tables or the same ones."""
        self.runner = Runner(self.deployment, sources or self.runner.sources)


@pytest.fixture
def source(tmp_path):
    return orders(tmp_path)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def deployment(clock):
    return in_memory(clock)


@pytest.fixture
def start(deployment):
    def start_sensor(*sources, deployment=deployment, **options):
        return Sensor(deployment, sources, **options)

    return start_sensor


@pytest.fixture
def begin(start):
    def begin_sensor(source, *tenants):
        """Commit a row for each tenant, and bring them in step."""
        commit(source, *tenants)
        sensor = start(source)
        sensor.synchronize()
        return sensor

    return begin_sensor
