"""What the launchpad offers for a load, declared without Dagster."""

from __future__ import annotations

import subprocess
import sys

from dagster import Config
from pydantic import BaseModel, Field

from iscp_dagster.local.services.settings import get_repository
from iscp_dagster.location.assets.source_asset import to_dagster_config


class Plain(BaseModel):
    summary: bool = Field(default=False, description="Less of it.")
    most: int


class Ours(Config):
    summary: bool = Field(default=False, description="Less of it.")
    most: int


def shown(model):
    return {
        name: (field.config_type.kind, field.default_provided, field.description)
        for name, field in model.to_fields_dict().items()
    }


def test_a_model_of_pydantic_is_offered_as_one_of_dagsters():
    assert shown(to_dagster_config(Plain)) == shown(Ours)
    assert to_dagster_config(Plain).__name__ == "Plain"
    assert to_dagster_config(Ours) is Ours


def test_who_reads_what_the_demo_declares_need_not_import_dagster():
    """Commands of `iscp` read it; importing Dagster would make them take half as long again."""
    code = "import sys, assets.docs; print({'dagster', 'pyspark'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=get_repository(),
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "set()\n"
