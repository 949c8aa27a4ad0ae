"""The stack's home, ports, children's environment, state, logs and secrets."""

from __future__ import annotations

import errno
import logging
import netrc
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from iscp_dagster.api.environment import parse_clickhouse_endpoints
from iscp_dagster.cli import main as cli
from iscp_dagster.cli import stack as stack_commands
from iscp_dagster.joblog.sql.log import SqlLog
from iscp_dagster.local.services import clickhouse_server, credentials, logs, state
from iscp_dagster.local.services.lock import HomeLocks
from iscp_dagster.local.services.settings import (
    CLICKHOUSE,
    SERVICES,
    SPARK,
    StackSettings,
    build_child_environment,
    get_home,
    get_repository,
)
from iscp_dagster.local.services.state import Condition, ServiceState, StackState
from iscp_dagster.local.stack import control, environment, plan, ports, running, show, tails
from iscp_dagster.local.stack.ports import USUAL, choose, find_free_port, is_free
from iscp_dagster.local.stack.running import redact_address
from iscp_dagster.model.errors import ConfigError, SetupError, UnavailableError
from iscp_dagster.model.jobs import JobID
from support.errors import assert_names, raises_naming
from support.jobs.log_rows import make_plain_spec

LOCAL_PORT_RANGE = 51
IN_USE, NOT_AVAILABLE = f"Errno {errno.EADDRINUSE}", f"Errno {errno.EADDRNOTAVAIL}"
FOLLOWING = """
import signal
# A shell without job control has it ignored in what it starts in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
from iscp_dagster.cli.main import main
main()
"""


def make_settings(**fields) -> StackSettings:
    names = ("clickhouse", "spark", "dagster", "graphql", "invocations")
    ports = {f"{name}_port": number for number, name in enumerate(names, 1)}
    return StackSettings(**{"home": Path("/h o/me"), **ports, **fields})


def stack(home: Path | str, *services: ServiceState, **fields) -> StackState:
    """Describe a stack that is up."""
    options = {"condition": Condition.READY, "supervisor": 1, "started_at": ""} | fields
    return StackState(home=str(home), services=services, **options)


def test_children_reach_the_embedded_services() -> None:
    environ = {"KEPT": "1", "SPARK_HOME": "/other", "no_proxy": "example.org"}
    child = build_child_environment(make_settings(), environ)
    assert {
        "CLICKHOUSE_URL": "http://127.0.0.1:1",
        "SPARK_REMOTE": "sc://localhost:2",
        "ISCP_LOG_URL": "sqlite:////h o/me/iscp_log.sqlite",
        "DAGSTER_HOME": "/h o/me/dagster",
        "ISCP_INVOCATIONS_URL": "http://127.0.0.1:5",
        "ISCP_HOME": "/h o/me",
        "KEPT": "1",
        # A proxy is not asked for the loopback address.
        "no_proxy": "example.org,127.0.0.1,localhost",
        "NO_PROXY": "127.0.0.1,localhost",
    }.items() <= child.items()
    assert not {"SPARK_HOME", "CLICKHOUSE_URLS"} & child.keys()


def test_services_of_the_users_own_replace_embedded_ones(tmp_path) -> None:
    own = make_settings(clickhouse_url="https://ch.example.org", spark_remote="sc://spark:15002")
    assert build_child_environment(own, {})["CLICKHOUSE_URL"] == "https://ch.example.org"
    assert plan.list_embedded_services(own) == ("dagster", "graphql", "invocations")
    urls = "http://u:secret@one:1, http://two:2"
    own = plan.resolve(tmp_path, {}, {"CLICKHOUSE_URLS": urls})
    assert plan.list_embedded_services(own) == ("spark", "dagster", "graphql", "invocations")
    child = build_child_environment(own, {})
    assert (child["CLICKHOUSE_URL"], child["CLICKHOUSE_URLS"]) == ("http://u:secret@one:1", urls)
    with raises_naming(ConfigError, "http://three:3", "http://one:1"):
        plan.resolve(tmp_path, {}, {"CLICKHOUSE_URLS": urls, "CLICKHOUSE_URL": "http://three:3"})


def test_a_command_finds_the_servers_that_the_stack_was_started_for(monkeypatch) -> None:
    one = ServiceState(name="clickhouse", condition=Condition.EXTERNAL, address="http://one:1")
    up = stack("/h", one, clickhouse_urls="http://one:1 http://two:2")
    monkeypatch.setattr(environment, "find_running_stack", lambda _: up)
    endpoints = parse_clickhouse_endpoints(environment.add_stack_variables({}))
    assert [endpoint.host for endpoint in endpoints] == ["one", "two"]
    # A setting that contains the passwords takes precedence, and must name the same servers.
    own = environment.add_stack_variables({"CLICKHOUSE_URLS": "http://u:secret@one:1 http://two:2"})
    assert parse_clickhouse_endpoints(own)[0].password == "secret"
    others = environment.add_stack_variables({"CLICKHOUSE_URL": "http://other:1"})
    with raises_naming(ConfigError, "http://other:1", "http://one:1"):
        parse_clickhouse_endpoints(others)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets others listen there too")
def test_a_free_port_is_reserved_until_its_server_has_it() -> None:
    port = find_free_port()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        with socket.socket() as other, raises_naming(OSError, IN_USE):
            limit_ports(other, port).bind(("127.0.0.1", 0))
        with raises_naming(OSError, NOT_AVAILABLE):
            limit_ports(client, port).connect(listener.getsockname())
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
    assert is_free(port)


def limit_ports(other: socket.socket, port: int) -> socket.socket:
    """Restrict the system's choice to this one port, see IP_LOCAL_PORT_RANGE in ip(7)."""
    try:
        other.setsockopt(socket.IPPROTO_IP, LOCAL_PORT_RANGE, struct.pack("I", port << 16 | port))
    except OSError:
        pytest.skip("Linux older than 6.3 has no range of ports for one socket")
    return other


def test_a_usual_port_that_is_taken_is_replaced_but_a_requested_one_is_an_error(tmp_path) -> None:
    taken = frozenset(USUAL.values())
    chosen = choose(SPARK, None, {}, taken)
    assert not chosen.requested
    assert chosen.port not in taken
    assert is_free(chosen.port)
    for text in ("none", "0", "70000"):
        with raises_naming(ConfigError, f"ISCP_SPARK_PORT='{text}'"):
            choose(SPARK, None, {"ISCP_SPARK_PORT": text})
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert not is_free(port)
        with raises_naming(ConfigError, port, "clickhouse", "--clickhouse-port"):
            choose(CLICKHOUSE, port, {})
        with raises_naming(ConfigError, port, "spark", "ISCP_SPARK_PORT"):
            choose(SPARK, None, {"ISCP_SPARK_PORT": str(port)})
    port = find_free_port()
    with raises_naming(ConfigError, port, "spark"):
        plan.resolve(tmp_path, dict.fromkeys(SERVICES, port), {})


@pytest.mark.parametrize(
    ("variable", "declares", "paths"),
    [
        ("AWS_REGION", "SourceTable('shop.t', key='id', path='s3://bucket/t')", ["s3://bucket/t"]),
        ("AWS_REGION", "1 / 0", []),
        ("OTHER", "SourceTable('shop.t', key='id', path='s3://bucket/t')", []),
    ],
)
def test_the_paths_of_declared_tables_are_read_if_variables_name_an_object_store(
    tmp_path, monkeypatch, variable, declares, paths
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    text = f"from iscp_dagster import SourceTable\ntable = {declares}\n"
    (tmp_path / f"{tmp_path.name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ISCP_ASSETS", tmp_path.name)
    monkeypatch.setenv(variable, "eu-1")
    read = []
    monkeypatch.setattr(control, "start_stack", lambda *_, paths, **__: read.extend(paths()) or 0)
    done = CliRunner().invoke(cli.app, ["up"])
    assert (done.exit_code, read) == (0, paths)


def test_variables_become_options_of_clickhouse(monkeypatch) -> None:
    for name in ("ISCP_ALLOWED_HOSTS", "ISCP_CLICKHOUSE_ORIGINS", "ISCP_CLICKHOUSE_PATHS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ISCP_CLICKHOUSE_REMOTE_HOSTS", "")
    plain = clickhouse_server.build_service(make_settings()).command
    assert plain[-2:] == ("--shown-variable", "ISCP_HOME")
    monkeypatch.setenv("ISCP_ALLOWED_HOSTS", "ch.example, ch.internal:8123")
    monkeypatch.setenv("ISCP_CLICKHOUSE_ORIGINS", "https://board.example")
    monkeypatch.setenv("ISCP_CLICKHOUSE_PATHS", "/srv/a:/srv/b")
    monkeypatch.setenv("ISCP_CLICKHOUSE_REMOTE_HOSTS", "files.example")
    assert clickhouse_server.build_service(make_settings()).command[len(plain) :] == (
        *("--allowed-host", "ch.example, ch.internal:8123"),
        *("--allowed-origin", "https://board.example"),
        *("--remote-host", "files.example"),
        *("--allowed-path", "/srv/a", "--allowed-path", "/srv/b"),
    )


def test_a_port_that_is_taken_while_jars_are_fetched_is_replaced(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ISCP_HOME", str(tmp_path))
    for name in ("SPARK", "GRAPHQL", "INVOCATIONS"):
        monkeypatch.setenv(f"ISCP_{name}_PORT", str(find_free_port()))
    used: list[StackSettings] = []
    monkeypatch.setattr(control, "_run_in_foreground", lambda settings: used.append(settings) or 0)
    with ExitStack() as others:

        def fetch(before: StackSettings, _paths: object) -> None:
            others.enter_context(socket.create_server(("127.0.0.1", before.clickhouse_port)))
            used.append(before)

        monkeypatch.setattr(plan, "fetch_missing_jars", fetch)
        assert control.start_stack({"dagster": find_free_port()}, [], detach=False) == 0
    before, after = used
    assert before.clickhouse_port != after.clickhouse_port
    assert before == replace(after, clickhouse_port=before.clickhouse_port)
    options = plan.format_options(after)
    assert "--clickhouse-port" not in options
    assert options[-8:] == [
        *("--spark-port", str(after.spark_port)),
        *("--dagster-port", str(after.dagster_port)),
        *("--graphql-port", str(after.graphql_port)),
        *("--invocations-port", str(after.invocations_port)),
    ]
    now = stack(tmp_path, *running._list_initial_states(after))
    (line,) = plan.describe_moved_ports(after, now)
    assert_names(line, 8123, "clickhouse", after.clickhouse_port)


def test_a_port_is_reserved_on_the_first_address_of_localhost_if_there_is_one(monkeypatch) -> None:
    port = find_free_port()
    with ports.block_ipv6_ports([port]), socket.socket(socket.AF_INET6) as other:
        assert not is_free(port)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with raises_naming(OSError, IN_USE):
            other.bind(("::1", port))
        with raises_naming(ConfigError, port, "::1"), ports.block_ipv6_ports([port]):
            pass
        with pytest.raises(ConnectionRefusedError):
            other.connect(("::1", port))
    assert is_free(port)
    monkeypatch.setattr(ports, "HOST_6", "2001:db8::1")
    with ports.block_ipv6_ports([port]):
        pass


def test_without_its_repository_a_package_has_its_home_where_it_is_and_runs_no_dagster(
    monkeypatch, tmp_path
) -> None:
    assert plan.select_services([]) == SERVICES
    assert (get_repository() / "workspace.yaml").is_file()
    assert get_home({}) == get_repository() / ".iscp"
    assert get_home({"ISCP_HOME": "some where"}) == Path.cwd() / "some where"
    place = tmp_path / "site-packages" / "iscp_dagster" / "local" / "services" / "settings.py"
    monkeypatch.setitem(get_home.__globals__, "__file__", str(place))
    monkeypatch.chdir(tmp_path)
    assert get_home({}) == tmp_path / ".iscp"
    assert plan.select_services(["spark", "clickhouse"]) == ("clickhouse", "spark")
    with raises_naming(SetupError, "--service clickhouse --service spark"):
        plan.select_services([])


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://user:secret@host:8123/db?password=secret", "http://host:8123/db"),
        ("http://me:secret@h/?database=a&password=secret", "http://h/?database=a"),
        ("sc://secret@host:15002/secret?token=secret#secret", "sc://host:15002"),
        ("sc://[::1]/;token=a/b", "sc://[::1]"),
        ("postgresql://user:secret@host/db", "postgresql://host/db"),
        ("sqlite:////h o/me/log.sqlite", "sqlite:////h o/me/log.sqlite"),
    ],
)
def test_addresses_are_shown_without_secrets(address: str, shown: str) -> None:
    assert redact_address(address) == shown


def test_a_written_state_is_read_back(tmp_path: Path) -> None:
    spark = ServiceState(name="spark", condition=Condition.WARMING, address="sc://x", pid=2)
    written = stack(tmp_path, spark, started_at="2020-01-01T00:00:00+00:00")
    assert state.read(tmp_path) is None
    state.write(tmp_path, written)
    assert state.read(tmp_path) == written
    path = tmp_path / "stack.json"
    for other in ('{"condition": "ready"}', path.read_text().replace("supervisor", "leader"), "[]"):
        path.write_text(other)
        with raises_naming(SetupError, path, "iscp_dagster"):
            state.read(tmp_path)
    path.write_text("{")
    with raises_naming(SetupError, path, "line 1 column 2"):
        state.read(tmp_path)
    assert written.get_service("spark").pid == 2


def test_one_supervisor_holds_a_home(tmp_path: Path) -> None:
    locks = HomeLocks(tmp_path)
    assert locks.is_gone()
    with locks.hold(0) as lock:
        assert lock is not None
        assert locks.is_supervised()
        assert not locks.is_gone()
        with HomeLocks(tmp_path).hold(0) as second:
            assert second is None
    assert not locks.is_supervised()
    assert locks.wait_gone(0)


@pytest.mark.parametrize("stale", [None, Condition.READY, Condition.DOWN])
def test_a_second_up_waits_for_the_first(tmp_path, monkeypatch, stale) -> None:
    """It does so whatever state an earlier supervisor, killed or ended, has written last."""
    monkeypatch.setenv("ISCP_HOME", str(tmp_path))
    # Reading capsys while another thread prints loses output between its two steps.
    lines = queue.SimpleQueue[str]()
    monkeypatch.setattr(show, "print_line", lines.put)
    earlier = subprocess.Popen(["true"])
    earlier.wait()

    def write(condition: Condition, supervisor: int, address: str) -> None:
        service = ServiceState(name="dagster", condition=condition, address=address)
        state.write(tmp_path, stack(tmp_path, service, condition=condition, supervisor=supervisor))

    if stale is not None:
        write(stale, earlier.pid, "http://stale:1")
    with ThreadPoolExecutor() as pool, HomeLocks(tmp_path).hold(1.0):
        assert state.find_running_stack(tmp_path) is None
        second = pool.submit(control.start_stack, {}, [], detach=True)
        write(Condition.STARTING, os.getpid(), "http://first:1")
        assert lines.get(timeout=60) == "dagster: starting"
        write(Condition.READY, os.getpid(), "http://first:1")
        assert second.result(60) == 0
    _heading, address = lines.get(timeout=0), lines.get(timeout=0)
    assert_names(address, "http://first:1")
    assert not (tmp_path / "logs").exists()


def test_a_second_up_fails_if_the_first_does_not_come_up(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ISCP_HOME", str(tmp_path))
    with ThreadPoolExecutor() as pool:
        with HomeLocks(tmp_path).hold(1.0):
            second = pool.submit(control.start_stack, {}, [], detach=True)
            assert not wait([second], 0.3).done
        with raises_naming(UnavailableError, tmp_path):
            second.result(60)


def test_the_progress_shows_the_last_service_as_ready_too(tmp_path, monkeypatch) -> None:
    conditions = [Condition.STARTING, Condition.READY]
    states = []
    for condition in conditions:
        spark = ServiceState(name="spark", condition=condition, address="")
        states.append(stack(tmp_path, spark, condition=condition, supervisor=7))
    monkeypatch.setattr(control, "find_running_stack", lambda _: states.pop(0))
    shown = []
    progress = SimpleNamespace(update=lambda now: shown.append(now.get_service("spark").condition))
    supervisor = SimpleNamespace(pid=7, poll=lambda: None)
    assert control._await_ready(tmp_path, supervisor, progress).condition is Condition.READY
    assert shown == conditions


def test_the_tail_starts_after_an_offset_and_a_large_log_is_rotated(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "spark.log"
    assert logs.read_tail(log) == ""
    logs.rotate(log)
    log.write_text("before\n")
    since = logs.size(log)
    log.write_text("before\none\ntwo\nthree\n")
    assert logs.read_tail(log, lines=2) == "two\nthree"
    assert logs.read_tail(log, since=since) == "one\ntwo\nthree"
    logs.rotate(log, max_bytes=100)
    assert log.exists()
    logs.rotate(log, max_bytes=10)
    assert not log.exists()
    assert log.with_name("spark.log.1").exists()


@pytest.fixture
def logs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the logs of a home: three lines of the code server, one of Spark."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "code.log").write_text("one\ntwo\nthree\n")
    (folder / "spark.log").write_text("four\n")
    monkeypatch.setenv("ISCP_HOME", str(tmp_path))
    return folder


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[34mdagster\x1b[0m - [odd] \x1b[1mup\n", "dagster - [odd] up\n"),
        ("tenant \x1b]0;title\x07 \x9b2J\n", "tenant \\x1b]0;title\\x07 \\x9b2J\n"),
    ],
    ids=["colours are left out", "commands are escaped"],
)
def test_a_log_sends_no_commands_to_the_terminal(logs_folder, capsys, written, shown) -> None:
    (logs_folder / "code.log").write_text(written)
    stack_commands.show_logs(["code"])
    assert capsys.readouterr().out == shown


def test_new_text_in_a_log_is_shown_by_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "code.log"
    log.write_text("one\n")
    additions = iter(["tw", "o\nthree\n", ""])

    def sleep(_seconds: float) -> None:
        with log.open("a") as file:
            file.write(next(additions))

    lines: list[str] = []
    with pytest.raises(StopIteration):
        tails.show({"code": log}, 1, lines.append, follow=True, sleep=sleep)
    assert lines == ["one", "two", "three"]


def test_iscp_logs_prints_the_last_lines_of_all_logs_or_of_one(logs_folder: Path) -> None:
    code, spark = logs_folder / "code.log", logs_folder / "spark.log"
    done = CliRunner().invoke(cli.app, ["logs", "-n", "2"])
    assert done.exit_code == 0
    lines = [f"== code: {code}", "two", "three", f"== spark: {spark}", "four"]
    assert done.stdout.splitlines() == lines
    done = CliRunner().invoke(cli.app, ["logs", "code"])
    assert (done.exit_code, done.stdout) == (0, "one\ntwo\nthree\n")
    done = CliRunner().invoke(cli.app, ["logs", "spark", "code", "--lines", "0"])
    assert done.stdout.splitlines() == [f"== code: {code}", f"== spark: {spark}"]
    done = CliRunner().invoke(cli.app, ["logs", "spark", "web"], env={"COLUMNS": "400"})
    assert (done.exit_code, done.stdout) == (2, "")
    assert_names(done.stderr, "web", logs_folder, "code, spark")


def test_iscp_logs_follows_logs_until_it_is_interrupted(logs_folder: Path) -> None:
    command = [sys.executable, "-c", FOLLOWING, "logs", "-f", "-n", "1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "bufsize": 1}
    with (
        subprocess.Popen(command, **pipes) as following,
        ThreadPoolExecutor() as pool,
        ExitStack() as ending,
    ):
        ending.callback(following.kill)

        def read_lines(number: int) -> list[str]:
            read = pool.submit(lambda: [following.stdout.readline() for _ in range(number)])
            return [line.rstrip("\n") for line in read.result(60)]

        assert read_lines(4)[1::2] == ["three", "four"]
        for name, line in (("spark", "five"), ("code", "six"), ("spark", "seven")):
            with (logs_folder / f"{name}.log").open("a") as log:
                log.write(f"{line}\n")
            assert read_lines(1) == [f"{name}: {line}"]
        following.send_signal(signal.SIGINT)
        out, err = following.communicate(timeout=60)
        assert (out, "Traceback" in err, following.returncode) == ("", False, 130)


def test_the_help_of_up_and_the_refusal_of_an_unknown_service_name_every_service(tmp_path) -> None:
    options = cli.load("up", cli.COMMANDS["up"]).params
    (text,) = [option.help for option in options if option.name == "service"]
    assert_names(text, *SERVICES)
    environ = {"ISCP_HOME": str(tmp_path / "home"), "COLUMNS": "200"}
    for service in ("foo", "code"):
        done = CliRunner().invoke(cli.app, ["up", "--service", service], env=environ)
        assert done.exit_code == 2
        assert_names(done.stderr, f"'{service}'", *SERVICES)
    assert not (tmp_path / "home").exists()


def test_status_checks_services_and_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISCP_HOME", str(tmp_path))
    monkeypatch.delenv("ISCP_LOG_URL", raising=False)
    services = (
        ServiceState(name="spark", condition=Condition.UNWELL, address="sc://h:1"),
        ServiceState(name="clickhouse", condition=Condition.READY, address="http://h:1"),
    )
    state.write(tmp_path, stack(tmp_path, *services))
    with HomeLocks(tmp_path).hold(1.0):
        (unwell,) = control.find_problems()
        assert_names(unwell, "spark", "unwell")
        log = SqlLog(f"sqlite:///{tmp_path / 'iscp_log.sqlite'}")
        log.ensure()
        assert control.find_problems() == [unwell]
        name = JobID(db="d", table="t", job="m")
        log.register("a", name, "id", make_plain_spec(name))
        log.mark_stranded("id", 10_220, "gone")
        _, in_error = control.find_problems()
        assert_names(in_error, 1, "iscp job list --state error")
        for check, code in ((True, stack_commands.UNWELL), (False, 0)):
            with pytest.raises(typer.Exit) as exited:
                stack_commands.status(check=check)
            assert exited.value.exit_code == code


def test_secrets_are_made_once_for_their_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    secrets = credentials.ensure_secrets(home)
    assert credentials.ensure_secrets(home) == credentials.read(home) == secrets
    for secret in (secrets.password, secrets.spark_token, secrets.webhook):
        assert len(secret) > 20
        assert secret not in repr(secrets) + repr(make_settings(secrets=secrets))
    assert secrets.password != secrets.spark_token
    assert {file.stat().st_mode & 0o777 for file in home.iterdir()} == {0o600}
    assert home.stat().st_mode & 0o777 == 0o700
    user, _, password = netrc.netrc(home / "netrc").authenticators("127.0.0.1")
    assert (user, password) == ("default", secrets.password)
    for name in ("clickhouse.password", "spark.token"):
        (home / name).chmod(0o640)
        with raises_naming(SetupError, home / name, "chmod 600"):
            credentials.ensure_secrets(home)
        (home / name).chmod(0o600)


def test_addresses_carry_the_secrets_to_children_and_commands(tmp_path, monkeypatch) -> None:
    own = plan.resolve(tmp_path, {}, {})
    child = build_child_environment(own, {})
    assert f":{own.secrets.password}@127.0.0.1" in child["CLICKHOUSE_URL"]
    assert child["SPARK_REMOTE"].endswith(f"/;token={own.secrets.spark_token}")
    up = stack(tmp_path, *running._list_initial_states(own))
    assert own.secrets.password not in str(up)
    assert own.secrets.spark_token not in str(up)
    monkeypatch.setattr(environment, "find_running_stack", lambda _: up)
    home = {"ISCP_HOME": str(tmp_path)}
    shown = {service.name: service.address for service in up.services}
    named = {"CLICKHOUSE_URL": shown["clickhouse"] + "/", "SPARK_REMOTE": shown["spark"]}
    for environ in (home, {**home, **named}):
        added = environment.add_stack_variables(environ)
        assert {name: added[name] for name in named} == {name: child[name] for name in named}
    others = {"CLICKHOUSE_URL": "http://other:1", "SPARK_REMOTE": "sc://other:1/;token=theirs"}
    assert others.items() <= environment.add_stack_variables(home | others).items()
    assert environment.get_shell_variables(home)["ISCP_WEBHOOK_SECRET"] == own.secrets.webhook
    mine = {"ISCP_WEBHOOK_SECRET": "whsec_mine"}
    assert mine.items() <= environment.add_stack_variables(home | mine).items()
    # From a shell that has evaluated `iscp env`, `up` starts all services again.
    evaluated = environment.add_stack_variables(home)
    assert plan.list_embedded_services(plan.resolve(tmp_path, {}, evaluated)) == SERVICES
    half = evaluated | {"SPARK_REMOTE": others["SPARK_REMOTE"]}
    assert plan.resolve(tmp_path, {}, half).spark_address_with_token == others["SPARK_REMOTE"]


def test_the_supervisor_s_log_has_its_modules_messages(tmp_path) -> None:
    modules = ["stack.iteration_cancellation", "supervise.supervisor", "supervise.health_monitor"]
    logger = logging.getLogger("iscp_dagster.local")
    before = (logger.level, logger.propagate)
    running._log_to_file(make_settings(home=tmp_path))
    try:
        for module in modules:
            logging.getLogger(f"iscp_dagster.local.{module}").info("%s reports", module)
        lines = (tmp_path / "logs" / "supervisor.log").read_text().splitlines()
    finally:
        logger.removeHandler(handler := logger.handlers[-1])
        handler.close()
        logger.setLevel(before[0])
        logger.propagate = before[1]
    reports = [line.partition(" INFO ")[2] for line in lines]
    assert reports == [f"{module} reports" for module in modules]
