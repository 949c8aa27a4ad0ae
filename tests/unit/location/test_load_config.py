"""The options of a load that the launchpad shows, declared without Dagster."""

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


def describe_fields(model):
    return {
        name: (field.config_type.kind, field.default_provided, field.description)
        for name, field in model.to_fields_dict().items()
    }


def test_a_model_of_pydantic_becomes_one_of_dagster():
    assert describe_fields(to_dagster_config(Plain)) == describe_fields(Ours)
    assert to_dagster_config(Plain).__name__ == "Plain"
    assert to_dagster_config(Ours) is Ours


def test_the_demo_s_declarations_are_read_without_dagster():
    """Commands of `iscp` read them; importing Dagster would make them take half as long again."""
    code = "import sys, assets.docs; print({'dagster', 'pyspark'} & set(sys.modules))"
    command, folder = [sys.executable, "-c", code], get_repository()
    run = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    assert run.stdout == "set()\n"
