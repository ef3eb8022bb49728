"""The whole report: one HTML file that needs nothing else and runs no script."""

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from debate_train.report.charts import write_duration
from debate_train.report.curves import curves
from debate_train.report.debates import pick, show
from debate_train.report.html import Html, fold, table, tag
from debate_train.report.results import results
from debate_train.report.run_files import RunFiles, read_run

# No script, no request: a browser refuses both even if an escape were ever forgotten.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
PARTS = (
    ("results", "Before and after"),
    ("curves", "Learning curves"),
    ("debates", "Debates"),
    ("repeat", "To repeat it"),
)


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run directory from what is there, and return its path.

    Raises:
        FileNotFoundError: The folder is not a run directory.
    """
    page = render(read_run(run_dir))
    path = run_dir / "report.html"
    aside = run_dir / f".report.html.{os.getpid()}"
    try:
        aside.write_text(page, encoding="utf-8")
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def render(run: RunFiles) -> str:
    """Return the report as text; the same files give the same text."""
    style = resources.files("debate_train.report").joinpath("style.css").read_text("utf-8")
    debates = [show(picked) for picked in pick(run.transcripts)]
    nothing = tag("p", "No steps measured yet.")
    bodies = (
        results(run.results),
        curves(run.rows) if run.rows else nothing,
        debates or tag("p", "No transcripts yet."),
        [
            _changes(run) if run.changes else None,
            fold("Recipe", tag("pre", run.recipe)) if run.recipe else None,
            fold("Environment", _environment(run.environment)) if run.environment else None,
        ],
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{run.name}: debate training report"),
        tag("style", Html(style)),
    )
    body = tag(
        "body",
        _header(run),
        tag(
            "main",
            *(
                tag("section", tag("h2", title), body, id=name)
                for (name, title), body in zip(PARTS, bodies, strict=True)
            ),
        ),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _header(run: RunFiles) -> Html:
    links = (tag("a", title, href=f"#{name}") for name, title in PARTS)
    return tag(
        "header",
        tag("p", "Debate training report", class_="note"),
        tag("h1", run.name),
        tag("p", " · ".join(_facts(run)), class_="note"),
        tag("nav", *links, aria_label="Parts of this report"),
    )


def _facts(run: RunFiles) -> list[str]:
    facts = [f"phases: {', '.join(run.phases)}"] if run.phases else []
    times = [row["time_s"] for row in run.rows if isinstance(row.get("time_s"), int | float)]
    if times:
        facts.append(write_duration(times[-1]))
    if run.environment.get("device"):
        facts.append(str(run.environment["device"]))
    if run.environment.get("started"):
        facts.append(f"started {str(run.environment['started'])[:16].replace('T', ' ')} UTC")
    return facts


def _changes(run: RunFiles) -> Html:
    rows = [(f"from step {step}", key, change) for step, key, change in run.changes]
    return table(["resumed", "key of the recipe", "change"], rows, "Changed when it was resumed")


def _environment(values: Mapping[str, Any]) -> Html:
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += [(f"{key}: {name}", str(item)) for name, item in value.items()]
        elif isinstance(value, list):
            shown = [
                item.get("started", "") if isinstance(item, Mapping) else item for item in value
            ]
            rows.append((key, ", ".join(map(str, shown)) or "none"))
        else:
            rows.append((key, "none" if value is None else str(value)))
    return table(["what", "value"], rows)
