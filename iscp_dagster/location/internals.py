"""Private names of Dagster that the location's assets and jobs need.

A test checks each name against the pinned version of Dagster.
"""

from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData as Target,
)
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    DEFAULT_DATA_VERSION,
    NULL_EVENT_POINTER,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from dagster._core.definitions.metadata.metadata_value import ObjectMetadataValue
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.events import AssetMaterializationPlannedData, DagsterEventBatchMetadata
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    BACKFILL_ID_TAG,
    MAX_RETRIES_TAG,
    PARENT_RUN_ID_TAG,
    PARTITION_NAME_TAG,
    ROOT_RUN_ID_TAG,
)
