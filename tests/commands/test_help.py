"""Every command explains itself with an example, and answers wrong usage with a sentence and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from fedbac_edge.cli import cli


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(_commands(cli)), ids=" ".join)
def test_every_help_has_an_example(runner: CliRunner, path: tuple[str, ...]) -> None:
    result = runner.invoke(cli, [*path, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
    assert " ".join(("fedbac", *path)) in result.output


def test_help_has_a_short_form(runner: CliRunner) -> None:
    for path in ([], ["semi"], ["keys", "issue"]):
        assert runner.invoke(cli, [*path, "-h"]).output == runner.invoke(cli, [*path, "--help"]).output


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["init", "--preset", "nonsense"],
        ["data", "get"],
        ["data", "get", "imagenet"],
        ["data", "get", "mnist", "--from", "file:///etc"],
        ["partition"],
        ["partition", "--data", "fashion-mnist", "--out", "x", "--devices", "0"],
        ["cloud", "run", "--nonsense"],
        ["gateway", "run"],
        ["gateway", "run", "gw/1"],
        ["gateway", "run", "gw1", "--broker", "http://localhost"],
        ["broker", "run", "--port", "70000"],
        ["broker", "config", "--ca", "nothing.pem"],
        ["broker", "forget"],
        ["broker", "forget", "a/b"],
        ["status", "--state", "nowhere"],
        ["status", "--federation", "a+b"],
        ["export", "--out", "models"],
        ["export", "--state", "nowhere", "--out", "models"],
        ["demo", "--rounds", "none"],
        ["demo", "--labels", "0.05"],
        ["demo", "--method", "hassle", "--alpha-server", "0.1"],
        ["semi"],
        ["semi", "--resume", "--out", "x", "--rounds", "9"],
        ["simulate", "--resume", "--out", "x", "--rounds", "9"],
        ["semi", "fedsgd"],
        ["semi", "fedavg", "--setting", "nonsense"],
        ["semi", "fedavg", "--architecture", "nonsense"],
        ["semi", "fedavg", "--data", "nonsense"],
        ["semi", "fedavg", "--data", "cifar10"],
        ["semi", "fedavg", "--set", "nothing=1"],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.timeout(30)
def test_wrong_usage_is_a_sentence_and_code_2(runner: CliRunner, arguments: list[str]) -> None:
    result = runner.invoke(cli, arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    last = result.output.strip().splitlines()[-1]
    assert last.startswith("Error: ")
    assert len(last) > len("Error: ") + 10


def test_asking_for_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from fedbac_edge.cli import cli\n"
        "try: cli(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy', 'onnx', 'rich', 'paho') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
