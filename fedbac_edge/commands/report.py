"""`fedbac report`: what runs of the laboratory came to, as one HTML file and as Markdown."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedbac_edge.commands.failures import Misconfigured, explained
from fedbac_edge.commands.options import FILE, json_option


@click.command()
@click.argument("runs", nargs=-1, required=True, type=FILE, metavar="RUN...")
@click.option(
    "--out", type=FILE, metavar="DIR", help="Folder to write; its report is replaced. [default: report]"
)
@click.option(
    "--target",
    "targets",
    type=click.FloatRange(0, 1, min_open=True),
    multiple=True,
    default=(0.8,),
    show_default=True,
    help="Accuracy for rounds and bytes to target; may be repeated.",
)
@json_option("Figures as JSON; nothing is written unless --out is given.")
def report(runs: tuple[Path, ...], out: Path | None, targets: tuple[float, ...], as_json: bool) -> None:
    """Report on runs of `fedbac simulate` and `fedbac semi`, and on fleets; finished or running.

    Writes report.html (one file, pictures inside), report.md with its pictures beside it, and rounds.csv:
    accuracy over rounds, clusters over rounds, final figures over seeds beside the paper's, rounds and bytes
    to a target, differences between methods on equal partitions.

    \b
    Example: Fed-BAC and its baseline
      fedbac simulate paper/fashion-mnist-0.1
      fedbac simulate paper/fashion-mnist-0.1 --method hierfavg
      fedbac report runs/fashion-mnist-0.1-*
    Example: a fleet in the field, from the state folder of its cloud
      fedbac report runs/orchard
    Example: the figures for another program
      fedbac report runs/* --json --target 0.8 --target 0.9
    """
    from fedbac_edge.reports.fleet import fleet_json, is_fleet, read_fleet
    from fedbac_edge.reports.grouping import benchmarks
    from fedbac_edge.reports.reading import ReportError, read_runs

    targets = tuple(dict.fromkeys(targets))
    if out is not None and out.exists() and not out.is_dir():
        raise click.UsageError(f"--out {out}: that is a file; give a folder")
    try:
        with explained():
            fleets = [read_fleet(folder) for folder in runs if is_fleet(folder)]
            found, remarks = read_runs([each for each in runs if not is_fleet(each)], bool(fleets))
            groups = benchmarks(found)
            if as_json:
                from fedbac_edge.reports.json_form import json_form

                told = json_form(groups, remarks, targets)
                if fleets:
                    told["fleets"] = [fleet_json(fleet) for fleet in fleets]
                click.echo(json.dumps(told))
            if out is not None or not as_json:
                from fedbac_edge.reports import written
                from fedbac_edge.reports.page import page
                from fedbac_edge.reports.rounds_csv import rounds_csv

                blocks = page(groups, remarks, targets, fleets)
                files = written.write(out or Path("report"), blocks, rounds_csv(groups))
                for path in [] if as_json else files:
                    click.echo(str(path))
            for remark in remarks:
                click.echo(remark, err=True)
    except ReportError as error:
        raise Misconfigured(str(error)) from error
