"""Names in the documents exist, and what a reader needs is documented."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields

import pytest
import typer

from iscp_dagster.cli.main import COMMANDS, load
from iscp_dagster.clickhouse.kinds.mirror import Mirror
from iscp_dagster.clickhouse.kinds.text import FullText
from iscp_dagster.clickhouse.kinds.vector import Vector
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.states import TRANSITIONS
from iscp_dagster.planning.triggers.loading import BUILT_IN
from support.paths import ROOT
from support.services.stack import clean_environment

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/*.md")])
CODE = [
    *(path for folder in ("iscp_dagster", "resources") for path in (ROOT / folder).rglob("*.py")),
    *ROOT.glob("packages/*/[a-z]*_*/**/*.py"),
    ROOT / "iscp",
]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
VARIABLE = re.compile(r"""["']((?:ISCP|CLICKHOUSE|SPARK|DAGSTER|JAVA)_[A-Z_]+)["']""")
OF_ITS_OWN = {
    # set by the project for its own children
    "ISCP_PYTHON_FOLLOWED",
    "ISCP_EMBEDDED_CLICKHOUSE_PASSWORD",
    "DAGSTER_HOME",
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "SPARK_CONNECT_MODE",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_LOCAL_DIRS",
    "SPARK_LOCAL_IP",
    "JAVA_TOOL_OPTIONS",
}


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def source() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in CODE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_within_the_project_leads_somewhere(document):
    links = LINK.findall(document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_readme_is_short_and_declares_what_the_quickstart_does():
    readme, quickstart = text("README.md"), text("docs/quickstart.md")
    assert len(readme.splitlines()) < 150
    declared = re.findall(r"^```python title=.*?^```$", readme, re.MULTILINE | re.DOTALL)
    assert len(declared) == 2
    assert [each for each in declared if each not in quickstart] == []
    assert all(len(re.findall(r"^[^`\n]", each, re.MULTILINE)) <= 10 for each in declared)
    leads = set(LINK.findall(readme))
    pages = {str(page.relative_to(ROOT)) for page in DOCUMENTS if page.parent != ROOT}
    assert {page for page in pages if not page.startswith("docs/adr/")} - leads == set()


@pytest.mark.parametrize("page", ["README.md", "docs/views.md", "docs/triggers.md"])
def test_pages_that_ask_for_in_commit_timestamps_say_at_once_who_cannot_write_them(page):
    sentences = re.split(r"[.:](?=\s)", " ".join(text(page).split()))
    asking = next(at for at, each in enumerate(sentences) if "in-commit timestamps" in each)
    assert "delta-rs" in " ".join(sentences[asking : asking + 2])


def test_every_command_that_readers_are_shown_exists_with_its_options():
    named = set()
    shown = "".join(map(text, ("README.md", "docs/quickstart.md", "docs/stack.md")))
    for line in shown.splitlines():
        for call in re.findall(r"\./iscp ([a-z]+[^|`\n#]*)", line):
            named.add(call.split()[0])
            check_call(call)
    assert named == set(COMMANDS)


def test_the_jobs_page_names_every_command_of_jobs_with_options_that_exist():
    page = text("docs/jobs.md")
    named = {check_call(call)[1] for call in re.findall(r"\./iscp (job [a-z]+[^|`\n#]*)", page)}
    assert named == set(load("job", COMMANDS["job"]).commands)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_text_names_the_file_of_each_example(document):
    """Where documents are shown, the titles of blocks of code often are not."""
    page = document.read_text(encoding="utf-8")
    titles = re.findall(r'^```\w+ title="(\S+\.\w+)"$', page, re.MULTILINE)
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    assert [title for title in titles if f"`{title}`" not in prose] == []


def test_every_command_that_documents_and_messages_quote_exists():
    """One that is made of values is not looked at."""
    groups = {name for name in COMMANDS if hasattr(load(name, COMMANDS[name]), "commands")}
    texts = [path.read_text(encoding="utf-8") for path in (*DOCUMENTS, *CODE)]
    quoted = re.findall(r"`(?:\./)?iscp ([a-z]+\b[^`|#]*)`", "\n".join(texts))
    for call in {*quoted} - groups:
        if "{verb}" not in call:
            check_call(call)


def check_call(call: str) -> list[str]:
    """Check that the command exists and has the options; return its words."""
    name, *words = call.split()
    command = load(name, COMMANDS[name])
    if not isinstance(command, typer.core.TyperCommand):
        command = command.commands[words[0]]
    options = {word for word in words if word.startswith("--")}
    assert options <= {name for each in command.params for name in each.opts}, call
    return call.split()


def life_cycle(document: str) -> set[tuple[str, str, str]]:
    """Return (from, to, event) of each arrow in a document's state diagram."""
    (diagram,) = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", text(document), re.DOTALL)
    arrows = re.findall(r"(\S+) --> (\S+): ([a-z ]+)", diagram)
    return {(start, end, event.strip()) for start, end, event in arrows}


def test_the_life_cycle_of_a_job_is_the_table_of_transitions():
    moves = {
        (start.label if start is not None else "[*]", transition.target.label, event.value)
        for event, transition in TRANSITIONS.items()
        if transition.target is not None
        for start in transition.allowed
    }
    drawn = {each for each in life_cycle("docs/jobs.md") if each[1] != "[*]"}
    assert drawn <= moves
    # Every state may become stranded; one arrow stands for all.
    assert {each for each in moves - drawn if each[2] != "strand"} == set()


def test_the_triggers_of_the_jobs_page_are_all_of_them():
    (table,) = re.findall(r"\| `job_type` \| when.*?\n\n", text("docs/jobs.md"), re.DOTALL)
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) - {"job_type"} == set(BUILT_IN)


def test_every_variable_that_the_code_reads_is_documented():
    read = set(VARIABLE.findall(source())) - OF_ITS_OWN
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", text("docs/production.md"), re.MULTILINE))
    assert documented == read


def test_the_quickstart_names_every_option_of_a_table_and_its_indexes():
    walk = text("docs/quickstart.md")
    for declared in (SourceTable, Mirror, FullText, Vector):
        for field in fields(declared):
            if field.name not in {"auto_register", "left_out", "load", "load_config", "tenants"}:
                assert re.search(rf"\b{field.name}\b", walk), field.name


@pytest.mark.parametrize("title", ["make_tickets.py", "change_tickets.py", "desk.py"])
def test_a_script_of_the_quickstart_says_how_to_set_the_variables_that_it_needs(title, tmp_path):
    (code,) = re.findall(
        rf'^```python title="{title}"\n(.*?)^```$',
        text("docs/quickstart.md"),
        re.MULTILINE | re.DOTALL,
    )
    (tmp_path / title).write_text(code)
    command = [sys.executable, title]
    ended = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(tmp_path), capture_output=True, check=False
    )
    assert ended.returncode == 1
    assert b'is not set; run first: eval "$( ./iscp env )"' in ended.stderr


def test_the_words_of_the_glossary_are_those_of_the_code():
    words = re.findall(r"^- \*\*(.+?)\*\*:", text("CONTEXT.md"), re.MULTILINE)
    assert len(words) == len(set(words)) > 40
    code = source().lower()
    spelled = {word: re.sub(r"[ -]", "[ _-]?", word.lower()) for word in words}
    assert [word for word, spelling in spelled.items() if not re.search(spelling, code)] == []


def test_the_modules_that_the_architecture_names_exist():
    named = re.findall(r"`([a-z_]+(?:/[a-z_]*)+(?:\.py)?)`", text("docs/architecture.md"))
    assert len(named) > 10
    places = (ROOT, ROOT / "iscp_dagster")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_decisions_are_numbered_and_say_context_decision_and_consequences():
    decisions = sorted(ROOT.glob("docs/adr/*.md"))
    for number, path in enumerate(decisions, start=1):
        said = path.read_text(encoding="utf-8")
        assert path.name.startswith(f"{number:04d}-")
        assert said.startswith(f"# {number}. ")
        for part in ("**Context.**", "**Decision.**", "**Consequences.**"):
            assert part in said, (path.name, part)


def test_the_builds_of_the_project_run_the_command_of_the_readme():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "exec ./iscp test\n" in script.read_text(encoding="utf-8")


def test_the_way_of_a_commit_leads_through_modules_and_functions_that_there_are():
    page = text("docs/architecture.md")
    (way,) = re.findall(r"## One commit, module by module.*?\n## ", page, re.DOTALL)
    rows = re.findall(r"^\| \(?(\d+)\)? \| `(\S+)` \| (.*?) \|", way, re.MULTILINE)
    steps = {number: module for number, module, _ in rows}
    assert 0 < len(steps) <= 20
    assert list(steps) == [str(number) for number in range(1, len(steps) + 1)]
    assert {(number, module) for number, module, _ in rows} == set(steps.items())
    for _, module, functions in rows:
        code = text(f"iscp_dagster/{module}")
        for owner, name in re.findall(r"`(?:(\w+)\.)?(\w+)`", functions):
            assert re.search(rf"^ *def {name}\(", code, re.MULTILINE), (module, name)
            assert not owner or f"class {owner}" in code, (module, owner)
