"""`fedbac simulate`: a whole federation on this machine, with the code that will be deployed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from fedbac_edge.commands.engines import check_engine, engine_options, start_engine
from fedbac_edge.commands.failures import Failed, Misconfigured, explained, stopped_run
from fedbac_edge.commands.options import FILE, given, json_option
from fedbac_edge.host import output, signals
from fedbac_edge.terminal import narrow
from fedbac_edge.terminal.narrow import ALWAYS, Column

if TYPE_CHECKING:
    from fedbac_edge.lab.fleet.journal import Row
    from fedbac_edge.lab.scenario import Scenario


@click.command()
@click.argument("what", required=False, metavar="[PRESET|FEDERATION.TOML]")
@click.option("--method", metavar="NAME", help="fedbac, fixed, single, random, hierfavg, ifca ...")
@click.option("--participation", type=click.FloatRange(0, 1, min_open=True), help="Share of devices asked.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds of training.")
@click.option("--seed", type=click.IntRange(0), help="Seeds every draw, including the partition.")
@click.option("--servers", type=click.IntRange(1, 999), help="Another number of gateways than the preset's.")
@click.option("--clients", type=click.IntRange(1, 9999), help="Another number of devices at each.")
@click.option(
    "--form",
    type=click.Choice(["per-server", "per-class", "planted", "annotation"]),
    help="How data are cut.",
)
@click.option("--data", type=FILE, metavar="PATH", help="Path of the data set; known ones are found by name.")
@click.option("--faults", default="", metavar="LIST", help="For example drop=0.1,crash=0.02,delay=0.5.")
@click.option(
    "--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Any setting; may be repeated."
)
@click.option("--allow-tiny", is_flag=True, help="Accept servers with under 100 test samples.")
@click.option("--resize", is_flag=True, help="Scale pictures of another size, as `fedbac-agent join` does.")
@engine_options
@click.option("--out", type=FILE, metavar="DIR", help="The run's folder. [default: runs/PRESET-METHOD-SEED]")
@click.option("--resume", is_flag=True, help="Go on with a run that was stopped.")
@json_option("JSON lines instead of a table.")
@click.pass_context
def simulate(
    context: click.Context,
    /,
    what: str | None,
    out: Path | None,
    resume: bool,
    workers: int | None,
    engine: str,
    ray_address: str | None,
    **options: Any,
) -> None:
    """Simulate a federation: every device, gateway and the cloud, on a virtual clock.

    The same seed gives the same models, bit by bit, with any number of workers, and after a kill and
    --resume too. Results go to a folder.

    \b
    Example: the paper's setting, and its baseline
      fedbac simulate paper/fashion-mnist-0.1
      fedbac simulate paper/fashion-mnist-0.1 --method hierfavg
    Example: twenty servers of four kinds, a quarter of the data
      fedbac simulate paper/fashion-mnist-0.1 --servers 20 --clients 5 --form planted --set cut.groups=4 \\
          --set cut.samples=15000
    Example: a quick look
      fedbac data get cifar10
      fedbac simulate paper/cifar10-0.5 --rounds 10 --set cut.samples=5000
    Example: a fleet's own description and data
      fedbac simulate federation.toml --data photos.npz --servers 2 --clients 5 --faults drop=0.1,crash=0.02
    Example: on the machines of a Ray cluster, from one of them
      fedbac simulate paper/fashion-mnist-0.1 --engine ray --ray-address auto
    """
    from fedbac_edge.lab.engine import PoolError
    from fedbac_edge.lab.fleet import run
    from fedbac_edge.lab.scenario import ScenarioError

    as_json, data = options.pop("as_json"), options.pop("data")
    check_engine(engine, ray_address)
    output.not_needed()
    try:
        with signals.stopping(signals.UNWIND_S, code=1) as stop, explained():
            if what is None:
                if out is None or not resume:
                    raise click.UsageError("give a preset or a federation.toml, or --resume with --out")
                if flag := given(context, options):
                    raise click.UsageError(f"{flag}: a run goes on with the settings that it has")
                scenario = run.read_about(out).scenario
            else:
                scenario = _scenario(what, data, **options)
            out = out or _folder(scenario)
            place = _data(scenario, data)
            devices = sum(map(len, scenario.federation.gateways.values()))  # more jobs there never are
            with (
                contextlib.closing(start_engine(engine, workers, ray_address, devices, stop)) as started,
                _showing(scenario, as_json) as view,
            ):
                view.began(scenario, out, started.workers)
                result = run.simulate(scenario, out, place, started, resume=resume, tell=view.row)
                view.ended(result, out)
    except ScenarioError as error:
        raise Misconfigured(str(error)) from error
    except PoolError as error:
        raise Failed(str(error)) from error
    except signals.Interrupted:
        raise stopped_run("simulate", out) from None


def _scenario(
    what: str,
    data: Path | None,
    method: str | None,
    participation: float | None,
    rounds: int | None,
    seed: int | None,
    servers: int | None,
    clients: int | None,
    form: str | None,
    faults: str,
    settings: tuple[str, ...],
    allow_tiny: bool,
    resize: bool,
) -> Scenario:
    import msgspec

    from fedbac_edge.federation_file import reading
    from fedbac_edge.lab import presets
    from fedbac_edge.lab.fleet.faults import Faults
    from fedbac_edge.lab.scenario import Cut, Scenario, ScenarioError, check, with_roster, with_settings

    if what.endswith(".toml"):
        if data is None:
            raise Misconfigured("a federation of your own needs its data: --data PATH")
        federation = reading.load(Path(what))
        scenario = Scenario(
            method=federation.method.name, federation=federation, cut=Cut(data=str(data.resolve()))
        )
    else:
        scenario = presets.preset(what)
    if servers or clients:
        scenario = with_roster(scenario, servers, clients)
    if method is not None:
        scenario = presets.with_method(scenario, method)
    named: dict[str, Any] = {
        "selection.participation": participation,
        "rounds": rounds,
        "seed": seed,
        "cut.seed": seed,
        "cut.form": form,
        "cut.allow_tiny": "true" if allow_tiny else None,
        "cut.resize": "true" if resize else None,
    }
    given = [f"{name}={value}" for name, value in named.items() if value is not None]
    scenario = with_settings(scenario, [*given, *settings])
    try:
        scenario = msgspec.structs.replace(scenario, faults=Faults.parse(faults))
    except ValueError as error:
        raise ScenarioError(f"--faults: {error}") from error
    return check(scenario)


def _folder(scenario: Scenario) -> Path:
    kind = (scenario.preset or scenario.federation.name).removeprefix("paper/").replace("/", "-")
    return Path("runs") / f"{kind}-{scenario.method}-seed{scenario.federation.seed}"


def _data(scenario: Scenario, given: Path | None) -> Path:
    """Where the data set lies: as given, as a path of the scenario, or where it is usually found."""
    from fedbac_edge.datasets import official

    if given is not None:
        return given
    if scenario.cut.data in official.DATA_SETS:
        return official.locate(scenario.cut.data)
    return Path(scenario.cut.data)


class _View(Protocol):
    def began(self, scenario: Scenario, out: Path, workers: int) -> None: ...

    def row(self, row: Row) -> None: ...

    def ended(self, result: Any, out: Path) -> None: ...


GAP = "  "
_COLUMNS = (
    Column("round", 5),
    Column("accuracy", 8),
    Column("sigma", 5, 2),
    Column("worst", 5),
    Column("best", 5),
    Column("clusters", 8, 3),
    Column("devices", 7),
    Column("sent", 9, 1),
    Column("seconds", 7),
)


class _Lines:
    """A line per round, with as many columns as the terminal has room for."""

    def __init__(self) -> None:
        width = narrow.terminal_width()
        self._layout = narrow.fitting(_COLUMNS, width, GAP) or tuple(c for c in _COLUMNS if c.keep == ALWAYS)

    def say(self, text: str) -> None:
        click.echo(text)

    def began(self, scenario: Scenario, out: Path, workers: int) -> None:
        federation = scenario.federation
        devices = sum(len(devices) for devices in federation.gateways.values())
        cut = scenario.cut
        how = f"{cut.form}, alpha {cut.alpha_server:g}"
        if cut.unlabelled_devices:
            how += f", {cut.unlabelled_devices} devices a server without labels"
        if cut.form == "annotation":
            how = (
                f"annotation {cut.annotation}, {100 * cut.labelled:g} % labelled, alpha {cut.alpha_client:g}"
            )
        self.say(
            f"{scenario.method} on {cut.data} ({how}): "
            f"{len(federation.gateways)} servers, {devices} devices, {federation.rounds} rounds, "
            f"seed {federation.seed}, {workers} workers -> {out}"
        )
        self.say(narrow.row({each.name: each.name for each in _COLUMNS}, self._layout, GAP))

    def row(self, row: Row) -> None:
        if row.accuracy is None:
            if row.moved:
                moves = ", ".join(f"{server} -> {cluster}" for server, cluster in sorted(row.moved.items()))
                self.say(f"{row.round:>5}  moved: {moves}")
            return
        shares = (row.accuracy, row.sigma or 0.0, row.worst or 0.0, row.best or 0.0)
        asked = sum(server.asked for server in row.servers.values())
        answered = sum(len(server.participants) for server in row.servers.values())
        cells = (
            str(row.round),
            *(f"{100 * share:.2f}" for share in shares),
            str(row.active_clusters),
            f"{answered}/{asked}",
            f"{(row.traffic.sent_up + row.traffic.sent_down) / 1e6:.1f} MB",
            f"{row.wall_s:.1f}",
        )
        named = {column.name: cell for column, cell in zip(_COLUMNS, cells, strict=True)}
        self.say(narrow.row(named, self._layout, GAP))

    def ended(self, result: Any, out: Path) -> None:
        self.say(
            f"accuracy {100 * result.accuracy:.2f} % (last ten rounds {100 * result.accuracy_last:.2f} %, "
            f"over servers: sigma {100 * result.sigma:.2f}, worst {100 * result.worst:.2f}, best "
            f"{100 * result.best:.2f}), {result.active_clusters} active clusters"
        )
        self.say(f"models {result.hash}")
        self.say(f"next: fedbac report {out} (tables and pictures; several runs are set side by side)")


class _Terminal(_Lines):
    """The lines above a bar with the time left."""

    def __init__(self, total: int) -> None:
        from fedbac_edge.commands.progress import Bars

        super().__init__()
        self.bars = Bars(total)

    def say(self, text: str) -> None:
        self.bars.say(text)

    def row(self, row: Row) -> None:
        super().row(row)
        self.bars.ended(row.round)


class _Json:
    """One object per line: {"event": "start" | "round" | "result", ...}."""

    def began(self, scenario: Scenario, out: Path, workers: int) -> None:
        self._say("start", {"out": str(out), "workers": workers}, scenario)

    def row(self, row: Row) -> None:
        self._say("round", {}, row)

    def ended(self, result: Any, out: Path) -> None:
        self._say("result", {"out": str(out)}, result)

    def _say(self, event: str, more: dict[str, Any], value: Any) -> None:
        import msgspec

        click.echo(json.dumps({"event": event, **more, **msgspec.to_builtins(value)}))


@contextlib.contextmanager
def _showing(scenario: Scenario, as_json: bool) -> Iterator[_View]:
    import sys

    total = scenario.federation.rounds
    if as_json:
        yield _Json()
    elif sys.stdout.isatty():
        view = _Terminal(total)
        with view.bars:
            yield view
    else:
        yield _Lines()
