"""The quickstart's walk through a table of the reader's, executed as it stands."""

from __future__ import annotations

import os
import shlex
import sys

import pytest
from places import DOCS
from stackfixture import (
    SERVICES,
    assert_in_files_of_their_own,
    clean_environment,
    copied_project,
    running_stack,
)
from walk import Reader, blocks_of, section

from iscp_dagster.local.services import credentials
from iscp_dagster.local.services.settings import CLICKHOUSE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def walk():
    return blocks_of(section(DOCS / "quickstart.md", "Your own table"))


def reader(project, lake, stack):
    """In a copy of the project, with this machine's addresses."""
    python = shlex.quote(sys.executable)
    return Reader(
        folder=project,
        places={
            "./iscp": f"{python} -m iscp_dagster.cli.main",
            ".venv/bin/python": python,
            "http://127.0.0.1:8123": stack.service(CLICKHOUSE).address,
            "http://127.0.0.1:3000": stack.dagster_url,
            "/tmp/lake": str(lake),
        },
        environment=environment(project),
        logs=lambda: stack.home.joinpath("logs", "dagster.log").read_text(errors="replace")[-4000:],
    )


def environment(folder):
    """A shell in the copy: its code is imported, and no proxy stands before this machine."""
    here = {"PYTHONPATH": str(folder), "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    return clean_environment(folder / ".iscp", os.environ) | here


@pytest.fixture
def project(tmp_path):
    """A copy of the project, without what was declared beside it."""
    return copied_project(tmp_path / "project")


def test_the_walk_declares_asks_changes_and_verifies():
    blocks = walk()
    assert "assets/tickets.py" in [block.title for block in blocks]
    declaration = next(block.text for block in blocks if block.title == "assets/tickets.py")
    assert len(declaration.strip().splitlines()) <= 10
    outputs = [block for block in blocks if block.language == "text"]
    assert len(outputs) >= 7


def test_the_walk_works_as_written(project, tmp_path):
    extra = {"PYTHONPATH": str(project), "ISCP_SCAN_SECONDS": "1"}
    with running_stack(project / ".iscp", SERVICES, extra=extra) as stack:
        reader(project, tmp_path / "lake", stack).do(walk())
        held = credentials.read(stack.home)
        assert_in_files_of_their_own(project, {held.password, held.spark_token})
