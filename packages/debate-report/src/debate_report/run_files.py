"""A report's data from a run directory; missing or torn files leave a gap."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from debate_protocol.command_line import UsageError
from debate_protocol.parsing import find_contract
from debate_protocol.transcripts.files import read_lines
from debate_protocol.types import Transcript
from debate_report.evaluation_tables import cross_play_tables, figure_table
from debate_report.imports.rollout import NoRepliesError
from debate_report.json_values import as_list, as_mapping, parse_json, read_object, read_text
from debate_report.rollout_files import RUN_FILES, debates_in, is_pattern, rollout_files_of
from debate_rewards.reward import check_turns

# PHASE-STEP, STEP alone, or a phase that ends with its step.
TRANSCRIPT_NAME = re.compile(r"(.*?)-?(?<!\d)(\d+)")

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The readable contents of a run directory."""

    name: str
    tokens: Path
    """The folder of the credit of recorded tokens; it may be missing."""
    rows: tuple[dict[str, object], ...] = ()
    recipe: str = ""
    results: dict[str, object] | None = None
    environment: dict[str, object] = field(default_factory=dict)
    folder: Path | None = None
    """The run directory; `None` of an evaluation, or of files."""
    transcripts: tuple[Path, ...] = ()
    evaluations: tuple[Path, ...] = ()
    """The debates of the test split before and after the run."""
    imported: tuple[Transcript, ...] = ()
    """Debates and rollouts of a file, instead of a run's."""
    damaged_files: tuple[str, ...] = ()
    """Unreadable files of a run or of a folder of rollouts, each with the reason."""
    figures: tuple[Sequence[str], ...] = ()
    """The table of an evaluation: the head, then the rows."""
    cross_play: tuple[Sequence[Sequence[str]], ...] = ()
    """Share of votes that each policy of an evaluation wins of each opponent: over all seats, then
    for each; its head, then its rows."""

    @property
    def phases(self) -> list[str]:
        """Phases in the order they first reported."""
        return _phases_of(self.rows)

    @property
    def changes(self) -> list[tuple[int, str, str]]:
        """Changes of the recipe by resumes: the first step made so, key, `before → now`.

        A resume from the same step or an earlier one undoes those before it.
        """
        changes: list[tuple[int, str, str]] = []
        for resume in as_list(self.environment.get("resumed")):
            from_step = as_mapping(resume).get("from_step")
            if not isinstance(from_step, int):
                continue
            changes = [change for change in changes if change[0] < from_step]
            for key, change in as_mapping(as_mapping(resume).get("changes")).items():
                if isinstance(change, Mapping):
                    changes.append((from_step, str(key), shown_change(change)))
        return changes


@dataclass(frozen=True, slots=True)
class ReadFile:
    """The debates of a transcript file, and the problem of the first line without a debate."""

    debates: tuple[Transcript, ...] = ()
    num_unreadable: int = 0
    problem: str = ""


def read_run(run_dir: Path) -> RunFiles:
    """Read a run, perhaps unfinished.

    Raises:
        FileNotFoundError: The folder has neither metrics nor a recipe.
    """
    if not any((run_dir / name).is_file() for name in RUN_FILES):
        raise FileNotFoundError(
            f"{run_dir} is not a run directory: found neither metrics.jsonl nor recipe.yaml; "
            "give the folder that debate-train wrote, or one with rollouts"
        )
    rows, damaged_files = _read_rows(run_dir / "metrics.jsonl")
    objects: dict[str, dict[str, object] | None] = {}
    for name in ("results.json", "environment.json"):
        objects[name] = read_object(run_dir / name)
        if objects[name] is None and (run_dir / name).is_file():
            damaged_files.append(f"{name} could not be read")
    evaluations: list[Path] = []
    for when in ("before", "after"):
        files = sorted((run_dir / "evaluations").glob(f"{when}-*.jsonl"))
        # Direct replies are no debates.
        evaluations += [file for file in files if not file.name.startswith(f"{when}-direct-")]
    return RunFiles(
        name=run_dir.resolve().name,
        rows=tuple(rows),
        recipe=read_text(run_dir / "recipe.yaml"),
        results=objects["results.json"],
        environment=objects["environment.json"] or {},
        transcripts=tuple(_sort_transcripts(run_dir / "transcripts", _phases_of(rows))),
        tokens=run_dir / "tokens",
        folder=run_dir,
        evaluations=tuple(evaluations),
        damaged_files=tuple(damaged_files),
    )


def _read_rows(path: Path) -> tuple[list[dict[str, object]], list[str]]:
    """Read the rows of metrics, and say how many lines are none.

    Only what stands behind the last line end was cut off by an interrupt.
    """
    *lines, last_line = read_text(path).split("\n")
    values = [parse_json(line) for line in lines if line.strip()]
    rows = [value for value in values if isinstance(value, dict)]
    num_damaged = len(values) - len(rows)
    last_value = parse_json(last_line)
    if isinstance(last_value, dict):
        rows.append(last_value)
    if not num_damaged:
        return rows, []
    return rows, [f"{num_damaged:,} of {len(values):,} lines of {path.name} could not be read"]


def _phases_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(row.get("phase", "")) for row in rows))


def _sort_transcripts(folder: Path, phases: Sequence[str]) -> list[Path]:
    """Sort transcript files by phase as it ran, then by the number at the end of the name."""

    def sort_key(path: Path) -> tuple[int, str, int]:
        match = TRANSCRIPT_NAME.fullmatch(path.stem)
        phase, step = (match[1], int(match[2])) if match else (path.stem, 0)
        phase_number = phases.index(phase) if phase in phases else len(phases)
        return phase_number, phase, step

    return sorted(folder.glob("*.jsonl"), key=sort_key)


def read_source(path: Path, tokenizer: Path | None = None) -> RunFiles:
    """Read a run, a finished evaluation, or rollouts or debates by file, folder or pattern.

    Args:
        path: The folder or file.
        tokenizer: The tokenizer of rollouts with token ids only.

    Raises:
        FileNotFoundError: The path is no such file or folder.
        UsageError: A file of rollouts cannot be read, or a folder holds several kinds.
    """
    results_file = path / "results.json" if path.is_dir() else path
    if results_file.suffix == ".json" and results_file.is_file():
        results = read_object(results_file)
        # The results of a run have no policies.
        if results and isinstance(results.get("policies"), list):
            transcripts = sorted((results_file.parent / "transcripts").glob("*/*.jsonl"))
            return RunFiles(
                name=results_file.resolve().parent.name,
                tokens=path,
                transcripts=tuple(transcripts),
                figures=tuple(figure_table(results)),
                cross_play=tuple(cross_play_tables(results)),
            )
    if path.is_file():
        imported = debates_in(path, "FILE", answer=None, tokenizer=tokenizer, allow_no_text=True)
        return RunFiles(name=path.name, tokens=path.parent, imported=tuple(imported))
    is_run = any((path / name).is_file() for name in RUN_FILES)
    may_hold_rollouts = is_pattern(path) or (path.is_dir() and not is_run)
    rollout_files = rollout_files_of(path) if may_hold_rollouts else []
    if not rollout_files:
        return read_run(path)
    imported, damaged_files = _debates_of_folder(rollout_files, tokenizer)
    return RunFiles(
        name=str(path) if is_pattern(path) else path.resolve().name,
        tokens=path,
        imported=tuple(imported),
        damaged_files=tuple(damaged_files),
    )


def _debates_of_folder(
    files: Sequence[Path], tokenizer: Path | None
) -> tuple[list[Transcript], list[str]]:
    """Read a folder of rollouts; other files in it, such as aggregates, have no rollouts.

    Returns:
        The debates, and why files that should have some could not be read.

    Raises:
        UsageError: No file can be read; the message is of the first.
    """
    debates: list[Transcript] = []
    problems: list[UsageError] = []
    for file in files:
        try:
            debates += debates_in(
                file, "FILE", answer=None, tokenizer=tokenizer, allow_no_text=True
            )
        except UsageError as problem:
            problems.append(problem)
    if not debates:
        raise problems[0]
    damage = [problem for problem in problems if not isinstance(problem, NoRepliesError)]
    return debates, [str(problem) for problem in damage]


def read_debates(path: Path) -> ReadFile:
    """Read the debates of a file; an unreadable line hides no other line.

    A last line cut off by an interrupt is only a debate less. Debates under a contract that
    is named but not built in, and those with turns that cannot be, count as unreadable.
    """
    debates = []
    problems = []
    try:
        with path.open("rb") as file:
            for number, content, is_torn in read_lines(file, path.name):
                if isinstance(content, ValueError):
                    problem = str(content)  # it names the line
                else:
                    problem = _problem_of(content)
                    problem = f"line {number}: {problem}" if problem else ""
                if isinstance(content, Transcript) and not problem:
                    debates.append(content)
                elif not is_torn:
                    problems.append(problem)
    except OSError as error:
        problems.append(f"{path.name}: {error.strerror}")
    first_problem = problems[0] if problems else ""
    return ReadFile(tuple(debates), len(problems), first_problem)


def _problem_of(debate: Transcript) -> str:
    if not find_contract(debate.protocol.contract):
        return f"contract {str(debate.protocol.contract)!r} is not known here"
    try:
        check_turns(debate)
    except ValueError as problem:
        return str(problem)
    return ""


def shown_change(change: Mapping[str, object]) -> str:
    """Write a change as `before → now`."""
    values = []
    for when in ("before", "now"):
        is_set = when in change
        values.append(json.dumps(change[when], ensure_ascii=False) if is_set else "absent")
    return " → ".join(values)
