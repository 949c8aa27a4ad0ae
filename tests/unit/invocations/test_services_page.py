"""docs/services.md says what the code does, and its examples run."""

import asyncio
import re

import pytest
from anyio import to_thread

import durable_invocations as exported
from durable_invocations import Context, service_app
from durable_invocations.protocol.failures import Failure
from durable_invocations.protocol.results import EMPTY
from durable_invocations.runtime.settings import RuntimeSettings
from durable_invocations.serving.stream import Options
from runtime_support.endpoints.asgi_stream import Journal, names
from support.errors import assert_names
from support.paths import DOCS

PAGE = (DOCS / "services.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r'^```python title="(.+?)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))


def run_example(title, **names):
    names = {"__name__": "page", **names}
    exec(EXAMPLES[title], names)
    return names


def attempt(journal):
    return names(asyncio.run(journal.attempt()))


def drive(journal, *results):
    """Drive it until it ends; what it waits for gets these results, in order."""
    remaining = list(results)
    for _ in range(20):
        if attempt(journal)[-1] == "End":
            return journal.output
        for index, entry in enumerate(journal.entries):
            if entry.kind.completable and not entry.completed and remaining:
                journal.complete(index, remaining.pop(0))
    raise AssertionError(journal.kinds)


def test_the_first_handler_has_ten_lines_and_counts_once():
    text = EXAMPLES["greeter.py"]
    assert len([line for line in text.splitlines() if line.strip()]) <= 10
    journal = Journal(run_example("greeter.py")["app"], "Greeter/greet", b'"Ada"')
    assert attempt(journal) == ["Run", "Suspension"]
    assert attempt(journal) == ["Sleep", "Suspension"]
    journal.complete(2)
    assert attempt(journal) == ["Output", "End"]
    assert journal.output.value.decode() in PAGE


def test_a_run_with_a_policy_is_charged_by_its_id():
    def charge(id_, amount):
        if amount > 100:
            raise OSError("too much")
        return f"{id_} {amount}"

    app = service_app(run_example("a run with a policy", charge=charge)["shop"])
    assert drive(Journal(app, "Shop/pay", b"7")).value == b'"inv_1test 7"'
    dear = Journal(app, "Shop/pay", b"700")
    assert attempt(dear) == ["Error"]
    assert dear.last.next_retry_delay == 100
    dear.retries = (4, 0)
    assert attempt(dear) == ["Run", "Suspension"]
    failure = drive(dear).failure
    assert failure.code == 402
    assert_names(failure.message, "OSError", "too much")


def test_a_virtual_object_keeps_its_items():
    app = service_app(run_example("a virtual object")["cart"])
    add = Journal(app, "Cart/add", b'"tea"', key="k", state={"items": b'["milk"]'})
    assert drive(add).value == b"2"
    assert add.entries[2].message().value == b'["milk","tea"]'
    read = Journal(app, "Cart/items", key="k", state={})
    assert drive(read).value == b"[]"


@pytest.mark.parametrize(
    ("results", "output"), [((b'"yes"', EMPTY), b'"yes"'), ((EMPTY,), b'"nobody answered"')]
)
def test_an_approval_has_a_deadline(results, output):
    mails = []
    example = run_example("an approval, with a deadline", mail=lambda *mail: mails.append(mail))
    app = service_app(example["approvals"])
    journal = Journal(app, "Approvals/ask", b'"holiday"')
    assert attempt(journal) == ["Awakeable", "Run", "Suspension"]
    assert attempt(journal) == ["Sleep", "Suspension"]
    journal.complete(1 if len(results) == 2 else 3, results[0])
    assert drive(journal).value == output
    ((request, approval),) = mails
    assert request == "holiday"
    assert approval.startswith("prom_1")


def test_a_workflow_waits_for_its_promise():
    app = service_app(run_example("a workflow", mail=lambda *_: None)["signup"])
    run = Journal(app, "Signup/run", b'"a@b.c"', key="k", state={})
    assert drive(run, b"true").value == b"true"
    click = Journal(app, "Signup/click", key="k", state={})
    assert drive(click, EMPTY).value == b""
    again = Journal(app, "Signup/click", key="k", state={})
    assert drive(again, Failure(code=409, message="kept")).failure.code == 409


def test_the_steps_that_the_page_names_exist():
    named = set(re.findall(r"`(?:await |name, result = await |id, answer = )?ctx\.(\w+)", PAGE))
    assert named >= {"run", "sleep", "call", "send", "awakeable", "gather", "select", "cancel"}
    attributes = {"id", "key", "headers", "state"}
    assert [name for name in named - attributes if not hasattr(Context, name)] == []
    assert {name for name in vars(Context) if not name.startswith("_")} <= named


async def test_the_limits_and_times_are_those_of_the_page():
    limits, settings = Options().limits, RuntimeSettings()
    threads = to_thread.current_default_thread_limiter().total_tokens
    for text in (
        f"{limits.message_bytes >> 20} MiB",
        f"{limits.journal_entries:,}\nentries, {limits.journal_bytes >> 20} MiB",
        f"after {settings.policy.attempts} (",
        f"At most {threads} functions",
    ):
        assert text in PAGE
    assert (settings.inactivity, settings.inactivity + settings.abort) == (60, 11 * 60)


def test_the_page_names_what_is_exported():
    invoking = (DOCS / "invocations.md").read_text(encoding="utf-8")
    lacking = [name for name in exported.__all__ if name not in PAGE + invoking]
    assert lacking == []
