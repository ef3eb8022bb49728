"""Charts as data and as images, and those of several pages as one."""

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from debate_report import report_main
from debate_report.charts import Chart, Series
from debate_report.figure_files import as_csv, as_images, overlaid
from debate_report.timeline import plain_axis
from report.test_report_browser import HOSTILE, fill


def plot(title: str, *values: float, label: str = "reward") -> tuple[Chart, object]:
    points = tuple((float(step), value) for step, value in enumerate(values, 1))
    return Chart(title, "mean", [Series(label, points)], "number"), plain_axis([1, 2], "step")


def rollout_file(path: Path, rewards: tuple[float, float]) -> Path:
    rows = [
        {"question": f"{n}?", "response": f"{n} {step}", "reward": reward, "step": step}
        for step, reward in enumerate(rewards, 1)
        for n in range(2)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_chart_of_a_run_is_data_and_an_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fill(tmp_path / "run").path
    points, images = tmp_path / "points.csv", tmp_path / "images"
    assert report_main([str(run), "--csv", str(points), "--svg", str(images)]) == 0
    rows = list(csv.DictReader(points.open(newline="")))
    losses = [
        (float(row["position"]), float(row["value"])) for row in rows if row["chart"] == "Loss"
    ]
    # Steps of both phases; the fixture's loss is 1 / step.
    assert losses == [(step, pytest.approx(1 / step)) for step in range(1, 7)]
    charts = {row["chart"] for row in rows}
    files = list(images.glob("*.svg"))
    assert len(files) == len(charts)
    for file in files:
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
    assert len(capsys.readouterr().out.split()) == 2 + len(files)


def test_files_of_rollouts_lie_over_each_other(tmp_path: Path) -> None:
    first = rollout_file(tmp_path / "first.jsonl", (0.0, 0.5))
    second = rollout_file(tmp_path / "second.jsonl", (0.25, 1.0))
    points, page = tmp_path / "points.csv", tmp_path / "page.html"
    arguments = [str(first), str(second), "--output", str(page), "--csv", str(points)]
    assert report_main(arguments) == 0
    values = {
        (row["line"], row["position"]): float(row["value"])
        for row in csv.DictReader(points.open(newline=""))
        if row["chart"] == "Reward and its parts"
    }
    assert values["first.jsonl: reward", "1"] == 0.0 and values["first.jsonl: reward", "2"] == 0.5
    assert values["second.jsonl: reward", "1"] == 0.25 and values["second.jsonl: reward", "2"] == 1
    text = page.read_text()
    assert "Replies side by side" in text and "second.jsonl: reward" in text


def test_charts_of_one_title_and_axis_become_one() -> None:
    together = overlaid(
        {"a": [plot("Reward", 0, 1), plot("Length", 5, 6)], "b": [plot("Reward", 1, 0)]}
    )
    lines = {chart.title: [line.label for line in chart.series] for chart, _ in together}
    assert lines == {"Reward": ["a: reward", "b: reward"], "Length": ["a: reward"]}


def test_no_label_is_a_formula_or_markup() -> None:
    plots = [plot("Reward", 0, 1, label="=1+1"), plot("Reward", 0, 1, label=HOSTILE)]
    labels = {row["line"] for row in csv.DictReader(as_csv(plots).splitlines())}
    assert "'=1+1" in labels and not any(label.startswith("=") for label in labels)
    images = as_images(plots)
    assert list(images) == ["reward.svg", "reward-2.svg"]
    for image in images.values():
        root = ElementTree.fromstring(image)
        tags = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert tags <= {"svg", "style", "rect", "text", "tspan", "g", "line", "path", "circle"}


def test_file_without_a_chart_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"question": "1?", "response": "1", "reward": 1.0}\n')
    assert report_main([str(path), "--csv", str(tmp_path / "x.csv")]) == 2
    assert "found no chart; expected two steps" in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()
