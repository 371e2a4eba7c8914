"""`fedbac-agent`: what a device's owner types. Nothing heavy is loaded before it is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from broker.topics import BadName
from broker.url import BadUrl
from device_agent import settings
from device_agent.voice import Voice
from fedbac_edge import __version__
from fedbac_edge.datasets.samples import DataError
from fedbac_edge.host import signals

F = TypeVar("F", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fedbac-agent")
def main() -> None:
    """A device of a fedbac federation: it trains on its own data, and answers with an exported model.

    \b
    Example:
      fedbac-agent join --edge gw1 --data photos/
      fedbac-agent serve --edge gw1
      fedbac-agent infer --model cluster-0.onnx picture.png
    """


def _read_config(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """The file's settings become click's defaults: below flags and variables, above our own defaults."""
    if path is None and settings.DEFAULT_FILE.exists():
        path = settings.DEFAULT_FILE
    if path is not None:
        try:
            context.default_map = settings.read_file(path)
        except settings.SettingsError as error:
            raise click.UsageError(str(error), context) from error
    return path


def _option(*names: str, **attributes: Any) -> Callable[[F], F]:
    """An option with its FEDBAC_* variable, shown in the help."""
    variable = "FEDBAC_" + names[0].removeprefix("--").upper().replace("-", "_")
    return click.option(*names, envvar=variable, show_envvar=True, **attributes)


_BROKER = _option(
    "--broker",
    metavar="URL",
    default=settings.DEFAULT_BROKER,
    show_default=True,
    help="mqtt://[user[:password]@]host[:port], or mqtts:// for TLS.",
)
_NAME = _option(
    "--name", metavar="ID", help="This device's name; made once and kept in --state when not given."
)
_STATE = _option(
    "--state",
    metavar="DIR",
    help="Folder for identity and progress. Default: /var/lib/fedbac/device for root, else "
    "~/.local/state/fedbac/device; with --name: .../devices/NAME.",
)
_FEDERATION = _option("--federation", metavar="NAME", help="Needed only when the broker holds more than one.")
_CA = _option("--ca", metavar="FILE", help="Authority that signed the broker's certificate (PEM, mqtts://).")
_CERT = _option("--cert", metavar="FILE", help="This device's certificate (PEM).")
_KEY = _option("--key", metavar="FILE", help="The key of --cert (PEM, not encrypted).")
_CLIENT_ID = _option(
    "--client-id",
    metavar="ID",
    help="Client name, where the broker prescribes it; join and serve need one each.",
)
_JSON = _option("--json", is_flag=True, help="One JSON object per line.")
_CONFIG = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="FEDBAC_CONFIG",
    show_envvar=True,
    is_eager=True,
    callback=_read_config,
    help=f"TOML file with these options' long names as keys. Default: {settings.DEFAULT_FILE}, if there.",
)


@main.command(context_settings={"max_content_width": 110})
@_option("--edge", metavar="NAME", help="The gateway that this device belongs to.")
@_BROKER
@_option(
    "--data",
    metavar="PATH",
    help="Folder of pictures by class name, .npz with x and y, IDX, CIFAR, SVHN. Without labels, where the "
    "federation's method takes such: a folder unlabelled/ in it, y of -1, or no y.",
)
@_NAME
@_STATE
@_option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What to train on.",
)
@_FEDERATION
@_CA
@_CERT
@_KEY
@_CLIENT_ID
@_option("--resize", is_flag=True, help="Scale pictures of another size instead of refusing them.")
@_option("--strict", is_flag=True, help="Refuse damaged pictures instead of skipping them.")
@_JSON
@_CONFIG
def join(config: Path | None, json: bool, **chosen: Any) -> None:
    """Join a federation at a gateway, train when asked, and stay until Ctrl-C or SIGTERM.

    A flag overrides its FEDBAC_* variable, a variable overrides the file, and the file the default.

    \b
    Example:
      fedbac-agent join --edge gw1 --data photos/
      fedbac-agent join --edge gw1 --data camera/     (some pictures, or all, in camera/unlabelled/)
      fedbac-agent join --edge gw1 --data train-images-idx3-ubyte.gz --broker mqtt://gateway.local
      FEDBAC_EDGE=gw1 FEDBAC_DATA=samples.npz fedbac-agent join --name kitchen

    Exit code 0: told to stop. 1: had to stop. 2: cannot join with these options or data.
    """
    try:
        wanted = settings.checked(**chosen)
    except (settings.SettingsError, BadName, BadUrl, DataError, OSError) as error:
        raise click.UsageError(_sentence(error)) from error
    from device_agent import agent

    _run(lambda: agent.join(wanted, Voice(json)))


@main.command(context_settings={"max_content_width": 110})
@_option("--edge", metavar="NAME", help="The gateway whose releases this device serves.")
@_BROKER
@_NAME
@_STATE
@_FEDERATION
@_option(
    "--release-key",
    metavar="FILE",
    help="Public key that releases must be signed with: the .pub file of `fedbac init`, or the key in "
    "base64. Without it, the key of the first release is trusted, and no other from then on.",
)
@_option("--fit", is_flag=True, help="Scale pictures of another size that are asked about.")
@_CA
@_CERT
@_KEY
@_CLIENT_ID
@_JSON
@_CONFIG
def serve(config: Path | None, json: bool, **chosen: Any) -> None:
    """Answer with the site's newest release, beside `join` or without it, until Ctrl-C or SIGTERM.

    Takes signed releases that are newer and pass their self-test here, and keeps the one before. Without a
    broker it goes on with the last good one. Any MQTT 5 client may ask, at .../edge/NAME/device/ID/infer.

    \b
    Example:
      fedbac-agent serve --edge gw1 --broker mqtt://gateway.local --release-key federation.release.pub
      fedbac-agent infer photo.png

    Exit code 0: told to stop. 1: had to stop. 2: cannot serve with these options.
    """
    try:
        wanted = settings.checked_for_serving(**chosen)
    except (settings.SettingsError, BadName, BadUrl, OSError) as error:
        raise click.UsageError(_sentence(error)) from error
    try:
        from device_agent import serve as serving
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error.name} is missing: pip install 'fedbac-edge[infer]'") from error

    _run(lambda: serving.serve(wanted, Voice(json)))


def _sentence(error: Exception) -> str:
    """Of the system's own errors the file and the reason, without numbers and brackets."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; choose another, or let this user read it"
    return str(error)


def _run(what: Callable[[], None]) -> None:
    """Do it; the ways in which it can end become exit codes."""
    from device_agent import endings

    try:
        what()
    except endings.Misconfigured as error:
        raise click.UsageError(str(error)) from error
    except endings.Failed as error:
        raise click.ClickException(str(error)) from error


@main.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="Name what is in images with an exported model.",
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def infer(arguments: tuple[str, ...]) -> None:
    """Hand everything to the command of the package `export`, loaded only now."""
    try:
        from export.infer import infer as command
    except ImportError as error:
        raise click.ClickException(f"{error.name} is missing: pip install 'fedbac-edge[infer]'") from error
    try:
        served = {"state": str(settings.default_state(None))}
    except settings.SettingsError:  # no home: then nothing is served from there
        served = {}
    with signals.interruptible():
        command.main(list(arguments), prog_name="fedbac-agent infer", default_map=served)
