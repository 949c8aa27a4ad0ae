"""docs/invocation-protocol.md shows what the code has."""

import re
import subprocess
import sys

import pytest

from durable_invocations.journal import handler_state, runtime_side
from durable_invocations.protocol.decoding import DEFAULT, MIB
from durable_invocations.protocol.failures import JOURNAL_MISMATCH, PROTOCOL_VIOLATION, TOO_LARGE
from durable_invocations.protocol.frames import COMPLETED, REQUIRES_ACK
from durable_invocations.protocol.kinds import KINDS
from durable_invocations.protocol.services import Mode
from durable_invocations.protocol.table import DOES, render_lines
from durable_invocations.protocol.versions import (
    MANIFESTS,
    choose_manifest_version,
    format_manifest_type,
)
from durable_invocations.runtime.settings import RuntimeSettings
from durable_invocations.runtime.store.views import Status
from durable_invocations.serving.app import DISCOVERIES, SERVER
from support.paths import DOCS

PAGE = (DOCS / "invocation-protocol.md").read_text(encoding="utf-8")


def test_the_table_of_types_is_made_from_the_code():
    table = PAGE.partition("protocol.table -->\n")[2].partition("\n\n")[0]
    assert table.splitlines() == render_lines()
    assert list(DOES) == list(KINDS.values())
    module = "durable_invocations.protocol.table"
    printed = subprocess.run([sys.executable, "-m", module], check=True, capture_output=True)
    assert printed.stdout.decode() == f"{table}\n"


def test_the_diagram_has_every_status_of_invocations_and_each_ends():
    (diagram,) = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", PAGE, re.DOTALL)
    arrows = set(re.findall(r"^ +(\S+) --> (\S+):", diagram, re.MULTILINE))
    statuses = {each.label.replace(" ", "_") for each in Status}
    assert {end for arrow in arrows for end in arrow} == {*statuses, "[*]"}
    reached = {"[*]"}
    for _ in statuses:
        reached |= {start for start, end in arrows if end in reached}
    assert reached == {*statuses, "[*]"}


@pytest.mark.parametrize(
    ("side", "phases"),
    [("service endpoint", handler_state.HandlerPhase), ("runtime", runtime_side.RuntimePhase)],
)
def test_the_phases_of_each_side_are_those_of_its_machine(side, phases):
    (row,) = re.findall(rf"^\| {side} \| (.*) \|$", PAGE, re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == [each.value for each in phases]


def test_discovery_is_as_the_page_says():
    section = PAGE.partition("## Discovery")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(?:GET )?…/(\w+)`", section)) == DISCOVERIES
    assert f"`{format_manifest_type(max(MANIFESTS))}` or `v{min(MANIFESTS)}`" in section
    assert f"`{SERVER}`" in section
    assert choose_manifest_version(None) == min(MANIFESTS)
    assert all(f"`{each.value}`" in section for each in Mode)


@pytest.mark.parametrize("number", range(2))
def test_the_examples_do_what_the_page_says(number):
    exec(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[number], {})


def test_the_numbers_are_those_of_the_code():
    for text in (
        f"`0x{REQUIRES_ACK:04x}` REQUIRES_ACK",
        f"`0x{COMPLETED:04x}` COMPLETED",
        f"{DEFAULT.message_bytes // MIB} MiB",
        f"{DEFAULT.journal_entries:,} entries or {DEFAULT.journal_bytes // MIB} MiB",
        f"{PROTOCOL_VIOLATION} (protocol violation)",
        f"{JOURNAL_MISMATCH} (the handler",
        f"{TOO_LARGE} (too large)",
        "Version 3 was withdrawn",
        {60.0: "ends the body after a minute of silence"}[RuntimeSettings().inactivity],
    ):
        assert text in PAGE.replace("\n", " ")
