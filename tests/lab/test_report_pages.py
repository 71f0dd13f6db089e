"""The report as HTML: well-formed, self-contained, escaped; and the command from bench to page."""

import csv
import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from commands import Run
from melon import cli
from melon.demo import write_synthetic
from melon.lab.comparisons import read_bench
from melon.lab.page import html_page
from melon.lab.report import report, report_folders, results_csv, results_table, write_report
from report_scenes import ranks_with, write_run

ODD = "odd <b>&|`name` *"
VOID = {"meta", "br", "use", "path", "image", "rect", "line", "circle"}


class Nesting(HTMLParser):
    """Follows tags; anything that is closed in the wrong place is a mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.targets: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.targets += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    n = 60
    repeat = [False] * 50 + [True] * 10
    for stream in ("yelp", ODD):
        for seed in (0, 1):
            for name, hits in (("melon", 40), ("melon_i", 25), ("melon_p", 20), ("eals", 15), ("sml", 10)):
                given = {"repeat": repeat, "cold": [True, *repeat[1:]], "full": {"HR@5": 0.125}}
                write_run(made, name, ranks_with(hits + seed, n), seed=seed, stream=stream, batch=8, **given)
    write_run(made, "sml", ranks_with(20, n), stream="yelp", recommender="ncf")
    (made / f"{ODD}-ncf-0-eals.failed.txt").write_text("<script>alert(1)</script>", encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def written(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    write_report(report(read_bench([folder]), "melon report runs"), out)
    return out


@pytest.fixture(scope="module")
def html(written: Path) -> str:
    return (written / "report.html").read_text(encoding="utf-8")


def test_the_page_is_well_formed(html: str) -> None:
    nesting = Nesting()
    nesting.feed(html)
    assert nesting.open == []
    assert len(set(nesting.ids)) == len(nesting.ids)
    local = {target[1:] for target in nesting.targets if target.startswith("#")}
    assert local <= set(nesting.ids)


def test_the_page_fetches_nothing(html: str) -> None:
    nesting = Nesting()
    nesting.feed(html)
    assert all(target.startswith(("#", "data:")) for target in nesting.targets)
    assert not re.search(r"<(script|link|iframe|object)\b|@import|<!DOCTYPE svg", html)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    known = {"xmlns", "xmlns:xlink", "xmlns:cc", "xmlns:dc", "xmlns:rdf", "rdf:resource"}
    assert set(re.findall(r'(\S+?)="https?://', html)) <= known


def test_names_are_escaped(html: str) -> None:
    assert "<b>&|" not in html
    assert "odd &lt;b&gt;&amp;|" in html
    assert "<script>alert" not in html


def test_every_question_has_its_section(html: str) -> None:
    for key in ("short", "results", "time", "cost", "choices", "made"):
        assert f'<section id="{key}">' in html
        assert f'<a href="#{key}">' in html
    for word in ("frozen (no update)", "recent popularity", "default steps (tuned)", "SML", "without repeats"):
        assert word in html
    assert "Ranked among the whole catalogue" in html


def test_the_first_screen_says_who_won_then_the_table_then_the_rules(html: str) -> None:
    sentence = html.index("MeLON has the highest HR@5 in 2 of 3 comparisons, +.")
    table, rules = html.index("<table>"), html.index("The reference is default steps (tuned)")
    assert sentence < table < rules


def test_one_comparison_has_one_sentence(tmp_path: Path) -> None:
    n = 400
    for name, hits in (("melon", 320), ("eals", 80)):
        write_run(tmp_path, name, ranks_with(hits, n), baselines={"default": ranks_with(200, n)})
    lead = report(read_bench([tmp_path]), "melon report").lead
    assert lead.startswith("MeLON has the highest HR@5 on toy · BPR: .800, +.300 [+.")
    assert lead.endswith("over default steps (tuned), the next of 6 methods.")


def test_wins_are_counted_and_auto_has_its_name(tmp_path: Path) -> None:
    n = 100
    write_run(tmp_path, "melon", ranks_with(60, n))
    write_run(tmp_path, "default", ranks_with(90, n), recommender="blend", half_life="auto")
    write_run(tmp_path, "melon", ranks_with(80, n), stream="other")
    lead = report(read_bench([tmp_path]), "melon report").lead
    assert (
        lead == "MeLON has the highest HR@5 in 2 of 3 comparisons, +.600 to +.800 ahead of the next method; auto in 1."
    )


def test_a_strategy_that_was_not_tuned_is_marked(tmp_path: Path) -> None:
    for name, count in (("melon", 8), ("tanhstep", 0)):
        path = write_run(tmp_path, "melon" if name == "melon" else "eals", trials={"default": 8})
        record = json.loads(path.read_text(encoding="utf-8"))
        record["strategy"] = record["config"]["asked"]["strategy"] = name
        record["config"]["chosen"][name] = {"settings": {}, "at_edge": [], "trials": [{}] * count}
        path.write_text(json.dumps(record), encoding="utf-8")
    page = html_page(report(read_bench([tmp_path]), "melon report"))
    assert "tanhstep (not tuned)" in page
    assert "8 trials for each strategy. Not tuned, because nothing was searched for it: tanhstep" in page
    assert "same number of trials" not in page


def test_a_tampered_record_gets_no_html_in(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    path = write_run(tmp_path, seed=1)
    record = json.loads(path.read_text(encoding="utf-8"))
    record["version"] = record["dataset"]["sha256"] = record["strategy"] = record["recommender"] = evil
    record["dataset"]["path"] = f"a `{evil}` b"
    record["protocol"]["candidates"] = record["config"]["asked"]["candidates"] = evil
    record["config"]["chosen"][evil] = {"settings": {evil: evil}, "at_edge": [evil], "trials": [{}]}
    path.write_text(json.dumps(record), encoding="utf-8")
    report_folders([tmp_path], tmp_path / "out")
    assert "<script" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_the_main_table_as_csv_and_latex(folder: Path) -> None:
    bench = read_bench([folder])
    lines = list(csv.DictReader(io.StringIO(results_csv(bench))))
    (melon,) = [line for line in lines if (line["stream"], line["method"]) == ("yelp", "melon")]
    assert (melon["label"], melon["seeds"], melon["events"]) == ("MeLON", "2", "50")
    assert float(melon["HR@5"]) == pytest.approx(0.81)
    assert float(melon["HR@5_se"]) == pytest.approx(0.01)
    tex = results_table(bench).to_latex()
    assert tex.count("\\begin{tabular}") == tex.count("\\end{tabular}") == 1
    assert "MeLON\\_I" in tex
    assert "\\textbf{.810}" in tex
    assert "$<$b$>$\\&" in tex


def test_both_metrics_stand_in_the_comparison(html: str) -> None:
    at = html.index("conclusions are about HR@5")
    table = html[html.rindex("<table", 0, at) : html.index("</table>", at)]
    assert table.count("95 % by user") == 2
    assert "NDCG@10" in table


def test_best_and_second_are_marked(html: str) -> None:
    at = html.index("<h3>yelp · BPR</h3>")
    table = html[at : html.index("</table>", at)]
    lines = {name: table[table.index(name) :].split("</tr>")[0] for name in ("MeLON</td>", "MeLON_I</td>", "eALS</td>")}
    assert "<b>.810</b>" in lines["MeLON</td>"]  # 40 and 41 of the 50 that are no repeats
    assert "<u>.510</u>" in lines["MeLON_I</td>"]
    assert "<b>" not in lines["eALS</td>"]
    assert "±.010" in lines["eALS</td>"]


def test_failed_cells_are_told(html: str) -> None:
    at = html.index("Cells without a result")
    assert "&lt;script&gt;alert(1)" in html[at:]


def test_the_figures_stand_beside_it(written: Path) -> None:
    figures = sorted((written / "figures").glob("*.svg"))
    assert figures
    for figure in figures:
        assert figure.read_text(encoding="utf-8").startswith("<svg")
        assert figure.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_the_same_records_are_the_same_report(tmp_path: Path) -> None:
    write_run(tmp_path)
    one, other = (html_page(report(read_bench([tmp_path]), "melon report runs")) for _ in range(2))
    assert one == other


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real bench, with a pairing that does not exist."""
    made = tmp_path_factory.mktemp("bench")
    write_synthetic("flip", made / "flip.parquet", 1_200, 0)
    words = ["--recommenders", "bpr,ncf,ials", "--strategies", "metasgd", "--seeds", "1", "--out", "runs"]
    few = ["--split", "0.8,0.05,0.15", "--budget", "1", "--epochs", "1", "--negatives", "15", "--no-lists"]
    small = ["--set", "recommender.dim=4"]
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(made)
        patched.setattr(sys, "argv", ["melon", "bench", "flip.parquet", *words, *few, *small])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert not stop.value.code
    return made / "runs"


class TestCommand:
    def test_from_bench_to_page(self, bench: Path, run: Run) -> None:
        ended = run("report", bench)
        assert ended.code == 0, ended.said
        assert "5 records in 3 comparisons; wrote" in ended.out
        assert {"results.csv", "results.tex"} <= {path.name for path in (bench / "report").iterdir()}
        page = (bench / "report" / "report.html").read_text(encoding="utf-8")
        assert "N/A" in page
        assert "melon bench flip.parquet --recommenders bpr,ncf,ials" in page
        assert (bench / "report" / "figures" / "trend-flip-ncf.png").exists()
        assert len(read_bench([bench]).runs) == 5  # the report in the folder is no record

    def test_a_single_result(self, bench: Path, run: Run, tmp_path: Path) -> None:
        ended = run("report", bench / "flip-bpr-0-metasgd.json", "--out", tmp_path / "one")
        assert ended.code == 0, ended.said
        assert "MetaSGD" in (tmp_path / "one" / "report.html").read_text(encoding="utf-8")


def test_the_fewest_seeds_of_a_comparison_are_told(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, seed=seed)
    assert "3 seeds" in report(read_bench([tmp_path]), "melon report").facts
    write_run(tmp_path, recommender="ncf")
    assert "1 to 3 seeds" in report(read_bench([tmp_path]), "melon report").facts
