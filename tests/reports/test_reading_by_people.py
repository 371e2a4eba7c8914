"""What a person meets in a report: narrow screens, no empty columns, classes, intervals, dates; fleets."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedbac_edge.cli import cli
from fedbac_edge.lab.fleet.world import World
from fedbac_edge.lab.trials import trials
from fedbac_edge.node.store import Store
from fedbac_edge.reports import tables
from fedbac_edge.reports.document import Table, without_empty_columns
from fedbac_edge.reports.grouping import benchmarks
from fedbac_edge.reports.html import html
from fedbac_edge.reports.merit import confidence, merit, spread
from fedbac_edge.reports.reading import read_runs


class Labels(HTMLParser):
    """(heading, label) of every cell: what a card on a narrow screen shows beside a figure."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "td":
            self.cells.append(dict(attrs).get("data-label"))


def test_on_a_narrow_screen_every_figure_has_its_heading() -> None:
    """420 pixels: rows are cards, so that nothing is wider than the screen."""
    text = html("t", [Table("c", ("method", "last <round>"), (("fedbac", "94.3"), ("ifca", "93.0")))])
    assert Labels(text).cells == ["method", "last <round>"] * 2
    narrow = text.partition("@media (max-width: 45rem)")[2]
    assert "content: attr(data-label)" in narrow
    assert "thead { display: none; }" in narrow


def test_columns_without_a_figure_are_left_out() -> None:
    table = Table(
        "c", ("method", "paper", "seeds", "gap"), (("a", "-", "1", "-"), ("b", "-", "2", "3")), frozenset({2})
    )
    assert without_empty_columns(table) == Table(
        "c", ("method", "seeds", "gap"), (("a", "1", "-"), ("b", "2", "3")), frozenset({1})
    )
    empty = Table("c", ("method", "x"), ())
    assert without_empty_columns(empty) == empty


def test_no_report_has_a_column_of_dashes(runs: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["report", str(runs / "fixed-1"), "--out", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    blocks: list[list[list[str]]] = [[]]
    for line in (tmp_path / "report" / "report.md").read_text().splitlines():
        if line.startswith("|"):
            blocks[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif blocks[-1]:
            blocks.append([])
    assert len(blocks) > 3
    for header, _, *rows in filter(None, blocks):
        for number, name in enumerate(header[1:], 1):
            assert any(row[number] != "-" for row in rows), name


def test_the_interval_is_students(runs: Path) -> None:
    """Known values: t(0.975; 1) = 12.706, t(0.975; 4) = 2.776."""
    low, high = confidence(spread([0.90, 0.91])) or (0, 0)
    assert (low, high) == pytest.approx((0.905 - 12.706 * 0.005, 0.905 + 12.706 * 0.005))
    low, high = confidence(spread([0.1, 0.2, 0.3, 0.4, 0.5])) or (0, 0)
    assert high - low == pytest.approx(2 * 2.776 * 0.15811388 / 5**0.5, rel=1e-4)
    assert confidence(spread([0.9])) is None
    assert confidence(spread([0.0, 1.0])) == (0.0, 1.0), "a share"
    (benchmark,) = benchmarks(read_runs([runs / "fedbac-1", runs / "fedbac-2"])[0])
    table = tables.accuracy(benchmark)
    assert " to " in table.rows[0][table.header.index("95 % interval, last round")]


def test_classes_are_counted_over_all_servers(runs: Path) -> None:
    (run,), _ = read_runs([runs / "fedbac-1"])
    last = run.training[-1]
    for server in last.servers.values():
        assert sum(count for _, count in server.classes) == server.test
        assert sum(right for right, _ in server.classes) == round(server.accuracy * server.test)
    assert not any(server.classes for row in run.training[:-1] for server in row.servers.values())
    right = sum(server.classes[1][0] for server in last.servers.values())
    count = sum(server.classes[1][1] for server in last.servers.values())
    assert merit(run).classes[1] == right / count
    (benchmark,) = benchmarks([run])
    table = tables.classes(benchmark)
    assert table is not None
    assert [row[0] for row in table.rows] == ["dark", "bright"]
    assert table.rows[1][1] == f"{100 * right / count:.2f}"


def test_a_run_says_when_and_where(runs: Path) -> None:
    (run,), _ = read_runs([runs / "fedbac-1"])
    (benchmark,) = benchmarks([run])
    table = tables.runs(benchmark)
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert row["begun"].startswith("20")
    assert "Linux" in row["machine"] or len(row["machine"]) > 3


def test_a_run_of_an_earlier_version_says_nothing_of_it(copied: Callable[[str], Path]) -> None:
    folder = copied("fixed-1")
    about = json.loads((folder / "run.json").read_text())
    del about["began"], about["host"]
    (folder / "run.json").write_text(json.dumps(about))
    (run,), _ = read_runs([folder])
    assert run.about.began == ""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of a federation of real machines and stores: two gateways, three rounds."""
    place = tmp_path_factory.mktemp("state")
    federation = trials.federation_of((2, 2, 3, "float32"))
    trial = trials.Trial(federation, World())
    names = {"cloud": "cloud.sqlite"} | {name: f"gateway-{name}.sqlite" for name in federation.gateways}
    trial.add_all(lambda name: Store(place / names.get(name, f"{name}.sqlite")))
    assert trial.world.run(lambda: trial.cloud is not None and trial.cloud.phase == "finished")
    for process in trial.world.processes.values():
        process.store.close()
    return place


def test_a_fleets_state_is_shown(fleet: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["report", str(fleet), "--out", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "report" / "report.md").read_text()
    assert "A fleet in the field" in text
    assert "finished, round 3" in text
    for told in ("| gw1 |", "| gw2 |", "| 3 evaluate |", "| gw1/d11 | 2 |"):
        assert told in text, text
    assert (tmp_path / "report" / "accuracy-fleet-1.png").read_bytes().startswith(b"\x89PNG")


def test_a_fleet_beside_runs_and_as_json(fleet: Path, runs: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["report", str(fleet), str(runs / "fixed-1"), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert len(found["benchmarks"]) == 1
    assert [each["phase"] for each in found["fleets"][0]["rounds"]].count("train") == 3


def test_a_damaged_store_is_said_with_its_folder(fleet: Path, tmp_path: Path) -> None:
    (tmp_path / "cloud.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 40)
    done = CliRunner().invoke(cli, ["report", str(tmp_path), "--out", str(tmp_path / "report")])
    assert done.exit_code == 2
    assert str(tmp_path) in done.output
    assert not (tmp_path / "report").exists()
