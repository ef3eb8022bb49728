"""What a report reads from a run directory; files that are missing or torn leave a gap."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from debate_protocol.command_line import UsageError
from debate_protocol.parsing import find_contract
from debate_protocol.transcripts.files import read_lines
from debate_protocol.types import Transcript
from debate_report.imports.formats import NoRepliesError
from debate_report.rollout_files import debates_in, rollout_files_of
from debate_rewards.reward import check_turns

Row = Mapping[str, object]
_STEP = re.compile(r"(.*?)-?(?<!\d)(\d+)")
_AGAINST = re.compile(r"eval/against-(.+?)/learned/vote_win_rate(?:/(seat_\d+))?")
_WON = "votes won"
_LARGEST = 1e100
_ALARM = "health/alarm/"
RUN_FILES = ("metrics.jsonl", "recipe.yaml")


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The readable contents of one run directory."""

    name: str
    rows: tuple[dict[str, object], ...]
    recipe: str
    results: dict[str, object] | None
    environment: dict[str, object]
    transcripts: tuple[Path, ...]
    tokens: Path
    """The folder of what recorded tokens earned, which need not be there."""
    evaluations: tuple[Path, ...] = ()
    """The debates of the test split before and after the run."""
    imported: tuple[Transcript, ...] = ()
    """Debates and rollouts of a file, in the place of those of a run."""
    damaged_files: tuple[str, ...] = ()
    """Files of a folder of rollouts that cannot be read, each with the reason."""
    figures: tuple[Sequence[str], ...] = ()
    """The table of an evaluation: its head, then its rows."""
    cross_play: tuple[Sequence[Sequence[str]], ...] = ()
    """Share of votes that each policy of an evaluation wins of each opponent: over all seats, then
    for each; its head, then its rows."""

    @property
    def phases(self) -> list[str]:
        """Phases in the order they first reported."""
        return list(dict.fromkeys(str(row.get("phase", "")) for row in self.rows))

    @property
    def changes(self) -> list[tuple[int, str, str]]:
        """What resumes changed in the recipe: the first step made so, key, `before → now`.

        A resume from the same step or an earlier one undoes those before it.
        """
        kept: list[tuple[int, str, str]] = []
        resumed = self.environment.get("resumed")
        for one in resumed if isinstance(resumed, list) else ():
            step = one.get("from_step") if isinstance(one, Mapping) else None
            if not isinstance(step, int):
                continue
            kept = [change for change in kept if change[0] < step]
            found = one.get("changes")
            for key, change in found.items() if isinstance(found, Mapping) else ():
                if isinstance(change, Mapping):
                    kept.append((step, str(key), shown_change(change)))
        return kept


def read_run(run_dir: Path) -> RunFiles:
    """Read a run that may be unfinished.

    Raises:
        FileNotFoundError: The folder holds neither metrics nor a recipe.
    """
    if not any((run_dir / name).is_file() for name in RUN_FILES):
        raise FileNotFoundError(
            f"{run_dir} is not a run directory: found neither metrics.jsonl nor recipe.yaml; "
            "give the folder that debate-train wrote, or one with rollouts"
        )
    rows = tuple(_rows(_text(run_dir / "metrics.jsonl")))
    phases = list(dict.fromkeys(str(row.get("phase", "")) for row in rows))
    return RunFiles(
        name=run_dir.resolve().name,
        rows=rows,
        recipe=_text(run_dir / "recipe.yaml"),
        results=_object(run_dir / "results.json"),
        environment=_object(run_dir / "environment.json") or {},
        transcripts=tuple(_in_order(run_dir / "transcripts", phases)),
        tokens=run_dir / "tokens",
        evaluations=tuple(
            path
            for name in ("before", "after")
            for path in sorted((run_dir / "evaluations").glob(f"{name}-*.jsonl"))
            if not path.name.startswith(f"{name}-direct-")
        ),
    )


def read_source(path: Path) -> RunFiles:
    """Read a run, a finished evaluation, or a file of rollouts or debates.

    Raises:
        FileNotFoundError: It is none of them.
        UsageError: A file of rollouts cannot be read.
    """
    results = path / "results.json" if path.is_dir() else path
    found = _object(results) if results.suffix == ".json" and results.is_file() else None
    if found and isinstance(found.get("policies"), list):
        debates = sorted((results.parent / "transcripts").glob("*/*.jsonl"))
        own = RunFiles(results.resolve().parent.name, (), "", None, {}, tuple(debates), path)
        figures, played = tuple(_evaluation_rows(found)), tuple(_cross_play(found))
        return replace(own, figures=figures, cross_play=played)
    if path.is_file():
        page = RunFiles(path.name, (), "", None, {}, (), path.parent)
        return replace(page, imported=tuple(debates_in(path, "FILE", answer=None)))
    is_run = any((path / name).is_file() for name in RUN_FILES)
    files = rollout_files_of(path) if path.is_dir() and not is_run else []
    if not files:
        return read_run(path)
    page = RunFiles(path.resolve().name, (), "", None, {}, (), path)
    imported, damaged_files = _debates_of_folder(files)
    return replace(page, imported=tuple(imported), damaged_files=tuple(damaged_files))


def _debates_of_folder(files: Sequence[Path]) -> tuple[list[Transcript], list[str]]:
    """Read a folder of rollouts; files beside them, such as aggregates, hold none.

    Returns:
        The debates, and why files that should hold some could not be read.

    Raises:
        UsageError: No file can be read; the message is that of the first.
    """
    debates: list[Transcript] = []
    problems: list[UsageError] = []
    for file in files:
        try:
            debates += debates_in(file, "FILE", answer=None)
        except UsageError as problem:
            problems.append(problem)
    if not debates:
        raise problems[0]
    damage = [problem for problem in problems if not isinstance(problem, NoRepliesError)]
    return debates, [str(problem) for problem in damage]


def _evaluation_rows(found: Mapping[str, object]) -> Iterator[list[str]]:
    policies = [one for one in _list(found.get("policies")) if isinstance(one, Mapping)]
    shown = _mapping(found.get("rows"))
    yield ["measure", *(str(one.get("name", "")) for one in policies)]
    for name in map(str, _list(found.get("listed")) or shown):
        figures = [_mapping(_mapping(one.get("figures")).get(name)) for one in policies]
        cells = []
        for figure in figures:
            mean, low, high = (finite(figure.get(key)) for key in ("mean", "low", "high"))
            interval = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
            cells.append("–" if mean is None else f"{mean:.3f}{interval}")
        yield [str(shown.get(name) or name), *cells]


def _cross_play(found: Mapping[str, object]) -> Iterator[list[list[str]]]:
    policies = [one for one in _list(found.get("policies")) if isinstance(one, Mapping)]
    won: dict[str, dict[tuple[str, str], str]] = {}
    for policy in policies:
        for name, figure in _mapping(policy.get("figures")).items():
            mean = finite(_mapping(figure).get("mean"))
            if mean is not None and (match := _AGAINST.fullmatch(name)):
                seat = (match[2] or _WON).replace("_", " ")
                won.setdefault(seat, {})[str(policy.get("name")), match[1]] = f"{100 * mean:.0f} %"
    for seat, cells in sorted(won.items(), key=lambda one: (one[0] != _WON, one[0])):
        opponents = list(dict.fromkeys(opponent for _, opponent in cells))
        names = dict.fromkeys(name for name, _ in cells)
        rows = [[name, *(cells.get((name, one), "–") for one in opponents)] for name in names]
        yield [[f"{seat}, against", *opponents], *rows]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class ReadFile:
    """The debates of a transcript file, and what is wrong with the first line that has none."""

    debates: tuple[Transcript, ...] = ()
    unreadable: int = 0
    problem: str = ""


def read_debates(path: Path) -> ReadFile:
    """Return the debates of a file; a line that cannot be read hides itself alone.

    A last line that an interrupt cut off is only one debate less. Debates under a contract that
    is named but not built in, and those whose turns cannot be, count as unreadable.
    """
    debates: list[Transcript] = []
    problems: list[str] = []
    try:
        with path.open("rb") as file:
            for number, read, torn in read_lines(file, path.name):
                problem = str(read) if isinstance(read, ValueError) else _problem(read)
                if isinstance(read, Transcript) and not problem:
                    debates.append(read)
                elif not torn:
                    found = problem if isinstance(read, ValueError) else f"line {number}: {problem}"
                    problems.append(found)
    except OSError as error:
        problems.append(f"{path.name}: {error.strerror}")
    return ReadFile(tuple(debates), len(problems), next(iter(problems), ""))


def finite(value: object) -> float | None:
    """Return a number that can be drawn: not NaN, infinite or beyond measure; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Of larger numbers the sums and differences overflow.
    return float(value) if -_LARGEST <= value <= _LARGEST else None


def _problem(debate: Transcript) -> str:
    if not find_contract(debate.protocol.contract):
        return f"contract {str(debate.protocol.contract)!r} is not known here"
    try:
        check_turns(debate)
    except ValueError as problem:
        return str(problem)
    return ""


def shown_change(change: Mapping[str, object]) -> str:
    """Return a change as `before → now`."""
    return " → ".join(
        json.dumps(change[when], ensure_ascii=False) if when in change else "absent"
        for when in ("before", "now")
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _rows(text: str) -> list[dict[str, object]]:
    rows = (_value(line) for line in text.split("\n"))
    return [row for row in rows if isinstance(row, dict)]


def _object(path: Path) -> dict[str, object] | None:
    value = _value(_text(path))
    return value if isinstance(value, dict) else None


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # Also of numbers with more digits than Python reads.
        return None


def _in_order(folder: Path, phases: Sequence[str]) -> list[Path]:
    """Sort transcript files by phase as it ran, then by the number that ends their name."""

    def place(path: Path) -> tuple[int, str, int]:
        match = _STEP.fullmatch(path.stem)
        phase, step = (match[1], int(match[2])) if match else (path.stem, 0)
        return phases.index(phase) if phase in phases else len(phases), phase, step

    return sorted(folder.glob("*.jsonl"), key=place)


MAX_STEP = 1e12


@dataclass(frozen=True, slots=True)
class Stage:
    """A phase that reported.

    Attributes:
        name: As the recipe calls it.
        rows: Its rows of metrics.
        wanted: Measures of its exit criterion, each with the least that is wanted.
        met: The step of the look that reached them; None where none did.
        ended: Whether the phase is over.
        kept: Whether `keep_if` kept its weights; None where it did not ask.
        muted: Streams of weight 0.
    """

    name: str
    rows: tuple[Row, ...]
    wanted: Mapping[str, float]
    met: float | None
    ended: bool
    kept: bool | None
    muted: frozenset[str]

    @property
    def steps(self) -> tuple[float, float]:
        """The first and the last step."""
        found = [step_of(row) for row in self.rows]
        return min(found), max(found)

    @property
    def outcome(self) -> str:
        """`good` where all that was asked of it came true, `bad` where not, else nothing."""
        missed = bool(self.wanted) and self.met is None and self.ended
        if missed or self.kept is False:
            return "bad"
        return "good" if self.met is not None or self.kept else ""

    @property
    def criterion(self) -> str:
        """What became of its exit criterion, in words."""
        if not self.wanted:
            return ""
        asked = ", ".join(f"{name} ≥ {least:g}" for name, least in self.wanted.items())
        if self.met is not None:
            return f"✓ met at step {self.met:,.0f}: {asked}"
        return f"✗ missed: {asked}" if self.ended else f"not yet met: {asked}"

    @property
    def keeping(self) -> str:
        """Whether its weights were kept, in words."""
        return {True: "✓ kept", False: "✗ taken back", None: ""}[self.kept]

    @property
    def alarms(self) -> list[tuple[float, str]]:
        """Alarms of the health watch: step and detector."""
        return [
            (step_of(row), key.removeprefix(_ALARM)[:80])
            for row in self.rows
            for key in row
            if key.startswith(_ALARM)
        ]


def step_of(row: Row) -> float:
    """Return the step of a row, 0 where that is not known."""
    step = finite(row.get("step"))
    return step if step is not None and 0 <= step <= MAX_STEP else 0.0


def stages(run: RunFiles) -> list[Stage]:
    """Return the phases of a run in the order they first reported."""
    rows: dict[str, list[Row]] = {}
    for row in run.rows:
        rows.setdefault(str(row.get("phase", "")), []).append(row)
    recipe = recipe_of(run)
    results = run.results or {}
    outcomes, kept = (_mapping(results.get(key)) for key in ("exit_criteria", "kept"))
    found: list[Stage] = []
    for place, (name, own) in enumerate(rows.items()):
        phase = _mapping(_mapping(recipe.get("phases")).get(name))
        wanted = _wanted(phase["exit_criterion"] if "exit_criterion" in phase
                         else recipe.get("exit_criterion"))  # fmt: skip
        said = outcomes.get(name)
        met = None if said is False or not wanted else _met(wanted, own)
        is_kept = kept.get(name)
        found.append(
            Stage(
                name=name,
                rows=tuple(own),
                wanted=wanted,
                met=met,
                ended=isinstance(said, bool) or place + 1 < len(rows),
                kept=is_kept if isinstance(is_kept, bool) else None,
                muted=frozenset(_muted(recipe, phase)),
            )
        )
    return found


def recipe_of(run: RunFiles) -> Mapping[str, object]:
    """Return the recipe of a run, empty where it cannot be read."""
    try:
        return _mapping(yaml.safe_load(run.recipe))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}


def _wanted(criterion: object) -> dict[str, float]:
    found = _mapping(criterion)
    asked = {str(found.get("metric")): found.get("at_least")}
    asked |= {str(name): least for name, least in _mapping(found.get("also_at_least")).items()}
    return {name[:80]: least for name, value in asked.items()
            if (least := finite(value)) is not None}  # fmt: skip


def _met(wanted: Mapping[str, float], rows: Sequence[Row]) -> float | None:
    """Return the step of the last look, where that reached all that is wanted."""
    looks = [row for row in rows if set(wanted) <= set(row)]
    if not looks:
        return None
    values = ((finite(looks[-1][name]), least) for name, least in wanted.items())
    return step_of(looks[-1]) if all((v or 0.0) >= least for v, least in values) else None


def _muted(recipe: Mapping[str, object], phase: Mapping[str, object]) -> Iterator[str]:
    """Yield the streams whose weight is 0; a phase's own settings come before the recipe's."""
    weights: dict[str, object] = {}
    for settings in (recipe, phase):
        streams = _mapping(_mapping(settings.get("advantage")).get("streams"))
        for name, stream in streams.items():
            if "weight" in _mapping(stream):
                weights[str(name)] = _mapping(stream)["weight"]
    yield from (name for name, weight in weights.items() if weight == 0)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
