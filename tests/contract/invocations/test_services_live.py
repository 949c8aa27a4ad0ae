"""The examples of docs/services.md, deployed at a runtime and invoked by HTTP."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from durable_invocations import InvocationFailedError, service_app
from runtime_support.runtimes.live_runtime import IMPATIENT, running, until
from support.errors import raises_naming
from support.paths import DOCS

PAGE = (DOCS / "services.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r'^```python title="(.+?)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))
SECONDS = 20
mailed = []


def charge(id_, amount):
    if amount > 100:
        raise OSError("too much")
    return f"paid {amount}"


def run_example(title):
    """Run an example of the page; return its names."""
    names = {"__name__": "page", "charge": charge, "mail": lambda *mail: mailed.append(mail)}
    exec(EXAMPLES[title].replace("ctx.sleep(1)", "ctx.sleep(0.1)"), names)
    return names


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    declared = [
        run_example(title)[name]
        for title, name in {
            "a run with a policy": "shop",
            "a virtual object": "cart",
            "an approval, with a deadline": "approvals",
            "a workflow": "signup",
        }.items()
    ]
    # More attempts than the run of the page has.
    policy = replace(IMPATIENT, attempts=10)
    with running(Path(tmp_path_factory.mktemp("runtime")), policy) as runtime:
        for app in (run_example("greeter.py")["app"], service_app(*declared)):
            runtime.client.register(runtime.serve(app))
        yield runtime.client


def test_the_greeter_greets_as_the_page_shows(client):
    greeting = client.call("Greeter", "greet", "Ada", seconds=SECONDS)
    assert f'"{greeting}"\n' in PAGE


def test_a_payment_succeeds_or_fails_for_good(client):
    assert client.call("Shop", "pay", 7, seconds=SECONDS) == "paid 7"
    with raises_naming(InvocationFailedError, "OSError", "too much"):
        client.call("Shop", "pay", 700, seconds=SECONDS)


def test_a_cart_keeps_its_items(client):
    counts = [
        client.call("Cart", "add", item, key="k", seconds=SECONDS) for item in ("tea", "milk")
    ]
    assert counts == [1, 2]
    assert client.call("Cart", "items", key="k", seconds=SECONDS) == ["tea", "milk"]
    assert client.call("Cart", "items", key="other", seconds=SECONDS) == []


def test_an_approval_waits_for_the_answer_to_its_mail(client):
    sent = client.send("Approvals", "ask", "holiday")
    client.resolve(mail_about("holiday"), "yes")
    assert client.attach(sent.id, seconds=SECONDS) == "yes"


def test_a_workflow_waits_for_its_click(client):
    sent = client.send("Signup", "run", "a@b.c", key="k")
    mail_about("a@b.c")
    client.call("Signup", "click", key="k", seconds=SECONDS)
    assert client.attach(sent.id, seconds=SECONDS) is True
    with pytest.raises(InvocationFailedError):
        client.call("Signup", "click", key="k", seconds=SECONDS)


def mail_about(subject):
    return until(lambda: next((content for about, content in mailed if about == subject), None))


def test_the_endpoint_that_the_protocols_page_writes_by_hand_is_driven(tmp_path):
    page = (DOCS / "invocation-protocol.md").read_text(encoding="utf-8")
    (code,) = re.findall(
        r'^```python title="by_hand.py"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL
    )
    names = {}
    exec(code, names)
    with running(tmp_path) as runtime:
        runtime.client.register(runtime.serve(names["app"]))
        sent = runtime.client.send("ByHand", "greet", "Ada")
        assert runtime.client.attach(sent.id, seconds=SECONDS) == "Hello, Ada, of 3 letters!"
        invocation = runtime.client.invocation(sent.id)
    kinds = [entry["type"] for entry in invocation["journal"]]
    assert (kinds, invocation["attempts"]) == (["Input", "Run", "Sleep", "Output"], 3)
    assert set(re.findall(r"0x[0-9A-F]{4}", code)) <= set(re.findall(r"`(0x[0-9A-F]{4})`", page))


def test_the_pages_test_of_a_handler_passes(monkeypatch):
    module = ModuleType("greeter")
    vars(module).update(run_example("greeter.py"))
    monkeypatch.setitem(sys.modules, "greeter", module)
    test = {}
    exec(EXAMPLES["test_greeter.py"], test)
    test["test_ada_is_greeted"]()
