"""The whole report: one HTML file that needs nothing else and runs no script."""

import os
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path

from debate_train.report.charts import write_duration
from debate_train.report.curves import curves, seconds_of
from debate_train.report.debates import debates
from debate_train.report.html import Html, fold, join, table, tag
from debate_train.report.results import MAX_ROWS, MAX_SHOWN, results
from debate_train.report.run_files import RunFiles, read_run

MAX_RECIPE_CHARS = 100_000
MAX_PHASE_CHARS = 300
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
    partial = run_dir / f".report.html.{os.getpid()}"
    try:
        partial.write_text(page, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def render(run: RunFiles) -> str:
    """Return the report as text; the same files give the same text."""
    style = resources.files("debate_train.report").joinpath("style.css").read_text("utf-8")
    nothing = tag("p", "No steps measured yet.")
    bodies = (
        _part(lambda: results(run.results)),
        _part(lambda: curves(run.rows) if run.rows else nothing),
        _part(lambda: debates(run.transcripts)),
        _part(lambda: _to_repeat(run)),
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


def _part(make: Callable[[], Html]) -> Html:
    """Return a part of the page; files that other hands have changed cost no more than theirs."""
    try:
        return make()
    except Exception as error:
        problem = f"{type(error).__name__}: {str(error)[:500]}"
        return tag("p", f"This part cannot be shown: {problem}", class_="badge wrong")


def _to_repeat(run: RunFiles) -> Html:
    left_out = len(run.recipe) - MAX_RECIPE_CHARS
    more = f"\n… {left_out:,} more characters in recipe.yaml" if left_out > 0 else ""
    recipe = tag("pre", run.recipe[:MAX_RECIPE_CHARS], more)
    return join(
        [
            _changes(run) if run.changes else None,
            fold("Recipe", recipe) if run.recipe else None,
            fold("Environment", _environment(run.environment)) if run.environment else None,
        ]
    )


def _header(run: RunFiles) -> Html:
    links = (tag("a", title, href=f"#{name}") for name, title in PARTS)
    return tag(
        "header",
        tag("p", "Debate training report", class_="note"),
        tag("h1", run.name),
        _part(lambda: tag("p", " · ".join(_facts(run)), class_="note")),
        tag("nav", *links, aria_label="Parts of this report"),
    )


def _facts(run: RunFiles) -> list[str]:
    phases = f"phases: {', '.join(run.phases)}"
    short = f"{phases[:MAX_PHASE_CHARS]}…" if len(phases) > MAX_PHASE_CHARS else phases
    facts = [short] if run.phases else []
    times = seconds_of(run.rows)
    if times:
        facts.append(write_duration(times[-1]))
    if run.environment.get("device"):
        facts.append(str(run.environment["device"])[:MAX_PHASE_CHARS])
    if run.environment.get("started"):
        facts.append(f"started {str(run.environment['started'])[:16].replace('T', ' ')} UTC")
    return facts


def _changes(run: RunFiles) -> Html:
    rows = [(f"from step {step}", key, change) for step, key, change in run.changes]
    return table(["resumed", "key of the recipe", "change"], rows, "Changed when it was resumed")


def _environment(values: Mapping[str, object]) -> Html:
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
    shown = [(key[:MAX_SHOWN], value[:MAX_SHOWN]) for key, value in rows[:MAX_ROWS]]
    return table(["what", "value"], shown)
