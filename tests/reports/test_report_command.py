"""`fedbac report` as a person meets it: the files, what they contain, what is refused."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from fedbac_edge.cli import cli
from fedbac_edge.reports.document import Heading, Table
from fedbac_edge.reports.html import html
from fedbac_edge.reports.markdown import markdown

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Tags must close in order; what points outside is collected."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.images: list[bytes] = []
        self.rows: list[list[str]] = []
        self._cell = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data", "poster"):
                if str(value).startswith("data:image/png;base64,"):
                    import base64

                    self.images.append(base64.b64decode(str(value).partition(",")[2], validate=True))
                else:
                    self.outside.append(str(value))
        if tag in ("script", "link", "iframe", "object"):
            self.outside.append(tag)
        if tag == "img":
            assert dict(attrs)["alt"]
        if tag == "tr":
            self.rows.append([])
        self._cell = tag in ("td", "th")
        if self._cell:
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._cell = False

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on all runs."""
    out = tmp_path_factory.mktemp("report") / "all"
    folders = [str(folder) for folder in sorted(runs.iterdir()) if folder.is_dir()]
    done = CliRunner().invoke(
        cli, ["report", *folders, "--out", str(out), "--target", "0.5", "--target", "0.6"]
    )
    assert done.exit_code == 0, done.output
    assert sorted(map(Path, done.stdout.split())) == sorted(out.iterdir())
    return out


def test_the_html_is_whole_and_stands_alone(written: Path) -> None:
    text = (written / "report.html").read_text()
    page = Page(text)
    assert page.open == []
    assert page.outside == []
    assert "url(" not in text
    assert "@import" not in text
    assert [dict(Image.open(BytesIO(image)).info) for image in page.images]
    assert sorted(page.images) == sorted(path.read_bytes() for path in written.glob("*.png"))


def test_the_markdown_has_the_same_tables_and_finds_its_pictures(written: Path) -> None:
    text = (written / "report.md").read_text()
    named = re.findall(r"!\[[^\n]*\]\(([^)]+)\)", text)
    assert sorted(named) == sorted(path.name for path in written.glob("*.png"))
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    cells = [[cell.replace("\\", "") for cell in re.split(r"(?<!\\) \| ", row[2:-2])] for row in rows]
    assert cells == Page((written / "report.html").read_text()).rows
    assert "To 50 %" in text
    assert "To 60 %" in text


def test_every_run_is_listed_and_every_moving_one_is_drawn(written: Path) -> None:
    text = (written / "report.md").read_text()
    for name in ("fedbac-1", "fedbac-2", "fedbac-all", "random-1", "fixed-1", "hierfavg-1"):
        assert f"| {name} |" in text
    drawn = [path.name for path in written.glob("clusters-*.png")]
    assert any("seed2" in name for name in drawn)
    assert not any("hierfavg" in name or "fixed" in name for name in drawn)
    assert len(list(written.glob("accuracy-*.png"))) == 1


def test_the_csv_has_every_round_of_every_run(written: Path, runs: Path) -> None:
    with (written / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 * 11 + 2
    expected = [json.loads(line) for line in (runs / "fixed-1" / "metrics.jsonl").read_text().splitlines()]
    training = [row for row in expected if row["phase"] == "train"]
    found = [row for row in rows if row["method"] == "fixed"]
    assert [float(row["accuracy"]) for row in found] == pytest.approx(
        [row["accuracy"] for row in training], abs=1e-6
    )
    sent = [row["traffic"]["sent_up"] + row["traffic"]["sent_down"] for row in training]
    assert int(found[1]["sent_bytes"]) == sum(sent[:2])


def test_pictures_have_ink_and_a_readable_size(written: Path) -> None:
    for path in written.glob("*.png"):
        image = Image.open(path).convert("RGB")
        assert image.width >= 1000
        assert image.height >= 300
        colours = image.getcolors(maxcolors=1 << 24)
        assert colours is not None
        assert len(colours) > 50


def test_views_of_a_method_are_told_and_drawn(copied: Callable[[str], Path], tmp_path: Path) -> None:
    """Rows as a method with several views writes them; the served one is EM."""
    folder = copied("hierfavg-1")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    training = [row for row in rows if row["phase"] == "train"]
    for row in training:
        row["views"] = {"EM": row["accuracy"], "SM": 0.5 + row["round"] / 100, "UM": 0.25}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "report"
    done = CliRunner().invoke(cli, ["report", str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.output
    text = (out / "report.md").read_text()
    lasts = [0.5 + row["round"] / 100 for row in training][-10:]
    assert f"| hierfavg | SM | 61.00 | {100 * sum(lasts) / 10:.2f} |" in text
    assert "| hierfavg | UM | 25.00 | 25.00 |" in text
    (picture,) = out.glob("views-*.png")
    assert picture.name in text


def test_an_earlier_reports_pictures_go_and_other_files_stay(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.png").write_bytes(b"x")
    for name, there in (("fedbac-1", True), ("hierfavg-1", False)):
        done = CliRunner().invoke(cli, ["report", str(runs / name), "--out", str(tmp_path)])
        assert done.exit_code == 0, done.output
        assert bool(list(tmp_path.glob("clusters-*.png"))) == there
    assert len(list(tmp_path.glob("accuracy-*.png"))) == 1
    assert (tmp_path / "mine.png").read_bytes() == b"x"


def test_one_run_alone(runs: Path, unfinished: Callable[[str, int], Path], tmp_path: Path) -> None:
    for lines in (1, 3):
        folder = unfinished("fedbac-2" if lines == 1 else "random-1", lines)
        done = CliRunner().invoke(cli, ["report", str(folder), "--out", str(tmp_path / str(lines))])
        assert done.exit_code == 0, done.output
        assert "Unfinished" in (tmp_path / str(lines) / "report.md").read_text()


def test_json_gives_the_figures_and_writes_nothing(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["report", str(runs / "fedbac-1"), str(runs / "random-1"), "--json"])
    assert done.exit_code == 0, done.output
    (benchmark,) = json.loads(done.stdout)["benchmarks"]
    result = json.loads((runs / "fedbac-1" / "result.json").read_text())
    run = benchmark["entries"][0]["runs"][0]
    assert {name: run[name] for name in ("accuracy", "accuracy_last", "sigma", "worst", "best")} == {
        name: pytest.approx(result[name]) for name in ("accuracy", "accuracy_last", "sigma", "worst", "best")
    }
    assert benchmark["differences"][0]["seeds"] == [1]
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_command_says_what_to_install(runs: Path, tmp_path: Path) -> None:
    program = "import sys; sys.modules['matplotlib'] = None; from fedbac_edge.cli import main; main()"
    command = [sys.executable, "-c", program, "report", str(runs / "fixed-1")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'fedbac-edge[report]'" in done.stderr
    assert "Traceback" not in done.stderr
    figures = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(figures.stdout)["benchmarks"]


def test_reports_need_neither_torch_nor_a_display() -> None:
    program = (
        "import sys; import fedbac_edge.reports.page, fedbac_edge.commands.report;"
        "print([m for m in ('torch', 'scipy', 'onnx', 'matplotlib.pyplot', 'tkinter') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "RUN"), (["nowhere"], "no run in nowhere"), (["nowhere", "--target", "80"], "target")],
)
def test_what_cannot_be_reported_is_said_with_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["report", *arguments])
    assert done.exit_code == 2
    assert words in done.output
    assert list(tmp_path.iterdir()) == []


def test_text_of_a_run_cannot_break_the_page() -> None:
    nasty = "<script>alert(1)</script> | `x` [a](b)"
    blocks = (Heading(1, nasty), Table(nasty, ("a", nasty), ((nasty, "1"),)))
    page = Page(html(nasty, blocks))
    assert page.outside == []
    assert page.rows[1] == [nasty, "1"]
    text = markdown(blocks)
    assert "<script>" not in text.replace("\\<", "")
    assert text.count("\n| ") == 3


def test_a_file_is_no_place_for_a_report(runs: Path, tmp_path: Path) -> None:
    place = tmp_path / "report"
    place.write_text("kept")
    result = CliRunner().invoke(cli, ["report", str(runs), "--out", str(place)])
    assert result.exit_code == 2
    assert "give a folder" in result.output
    assert place.read_text() == "kept"
