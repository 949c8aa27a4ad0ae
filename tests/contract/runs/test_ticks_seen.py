"""`iscp health` finds the runner's last tick, whichever start of Dagster it belongs to."""

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
from dagster_shared.serdes import deserialize_value, serialize_value

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


def test_the_ticks_of_a_later_start_are_found(tmp_path):
    """A code server at another place is another origin of the same sensor."""
    file, kind = tmp_path / "code.py", InstigatorType.SENSOR
    file.write_text(CODE)
    with (
        instance_for_test() as instance,
        define_out_of_process_context(str(file), "location", instance) as context,
    ):
        (location,) = context.code_locations
        (repository,) = location.get_repositories().values()
        sensor = repository.get_sensor("iscp_runner")
        later = sensor.get_remote_origin()
        earlier = deserialize_value(serialize_value(later).replace(str(file), "/earlier/code.py"))
        assert earlier.get_id() != later.get_id()
        state = SensorInstigatorData(min_interval=30)
        instance.add_instigator_state(
            InstigatorState(earlier, kind, InstigatorStatus.RUNNING, state)
        )
        for number, origin in enumerate([earlier, later]):
            data = TickData(
                instigator_origin_id=origin.get_id(),
                instigator_name=sensor.name,
                instigator_type=kind,
                status=TickStatus.SKIPPED,
                timestamp=1_800_000_000.0 + number,
                selector_id=sensor.selector_id,
            )
            instance.create_tick(data)
            answer = execute_dagster_graphql(context, _DAGSTER).data
            (entry,) = answer["workspaceOrError"]["locationEntries"]
            (shown,) = entry["locationOrLoadError"]["repositories"][0]["sensors"]
            timestamps = [tick["timestamp"] for tick in shown["sensorState"]["ticks"]]
            assert timestamps == [1_800_000_000.0 + number]
