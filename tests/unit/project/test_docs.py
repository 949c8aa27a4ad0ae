"""Documents name what there is, and what a reader needs is documented."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from itertools import count

import pytest
import typer
import yaml

from iscp_dagster import SourceTableComponent, Trigger, View
from iscp_dagster.api.discovery import load_tables
from iscp_dagster.cli.main import COMMANDS, load
from iscp_dagster.clickhouse.kinds.mirror import Mirror
from iscp_dagster.clickhouse.kinds.text import FullText
from iscp_dagster.clickhouse.kinds.vector import Vector
from iscp_dagster.model.declared.linking.attach import Declarations
from iscp_dagster.model.declared.tables import SourceTable
from iscp_dagster.model.declared.views import TAKEN
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
NUMBERS = count()
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
VARIABLE = re.compile(r"""["']((?:ISCP|CLICKHOUSE|SPARK|DAGSTER|JAVA)_[A-Z_]+)["']""")
INTERNAL_VARIABLES = {
    # The project sets them for its own children.
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


EACH_DOCUMENT = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read_block(page: str, head: str) -> str:
    """Return the page's only block of code that begins with these words."""
    pattern = rf"^```{head}.*?\n(.*?)^```$"
    (block,) = re.findall(pattern, read(page), re.MULTILINE | re.DOTALL)
    return block


def read_code() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in CODE)


@EACH_DOCUMENT
def test_every_link_within_the_project_leads_somewhere(document):
    links = LINK.findall(document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_readme_is_short_and_declares_what_the_quickstart_does():
    readme, quickstart = read("README.md"), read("docs/quickstart.md")
    assert len(readme.splitlines()) < 150
    blocks = re.findall(r"^```python title=.*?^```$", readme, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    assert [block for block in blocks if block not in quickstart] == []
    assert all(len(re.findall(r"^[^`\n]", block, re.MULTILINE)) <= 10 for block in blocks)
    pages = {str(page.relative_to(ROOT)) for page in DOCUMENTS if page.parent != ROOT}
    pages = {page for page in pages if not page.startswith("docs/adr/")}
    assert pages - set(LINK.findall(readme)) == set()


@pytest.mark.parametrize("page", ["README.md", "docs/views.md", "docs/triggers.md"])
def test_pages_that_ask_for_in_commit_timestamps_say_at_once_who_cannot_write_them(page):
    sentences = re.split(r"[.:](?=\s)", " ".join(read(page).split()))
    number = next(at for at, text in enumerate(sentences) if "in-commit timestamps" in text)
    assert "delta-rs" in " ".join(sentences[number : number + 2])


def test_every_command_that_readers_are_shown_exists_with_its_options():
    pages = "\n".join(map(read, ("README.md", "docs/quickstart.md", "docs/stack.md")))
    calls = re.findall(r"\./iscp ([a-z]+[^|`\n#]*)", pages)
    assert {check_call(call)[0] for call in calls} == set(COMMANDS)


def test_the_jobs_page_names_every_command_of_jobs_with_options_that_exist():
    calls = re.findall(r"\./iscp (job [a-z]+[^|`\n#]*)", read("docs/jobs.md"))
    names = {check_call(call)[1] for call in calls}
    assert names == set(load("job", COMMANDS["job"]).commands)


@EACH_DOCUMENT
def test_the_text_names_the_file_of_each_example(document):
    """Where documents are shown, the titles of blocks of code often are not."""
    page = document.read_text(encoding="utf-8")
    titles = re.findall(r'^```\w+ title="(\S+\.\w+)"$', page, re.MULTILINE)
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    assert [title for title in titles if f"`{title}`" not in prose] == []


def test_every_command_that_documents_and_messages_quote_exists():
    """One that is put together from values is not looked at."""
    groups = {name for name in COMMANDS if hasattr(load(name, COMMANDS[name]), "commands")}
    texts = [path.read_text(encoding="utf-8") for path in (*DOCUMENTS, *CODE)]
    calls = re.findall(r"`(?:\./)?iscp ([a-z]+\b[^`|#]*)`", "\n".join(texts))
    for call in {*calls} - groups:
        if "{verb}" not in call:
            check_call(call)


def check_call(call: str) -> list[str]:
    """Check that the command exists and has the options; return its words."""
    name, *words = call.split()
    command = load(name, COMMANDS[name])
    if not isinstance(command, typer.core.TyperCommand):
        command = command.commands[words[0]]
    options = {word for word in words if word.startswith("--")}
    assert options <= {name for parameter in command.params for name in parameter.opts}, call
    return call.split()


def read_life_cycle(document: str) -> set[tuple[str, str, str]]:
    """Return (from, to, event) of each arrow in a document's state diagram."""
    (diagram,) = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", read(document), re.DOTALL)
    arrows = re.findall(r"(\S+) --> (\S+): ([a-z ]+)", diagram)
    return {(start, end, event.strip()) for start, end, event in arrows}


def test_the_life_cycle_of_a_job_is_the_table_of_transitions():
    moves = {
        (start.label if start is not None else "[*]", transition.target.label, event.value)
        for event, transition in TRANSITIONS.items()
        if transition.target is not None
        for start in transition.allowed
    }
    arrows = {arrow for arrow in read_life_cycle("docs/jobs.md") if arrow[1] != "[*]"}
    assert arrows <= moves
    # Every state may become stranded; one arrow stands for all.
    assert {move for move in moves - arrows if move[2] != "strand"} == set()


def test_the_triggers_of_the_jobs_page_are_all_of_them():
    (table,) = re.findall(r"\| `job_type` \| when.*?\n\n", read("docs/jobs.md"), re.DOTALL)
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) - {"job_type"} == set(BUILT_IN)


def test_every_variable_that_the_code_reads_is_documented():
    variables = set(VARIABLE.findall(read_code())) - INTERNAL_VARIABLES
    page = read("docs/production.md")
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE)) == variables


def test_the_quickstart_names_every_option_of_a_table_and_its_indexes():
    page = read("docs/quickstart.md")
    kinds = (SourceTable, Mirror, FullText, Vector)
    options = {field.name for kind in kinds for field in fields(kind)}
    options -= {"auto_register", "left_out", "load", "load_config", "tenants"}
    assert options - set(re.findall(r"\w+", page)) == set()


@pytest.mark.parametrize("title", ["make_tickets.py", "change_tickets.py", "desk.py"])
def test_a_script_of_the_quickstart_says_how_to_set_the_variables_that_it_needs(title, tmp_path):
    code = read_block("docs/quickstart.md", f'python title="{title}"')
    (tmp_path / title).write_text(code)
    command, environment = [sys.executable, title], clean_environment(tmp_path)
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert run.returncode == 1
    assert b'eval "$( ./iscp env )"' in run.stderr


def test_the_words_of_the_glossary_are_those_of_the_code():
    words = re.findall(r"^- \*\*(.+?)\*\*:", read("CONTEXT.md"), re.MULTILINE)
    assert len(words) == len(set(words)) > 40
    code = read_code().lower()
    spelled = {word: re.sub(r"[ -]", "[ _-]?", word.lower()) for word in words}
    assert [word for word, spelling in spelled.items() if not re.search(spelling, code)] == []


def test_the_modules_that_the_architecture_names_exist():
    names = re.findall(r"`([a-z_]+(?:/[a-z_]*)+(?:\.py)?)`", read("docs/architecture.md"))
    assert len(names) > 10
    roots = (ROOT, ROOT / "iscp_dagster")
    assert [name for name in names if not any((root / name).exists() for root in roots)] == []


def test_decisions_are_numbered_and_say_context_decision_and_consequences():
    decisions = sorted(ROOT.glob("docs/adr/*.md"))
    for number, path in enumerate(decisions, start=1):
        page = path.read_text(encoding="utf-8")
        assert path.name.startswith(f"{number:04d}-")
        assert page.startswith(f"# {number}. ")
        for part in ("**Context.**", "**Decision.**", "**Consequences.**"):
            assert part in page, (path.name, part)


def test_the_builds_of_the_project_run_the_command_of_the_readme():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "exec ./iscp test\n" in script.read_text(encoding="utf-8")


def test_the_way_of_a_commit_is_short_and_numbered():
    """That its modules exist is checked with those of the whole page."""
    page = read("docs/architecture.md")
    (way,) = re.findall(r"## One commit, module by module.*?\n## ", page, re.DOTALL)
    rows = re.findall(r"^\| \(?(\d+)\)? \| `(\S+)` \|", way, re.MULTILINE)
    steps = dict(rows)
    assert list(steps) == [str(number) for number in range(1, len(steps) + 1)]
    assert 0 < len(steps) <= 20
    assert set(rows) == set(steps.items())


SHOWN = {
    "docs/views.md": (["mirror", "changes", "big_trades", "huge_trades"], View),
    "docs/triggers.md": (["big_trades", "large_trade_alert"], Trigger),
}


@pytest.mark.parametrize("page", SHOWN)
def test_what_a_page_declares_in_python_it_declares_in_yaml(page, tmp_path, monkeypatch):
    name, (consumers, _) = f"shown_{next(NUMBERS)}", SHOWN[page]
    (tmp_path / f"{name}.py").write_text(read_block(page, "python title="))
    monkeypatch.syspath_prepend(str(tmp_path))
    (in_python,) = load_tables({"ISCP_ASSETS": name})
    attributes = yaml.safe_load(read_block(page, "yaml title="))["attributes"]
    component = SourceTableComponent.from_attributes_dict(attributes=attributes)
    declarations = [*component.views, *component.triggers, *component.endpoints]
    (in_yaml,) = Declarations.of([component.table, *declarations]).build_tables()
    assert [consumer.name for consumer in in_python.consumers] == consumers
    assert [(consumer.name, consumer.definition) for consumer in in_python.consumers] == [
        (consumer.name, consumer.definition) for consumer in in_yaml.consumers
    ]
    targets = [trigger.to for trigger in in_python.triggers]
    assert targets == [trigger.to for trigger in in_yaml.triggers]


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_names_every_option(page):
    text, kind = read(page), SHOWN[page][1]
    options = {field.name for field in fields(kind)} - {"name"}
    assert [name for name in options if f"`{name}=`" not in text] == []


def test_the_names_that_a_calculated_column_cannot_have_are_all_documented():
    text = read("docs/views.md")
    assert [name for name in sorted(TAKEN) if f"`{name}`" not in text] == []
