"""One HTML file that needs nothing else, and runs no script but its own."""

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from debate_protocol.command_line import UsageError
from debate_report.before_after import as_text, other_results, results
from debate_report.browsing import Browser, browser, read_all
from debate_report.charts import Plot, line_chart
from debate_report.comparison import comparison, setting_of, shared_setting
from debate_report.curves import curve_plots, curves, picture, seconds_of
from debate_report.debates import Debates
from debate_report.figure_files import as_csv, as_images, overlaid
from debate_report.json_values import as_list, as_mapping, finite
from debate_report.nothing_learned import warning_of
from debate_report.number_texts import write_duration
from debate_report.overturned import overturned
from debate_report.page_replies import PageReplies, page_replies_of
from debate_report.page_templates import Live, render
from debate_report.playing.section import play_section
from debate_report.reply_advantages import advantages, weight_plots
from debate_report.reply_figures import plots_of
from debate_report.reply_sections import facts, facts_table, groups, overview, rewards
from debate_report.rollout_files import folder_of, is_pattern
from debate_report.run_files import RunFiles, read_run, read_source
from debate_report.society import society
from debate_report.stages import recipe_of
from debate_report.what_if_sections import (
    ReplayChoices,
    lazy_policies,
    replay,
    replay_facts,
    rewards_table,
    sign_changes,
)

MAX_RECIPE_CHARS = 100_000
MAX_FACT_CHARS = 300
COMMIT_CHARS = 8
REPORT_NAME = "report.html"

Section = tuple[str, str, Markup]
"""A section of the page: its anchor, heading and contents."""


def write_report(
    run_dir: Path,
    path: Path | None = None,
    *,
    tokenizer: Path | None = None,
    live: Live | None = None,
) -> Path:
    """Write the report of a run, an evaluation or rollouts, and return its path.

    Args:
        run_dir: The folder, or a file.
        path: The file to write; None is `report.html` in the folder, or `FILE.html` next to a file.
        tokenizer: The tokenizer of rollouts that are token ids alone: its file, or its folder.
        live: For the page of a run that goes on, which says so and reloads itself.

    Raises:
        FileNotFoundError: The folder is neither a run, nor an evaluation, nor has rollouts.
        UsageError: A file of rollouts cannot be read.
    """
    page = make_page(read_source(run_dir, tokenizer), live)
    return _write_page(path or default_output(run_dir), page)


def write_what_if(
    source: Path, path: Path | None = None, *, choices: ReplayChoices, tokenizer: Path | None = None
) -> Path:
    """Write what each reward says of recorded debates or replies, and return the page's path.

    Args:
        source: A run, or a file or folder of debates or of other programs' rollouts.
        path: The page; `None` is `what-if.html` in the folder, or `FILE.what-if.html`.
        choices: The rewards, and which debates.
        tokenizer: The tokenizer of rollouts that are token ids alone.

    Raises:
        FileNotFoundError: The folder is neither a run, nor an evaluation, nor has rollouts.
        UsageError: A file cannot be read, or nothing in it can be compared.
    """
    run = read_source(source, tokenizer)
    page = make_what_if(run, choices)
    if path is None:
        report = default_output(source)
        is_of_folder = report.name == REPORT_NAME
        path = report.with_name("what-if.html" if is_of_folder else f"{report.stem}.what-if.html")
    return _write_page(path, page)


def write_comparison(
    run_dirs: Sequence[Path], path: Path, *, tokenizer: Path | None = None
) -> Path:
    """Write one page of several runs, and return its path.

    Raises:
        FileNotFoundError: One of the folders is not a run directory.
    """
    return _write_page(path, make_comparison(_read_named(run_dirs, tokenizer)))


def write_charts(
    sources: Sequence[Path], *, csv: Path | None, svg: Path | None, tokenizer: Path | None = None
) -> list[Path]:
    """Write every chart of runs or rollouts as data and as figures, and return the paths.

    Charts of several sources are laid over each other.

    Args:
        sources: Folders or files.
        csv: The file for the points of all charts.
        svg: The folder for an image of each chart.
        tokenizer: The tokenizer of rollouts that are token ids alone.

    Raises:
        FileNotFoundError: One of the sources is neither a run, nor has rollouts.
        UsageError: A file of rollouts cannot be read, or there is no chart.
    """
    plots = _overlaid_plots(_read_named(sources, tokenizer))
    if not plots:
        names = ", ".join(map(str, sources))
        raise UsageError(f"{names}: found no chart; expected two steps, or groups of rollouts")
    paths = []
    if csv is not None:
        paths.append(_write_page(csv, as_csv(plots)))
    if svg is not None:
        svg.mkdir(parents=True, exist_ok=True)
        paths += [_write_page(svg / name, text) for name, text in as_images(plots).items()]
    return paths


def _read_named(sources: Sequence[Path], tokenizer: Path | None) -> list[RunFiles]:
    """Read runs or rollouts, and distinguish those of one name by their folders."""
    runs = [read_source(source, tokenizer) for source in sources]
    name_counts = Counter(run.name for run in runs)
    named_runs = []
    for run, source in zip(runs, sources, strict=True):
        name = run.name
        if name_counts[name] > 1:
            name = f"{source.resolve().parent.name}/{name}"
        named_runs.append(replace(run, name=name))
    return named_runs


def _overlaid_plots(runs: Sequence[RunFiles]) -> list[Plot]:
    plots_by_name = {run.name: _plots_of(run) for run in runs}
    return plots_by_name[runs[0].name] if len(runs) == 1 else overlaid(plots_by_name)


def _plots_of(run: RunFiles) -> list[Plot]:
    """List the charts of a run, or of the replies of a file."""
    if not run.imported:
        return list(curve_plots(run))
    page = page_replies_of(read_all(run).found)
    return [*plots_of(page), *weight_plots(page)]


def default_output(source: Path) -> Path:
    """Name the page of a folder or file."""
    if is_pattern(source):
        source = folder_of(source)
    if source.is_dir():
        return source / REPORT_NAME
    return source.with_name(f"{source.name}.html")


def _write_page(path: Path, page: str) -> Path:
    """Write a page as a whole or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)  # It might be a link that somebody put there.
    try:
        with unfinished.open("x", encoding="utf-8") as file:
            file.write(page)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def make_page(run: RunFiles, live: Live | None = None) -> str:
    """Render a report; without `live` the same files give the same text."""
    debates = read_all(run)
    debate_browser = _make_browser(run, debates)
    page_replies = page_replies_of(debates.found)
    if page_replies.replies:
        return _reply_page(run, page_replies, debate_browser)
    debates_section = ("debates", "Debates", debate_browser.shown)
    is_run = bool(run.rows or run.recipe)
    if not is_run:
        sections: list[Section] = []
        if run.figures:
            tables = (run.figures, *run.cross_play)
            figures = _part(lambda: render("figures.html", tables=tables))
            sections.append(("results", "Results", figures))
        sections.append(debates_section)
        return _render_page(run.name, Markup(), sections, debate_browser)
    sections = [
        ("results", "Before and after", _part(lambda: _warning_and_results(run))),
        ("overturned", "One debate", _part(lambda: overturned(debates.found))),
        ("play", "Debate with the agents", _part(lambda: play_section(run, debates.found))),
        ("curves", "Learning curves", _part(lambda: curves(run))),
        ("society", "Who convinces whom", _part(lambda: society(debates.found))),
        debates_section,
        ("repeat", "To repeat it", _part(lambda: _to_repeat(run))),
    ]
    # A run without votes has no debate in which they matter; few models fit into a page.
    sections = [section for section in sections if section[2]]
    facts = _part(lambda: _facts(run))
    return _render_page(run.name, facts, sections, debate_browser, live=live)


def _reply_page(run: RunFiles, page: PageReplies, reply_browser: Browser) -> str:
    """Render the page of replies that another program wrote."""
    sections = [
        ("faults", "At a glance", _part(lambda: overview(page))),
        ("rewards", "Rewards", _part(lambda: rewards(page))),
        ("groups", "Groups of one question", _part(lambda: groups(page))),
        ("advantages", "Advantages by method", _part(lambda: advantages(page))),
        ("debates", "Replies", reply_browser.shown),
    ]
    return _render_page(run.name, _part(lambda: facts(page)), sections, reply_browser, "Rollouts")


def make_what_if(run: RunFiles, choices: ReplayChoices) -> str:
    """Render the page of rewards on the debates or replies of a run or file.

    Raises:
        UsageError: Nothing can be compared, or a reward does not fit these debates.
    """
    try:
        replays = replay(read_all(run), choices)
    except ValueError as error:
        raise UsageError(f"{run.name}: {error}") from error
    if not replays.transcripts:
        raise UsageError(
            f"{run.name}: found nothing to compare; expected recorded debates, or several replies "
            "to one question"
        )
    sections = [
        ("rewards", "Rewards side by side", _part(lambda: rewards_table(replays))),
        ("lazy", "What lazy policies earn", _part(lambda: lazy_policies(replays))),
        ("signs", "What changes its sign", _part(lambda: sign_changes(replays))),
    ]
    facts = _part(lambda: replay_facts(replays))
    return _render_page(run.name, facts, sections, Browser(), "Rewards on recorded replies")


def _warning_and_results(run: RunFiles) -> Markup:
    """Render the results, below warnings of damaged files and where nothing was learned."""
    damage = f"{'; '.join(run.damaged_files)}." if run.damaged_files else ""
    paragraphs = Markup()
    for warning in filter(None, (damage, warning_of(run.rows))):
        paragraphs += Markup('<p class="verdict warned">{}</p>').format(warning)
    return paragraphs + results(run.results)


def run_html(run_dir: Path) -> str:
    """Render a run for a notebook: its setting, its results, and its main curves.

    Raises:
        FileNotFoundError: The folder is not a run directory.
    """
    run = read_run(run_dir)
    main_results: Mapping[str, object] | None = None
    if run.results is not None:
        main_results = {key: run.results.get(key) for key in ("table", "summary")}
    parts = [_part(lambda: _facts(run)), _part(lambda: results(main_results))]
    drawing = picture(run)
    if drawing:
        data = base64.b64encode(drawing.encode()).decode()
        parts.append(Markup('<img alt="curves" src="data:image/svg+xml;base64,{}"/>').format(data))
    return Markup("\n").join(parts)


def make_comparison(runs: Sequence[RunFiles]) -> str:
    """Render one page of several runs."""
    sections: list[Section] = []
    if any(run.rows or run.recipe for run in runs):
        sections.append(("runs", "Runs side by side", _part(lambda: comparison(runs))))
    imported = {run.name: page_replies_of(read_all(run).found) for run in runs if run.imported}
    if imported:
        sections.append(("replies", "Replies side by side", _part(lambda: facts_table(imported))))
    sections.append(("curves", "Charts over each other", _part(lambda: _overlaid_charts(runs))))
    facts = _part(lambda: render("facts.html", facts=shared_setting(runs)))
    return _render_page(f"Comparison of {len(runs)} runs", facts, sections, Browser())


def _overlaid_charts(runs: Sequence[RunFiles]) -> Markup:
    charts = [line_chart(chart, along) for chart, along in _overlaid_plots(runs)]
    return render("charts.html", charts=charts)


def _render_page(
    name: str,
    facts: Markup,
    sections: Sequence[Section],
    debates: Browser,
    kind: str = "Debate training report",
    live: Live | None = None,
) -> str:
    style = render("style.css")
    script = render("page.js", live=live is not None)
    # A text of a debate that gets out of its place can still run nothing.
    policy = f"style-src '{_policy_hash(style)}'; script-src '{_policy_hash(script)}'"
    return render(
        "page.html",
        name=name,
        kind=kind,
        facts=facts,
        parts=sections,
        style=style,
        script=script,
        policy=Markup(policy),
        debates=debates,
        live=live,
    )


def _policy_hash(text: str) -> str:
    """Compute the name of an element with this text in a content-security policy."""
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode()


def _part(make: Callable[[], Markup]) -> Markup:
    """Make a part of the page; damaged files cost no more than their part."""
    try:
        return make()
    except Exception as error:
        text = f"This part cannot be shown: {type(error).__name__}: {str(error)[:500]}"
        return render("failed.html", text=text, limit=1000)


def _make_browser(run: RunFiles, debates: Debates) -> Browser:
    """Make the list of debates, which consists of several parts of the page."""
    browsers: list[Browser] = []

    def make() -> Markup:
        debate_browser = browser(run, debates)
        browsers.append(debate_browser)
        return debate_browser.shown

    shown = _part(make)
    return browsers[0] if browsers else Browser(shown)


def _to_repeat(run: RunFiles) -> Markup:
    return render(
        "repeat.html",
        changes=[(f"from step {step}", key, change) for step, key, change in run.changes],
        recipe=run.recipe,
        limit=MAX_RECIPE_CHARS,
        environment=as_text(run.environment) if run.environment else "",
        others=other_results(run.results),
    )


def _facts(run: RunFiles) -> Markup:
    facts = list(setting_of(run).items())
    recipe_name = recipe_of(run).get("name")
    if recipe_name:
        facts.insert(0, ("recipe", str(recipe_name)[:MAX_FACT_CHARS]))
    table = as_list((run.results or {}).get("table"))
    first_row = as_mapping(table[0]) if table else {}
    num_questions = finite(as_mapping(first_row.get("after")).get("questions"))
    if num_questions is not None:
        facts.append(("test questions", f"{num_questions:,.0f}"))
    if len(run.phases) > 1:
        phases = ", ".join(run.phases)
        if len(phases) > MAX_FACT_CHARS:
            phases = f"{phases[:MAX_FACT_CHARS]}…"
        facts.append(("phases", phases))
    times = seconds_of(run.rows)
    if times:
        facts.append(("time", write_duration(times[-1])))
    if run.environment.get("device"):
        facts.append(("device", str(run.environment["device"])[:MAX_FACT_CHARS]))
    if run.environment.get("started"):
        started = str(run.environment["started"])[:16].replace("T", " ")
        facts.append(("started", f"{started} UTC"))
    if run.environment.get("git_commit"):
        facts.append(("commit", str(run.environment["git_commit"])[:COMMIT_CHARS]))
    return render("facts.html", facts=facts)
