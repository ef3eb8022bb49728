"""`debate-report`: one HTML file that needs nothing else, and runs no script but its own."""

import argparse
import base64
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from debate_protocol.command_line import (
    BAD_USAGE,
    DONE,
    FAILED,
    UsageError,
    add_options,
    complain,
    heed_options,
    run_command,
)
from debate_report.browsing import Browser, browser, read_all
from debate_report.comparison import as_text, comparison, results, setting_of, shared_setting
from debate_report.curves import curves, picture, seconds_of
from debate_report.debates import Debates
from debate_report.json_values import finite
from debate_report.nothing_learned import warning_of
from debate_report.number_texts import write_duration
from debate_report.page_templates import render
from debate_report.run_files import RunFiles, read_run, read_source
from debate_report.society import society

MAX_RECIPE_CHARS = 100_000
MAX_PHASE_CHARS = 300


def write_report(run_dir: Path, path: Path | None = None) -> Path:
    """Write the report of a run, an evaluation or rollouts, and return its path.

    Args:
        run_dir: The folder, or a file.
        path: The file to write; None is `report.html` in the folder, or `FILE.html` beside a file.

    Raises:
        FileNotFoundError: There is nothing of the kind.
        UsageError: A file of rollouts cannot be read.
    """
    return _written(path or _beside(run_dir), make_page(read_source(run_dir)))


def _beside(source: Path) -> Path:
    return source / "report.html" if source.is_dir() else source.with_name(f"{source.name}.html")


def write_comparison(run_dirs: Sequence[Path], path: Path) -> Path:
    """Write one page of several runs, and return its path.

    Raises:
        FileNotFoundError: One of the folders is not a run directory.
    """
    runs = [read_run(run_dir) for run_dir in run_dirs]
    names = [run.name for run in runs]
    runs = [
        run if names.count(run.name) == 1 else replace(run, name=f"{_above(run)}/{run.name}")
        for run in runs
    ]
    return _written(path, make_comparison(runs))


def _above(run: RunFiles) -> str:
    return run.tokens.resolve().parent.parent.name


def _written(path: Path, page: str) -> Path:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)  # It might be a link that somebody put there.
    try:
        with unfinished.open("x", encoding="utf-8") as file:
            file.write(page)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def make_page(run: RunFiles) -> str:
    """Return the report as text; the same files give the same text."""
    found = read_all(run)
    debates = _debates(run, found)
    if not run.rows and not run.recipe:
        return _page(
            run.name, Markup(), (*_figures(run), ("debates", "Debates", debates.shown)), debates
        )
    parts = (
        ("results", "Before and after", _part(lambda: _first(run))),
        ("curves", "Learning curves", _part(lambda: curves(run))),
        ("society", "Who convinces whom", _part(lambda: society(found.found))),
        ("debates", "Debates", debates.shown),
        ("repeat", "To repeat it", _part(lambda: _to_repeat(run))),
    )
    return _page(run.name, _part(lambda: _facts(run)), parts, debates)


def _first(run: RunFiles) -> Markup:
    """Return the results, below what makes them worth nothing."""
    warning = warning_of(run.rows)
    shown = Markup('<p class="verdict">{}</p>').format(warning) if warning else Markup()
    return shown + results(run.results)


def run_html(run_dir: Path) -> str:
    """Return what a notebook shows of a run: its setting, its results, and its main curves.

    Raises:
        FileNotFoundError: The folder is not a run directory.
    """
    run = read_run(run_dir)
    known = run.results and {key: run.results.get(key) for key in ("table", "summary")}
    parts = [_part(lambda: _facts(run)), _part(lambda: results(known))]
    if drawn := picture(run):
        data = base64.b64encode(drawn.encode()).decode()
        parts.append(Markup('<img alt="curves" src="data:image/svg+xml;base64,{}"/>').format(data))
    return Markup("\n").join(parts)


def _figures(run: RunFiles) -> list[tuple[str, str, Markup]]:
    if not run.figures:
        return []
    tables = (run.figures, *run.cross_play)
    return [("results", "Results", _part(lambda: render("figures.html", tables=tables)))]


def make_comparison(runs: Sequence[RunFiles]) -> str:
    """Return one page of several runs as text."""
    parts = (("runs", "Runs side by side", _part(lambda: comparison(runs))),)
    facts = _part(lambda: render("facts.html", facts=shared_setting(runs)))
    return _page(f"Comparison of {len(runs)} runs", facts, parts, Browser())


def _page(
    name: str, facts: Markup, parts: Sequence[tuple[str, str, Markup]], debates: Browser
) -> str:
    style, script = render("style.css"), render("page.js")
    policy = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    return render(
        "page.html",
        name=name,
        facts=facts,
        parts=parts,
        style=style,
        script=script,
        policy=Markup(policy),
        debates=debates,
    )


def _hash(text: str) -> str:
    """Return what a content-security policy calls an element with this text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _part(make: Callable[[], Markup]) -> Markup:
    """Return a part of the page; files that other hands have changed cost no more than theirs."""
    try:
        return make()
    except Exception as error:
        text = f"This part cannot be shown: {type(error).__name__}: {str(error)[:500]}"
        return render("failed.html", text=text, limit=1000)


def _debates(run: RunFiles, found: Debates) -> Browser:
    made: list[Browser] = []

    def make() -> Markup:
        made.append(browser(run, found))
        return made[0].shown

    shown = _part(make)
    return made[0] if made else Browser(shown)


def _to_repeat(run: RunFiles) -> Markup:
    return render(
        "repeat.html",
        changes=[(f"from step {step}", key, change) for step, key, change in run.changes],
        recipe=run.recipe,
        limit=MAX_RECIPE_CHARS,
        environment=as_text(run.environment) if run.environment else "",
    )


def _facts(run: RunFiles) -> Markup:
    facts = list(setting_of(run).items())
    table = (run.results or {}).get("table")
    first = table[0] if isinstance(table, list) and table else {}
    after = first.get("after") if isinstance(first, Mapping) else None
    if isinstance(after, Mapping) and (asked := finite(after.get("questions"))) is not None:
        facts.append(("test questions", f"{asked:,.0f}"))
    if run.phases:
        phases = ", ".join(run.phases)
        short = f"{phases[:MAX_PHASE_CHARS]}…" if len(phases) > MAX_PHASE_CHARS else phases
        facts.append(("phases", short))
    times = seconds_of(run.rows)
    if times:
        facts.append(("time", write_duration(times[-1])))
    if run.environment.get("device"):
        facts.append(("device", str(run.environment["device"])[:MAX_PHASE_CHARS]))
    if run.environment.get("started"):
        started = str(run.environment["started"])[:16].replace("T", " ")
        facts.append(("started", f"{started} UTC"))
    return render("facts.html", facts=facts)


def report_main(argv: Sequence[str] | None = None) -> int:
    """Write the report of one run, or one page of several, and print where it lies.

    Returns:
        0 when written, 2 when a folder is not a run directory, 1 when it cannot be written.
    """
    parser = command_parser()

    def run() -> int:
        arguments = parser.parse_args(argv)
        heed_options(arguments)
        runs: list[Path] = arguments.run_dirs
        output: Path = arguments.output or (
            _beside(runs[0]) if len(runs) == 1 else Path("comparison.html")
        )
        try:
            if len(runs) == 1:
                path = write_report(runs[0], output)
            else:
                path = write_comparison(runs, output)
        except (FileNotFoundError, UsageError) as error:
            complain(parser.prog, error)
            return BAD_USAGE
        except OSError as error:
            complain(parser.prog, f"cannot write {output}: {error.strerror}")
            return FAILED
        print(path)
        return DONE

    return run_command(parser.prog, run)


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = argparse.ArgumentParser(
        prog="debate-report",
        description="Write one page of a run, of several runs, of an evaluation, or of "
        "rollouts of TRL, verl, verifiers and prime-rl.",
    )
    parser.add_argument(
        "run_dirs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="folder of a run or evaluation, or a file",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the page (default report.html of one run's folder, comparison.html of several)",
    )
    add_options(parser, "debate_report")
    return parser
