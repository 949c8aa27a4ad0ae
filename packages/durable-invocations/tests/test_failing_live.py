"""Handlers that fail or are stopped, at a runtime that is invoked over HTTP."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import pytest

from durable_invocations import (
    Client,
    Context,
    InvocationFailedError,
    Service,
    service_app,
    testing,
)
from durable_invocations.errors import UnavailableError, WaitError
from runtime_support.errors import raises_naming
from runtime_support.runtimes.live_runtime import DEADLINE, IMPATIENT, running, until


def test_a_runtime_for_tests_pauses_a_failing_handler_and_leaves_nothing(
    caplog, monkeypatch, tmp_path
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broken, tried = Service("Broken"), []

    @broken.handler
    async def work(_ctx: Context) -> None:
        tried.append(1)
        raise OSError("it is broken")

    with testing.running(broken, attempts=2) as client:
        (folder,) = tmp_path.iterdir()
        sent = client.send("Broken", "work")
        until(lambda: client.invocation(sent.id)["status"] == "paused")
        with raises_naming(WaitError, sent.id, "0.1 s"):
            client.attach(sent.id, seconds=0.1)
    assert (len(tried), folder.exists()) == (2, False)
    assert "OSError: it is broken" in caplog.text
    with pytest.raises(UnavailableError):
        Client(client.url).check_health()


@pytest.mark.parametrize("attempts", [1, 10_000])
def test_an_invocation_that_fails_or_is_paused_ends_when_it_is_canceled(tmp_path, attempts):
    failing = Service("Failing")

    @failing.handler
    async def always(ctx: Context) -> None:
        raise OSError("the disk is full")

    with running(tmp_path, replace(IMPATIENT, attempts=attempts)) as runtime:
        runtime.client.register(runtime.serve(service_app(failing)))
        sent = runtime.client.send("Failing", "always")
        status = "paused" if attempts == 1 else "backing off"
        until(lambda: runtime.client.invocation(sent.id)["status"] == status)
        assert runtime.client.cancel(sent.id) is True
        with pytest.raises(InvocationFailedError) as caught:
            runtime.client.attach(sent.id, seconds=DEADLINE)
        assert (caught.value.status, caught.value.reason) == (409, "canceled")
        assert runtime.client.resume(sent.id) is False


def test_a_finally_block_is_executed_at_each_end_of_an_attempt_but_its_steps_not_while_it_waits():
    """If the attempt failed, though, a step in it is executed and stored."""
    tidy, entered = Service("Tidy"), []

    @tidy.handler
    async def work(ctx: Context, fails: bool) -> None:
        try:
            await ctx.sleep(0.05)
            if fails:
                raise OSError
        finally:
            entered.append(1)
            await ctx.run("tidy", entered.append, 2)

    with testing.running(tidy, attempts=1) as client:
        client.call("Tidy", "work", False, seconds=DEADLINE)
        assert (entered.count(1) > 1, entered.count(2)) == (True, 1)
        sent = client.send("Tidy", "work", True)
        until(lambda: client.invocation(sent.id)["status"] == "paused")
        kinds = [entry["type"] for entry in client.invocation(sent.id)["journal"]]
    assert kinds == ["Input", "Sleep", "Run"]
