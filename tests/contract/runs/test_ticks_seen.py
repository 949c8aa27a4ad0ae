"""What `iscp health` asks Dagster for: the runner's ticks, of whichever start of Dagster."""

from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.test_utils import instance_for_test
from dagster_graphql.test.utils import define_out_of_process_context, execute_dagster_graphql

from iscp_dagster.cli.checkup import _DAGSTER

CODE = """
import dagster as dg

@dg.op
def nothing(): ...

@dg.job
def idle(): nothing()

@dg.sensor(name="iscp_runner", job=idle)
def runner(): ...

@dg.repository
def location():
    return [idle, runner]
"""


def test_the_ticks_of_a_later_start_are_seen(tmp_path):
    kind = InstigatorType.SENSOR
    with instance_for_test() as instance:
        for start in range(2):
            # A code server at another place is another origin of the same sensor.
            file = tmp_path / str(start) / "code.py"
            file.parent.mkdir()
            file.write_text(CODE)
            with define_out_of_process_context(str(file), "location", instance) as context:
                (place,) = context.code_locations
                (repository,) = place.get_repositories().values()
                sensor = repository.get_sensor("iscp_runner")
                if start == 0:
                    state = SensorInstigatorData(min_interval=30)
                    origin = sensor.get_remote_origin()
                    instance.add_instigator_state(
                        InstigatorState(origin, kind, InstigatorStatus.RUNNING, state)
                    )
                instance.create_tick(
                    TickData(
                        instigator_origin_id=sensor.get_remote_origin_id(),
                        instigator_name=sensor.name,
                        instigator_type=kind,
                        status=TickStatus.SKIPPED,
                        timestamp=1_800_000_000.0 + start,
                        selector_id=sensor.selector_id,
                    )
                )
                found = execute_dagster_graphql(context, _DAGSTER).data
            (entry,) = found["workspaceOrError"]["locationEntries"]
            (asked,) = entry["locationOrLoadError"]["repositories"][0]["sensors"]
            assert [each["timestamp"] for each in asked["sensorState"]["ticks"]] == [
                1_800_000_000.0 + start
            ]
