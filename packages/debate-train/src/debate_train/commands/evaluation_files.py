"""Files of an evaluation's folder: replies, results of each policy, and results of all.

An evaluation follows from the replies. After a stop it plays all debates again from the start,
takes known replies from the journal, and samples the others: a batch engine gets the same calls as
in an uninterrupted evaluation.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from debate_protocol.transcripts.files import write_transcripts
from debate_protocol.types import Reply, Transcript
from debate_rewards.estimates import bootstrap_interval
from debate_rollout.engine import Engine
from debate_rollout.routing import HeardEngine
from debate_train.checkpoints.run_directory import (
    as_written,
    describe_environment,
    not_writable,
    plain,
    read_as_written,
    refuse_used,
    with_hash,
    write_json,
    written,
)
from debate_train.checkpoints.whole_files import (
    DirectoryLock,
    cut_torn_line,
    remove_unfinished,
    write_whole,
)
from debate_train.errors import UsageError
from debate_train.evaluation.measuring import Measures, measures_json
from debate_train.evaluation.settings import Setup
from debate_train.playing.shared_turns import turn_request_key

RECIPE = "recipe.yaml"
ENVIRONMENT = "environment.json"
RESULTS = "results.json"
PLAN = "evaluation.json"
SCHEMA = "debate-eval/1"
NAME = r"[\w@+][\w.@+-]{0,59}"
"""Pattern of a policy's name, which is also a file's."""
_FOLDERS = ("policies", "transcripts", "replies")
# Parts of a plan that are several.
_ANOTHER = {"policies": "other", "questions": "other", "modes": "other", "runs": "other"}
_JOURNAL_LINE = TypeAdapter(dict[str, Reply])
# Curves that look at the gold answer: no way to answer that a user could choose.
_ORACLES = ("pass@k", "cons@k")

Plan = Mapping[str, Any]
"""Description of an evaluation, by which resuming recognizes the same one."""
PolicyResults = Mapping[str, Any]
"""Results of one policy, as in its file in `policies/`."""


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy to measure."""

    name: str
    source: str
    """The text of the command line."""
    model: str | None = None
    """The folder or hub id of its weights, None for the recipe's own model."""
    sha256: str = ""
    """Of all files of the model, empty for a hub id."""


class ResumableFolder:
    """A folder with the files of a command, for a single process at a time; use it in `with`.

    Args:
        path: A new or empty folder, or a folder with the file `mark`.
        mark: The first file in the folder; it marks the folder as this command's.
        content: Content of `mark`.
        folders: Names of folders to make inside.

    Raises:
        UsageError: The folder has other files, cannot be written, or another process writes.
    """

    def __init__(self, path: Path, mark: str, content: bytes, folders: Sequence[str] = ()) -> None:
        self.path = path
        if not (path / mark).exists():
            refuse_used(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = DirectoryLock(path)
            remove_unfinished(path)
            if not (path / mark).exists():
                write_whole(path / mark, content)
            for name in folders:
                (path / name).mkdir(exist_ok=True)
                remove_unfinished(path / name)
        except OSError as error:
            raise not_writable(path, error) from error

    def record_environment(self, *, resumed: bool, facts: Mapping[str, object] = {}) -> None:
        """Write versions, device and facts of the first call; append calls with `resumed`."""
        path = self.path / ENVIRONMENT
        environment = {**describe_environment(), **facts}
        if not path.exists():
            write_json(path, environment)
        elif resumed:
            first = json.loads(path.read_text(encoding="utf-8"))
            later = [*first.get("resumed", []), environment]
            write_json(path, first | {"resumed": later})

    def write(self, name: str, text: str) -> None:
        """Write a file as a whole."""
        with written(self.path / name):
            write_whole(self.path / name, text.encode())

    def close(self) -> None:
        """Let other processes write here."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class ReplyJournal:
    """A file with a line for each call of the engine: replies by `turn_request_key`.

    A line is complete or absent, so the replies of a call are lost or recovered together.

    Args:
        path: The file, new or of an earlier call.

    Raises:
        UsageError: A line has changed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        cut_torn_line(path)
        self.replies: dict[str, Reply] = {}
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                content = as_written(line) or {}
                line_replies = _JOURNAL_LINE.validate_python(content["replies"])
            except (ValueError, KeyError):
                raise UsageError(
                    f"{path}:{number}: found other replies than an evaluation has kept; remove the "
                    "file, and its policy is measured again"
                ) from None
            # Of two replies to one request the first counts, as it did when they were sampled.
            self.replies = line_replies | self.replies
        self._file = path.open("ab")

    def append(self, replies: Iterable[tuple[str, Reply]]) -> None:
        """Write the replies of a call; of two with the same key the first."""
        values: dict[str, object] = {}
        for key, reply in replies:
            values.setdefault(key, asdict(reply))
        text = json.dumps(with_hash({"replies": values}), separators=(",", ":"))
        with written(self._path):
            self._file.write(text.encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def journaled(engine: Engine, journal: ReplyJournal) -> HeardEngine:
    """Wrap an engine, to write replies before any debate sees them."""
    return HeardEngine(
        engine,
        lambda replies: journal.append(
            (turn_request_key(request.turn_request), reply) for request, reply in replies
        ),
    )


class EvaluationDirectory(ResumableFolder):
    """The files of an evaluation.

    Args:
        path: A new or empty folder; with `resume` the folder of a stopped evaluation.
        plan: Description of the evaluation.
        resolved_yaml: The recipe, if there is one.
        resume: Go on with an evaluation, wherever it stopped.

    Raises:
        UsageError: The folder cannot be used, or holds another evaluation.
    """

    def __init__(
        self, path: Path, plan: Plan, resolved_yaml: str | None = None, *, resume: bool = False
    ) -> None:
        if not resume:
            refuse_used(path)
        elif not path.is_dir():
            raise UsageError(f"cannot resume {path}: found no such folder; leave out --resume")
        elif (path / PLAN).exists():
            _refuse_another_plan(path, plan)
        else:  # It was stopped before anything was written.
            remove_unfinished(path)
        super().__init__(path, PLAN, json.dumps(plan, indent=2).encode() + b"\n", _FOLDERS)
        if resolved_yaml is not None and not (path / RECIPE).exists():
            self.write(RECIPE, resolved_yaml)
        self.record_environment(resumed=False)

    def read_measured(self, name: str) -> PolicyResults | None:
        """Read the results of a policy, if it was measured."""
        path = self.path / "policies" / f"{name}.json"
        if not path.exists():
            return None
        results = read_policy_results(path, name)
        # `save` removes the journal last, so a stop may have left it.
        self._journal_path(name).unlink(missing_ok=True)
        return results

    def journal(self, name: str) -> ReplyJournal:
        """Open the journal of a policy."""
        return ReplyJournal(self._journal_path(name))

    def save(
        self, results: PolicyResults, played: Mapping[str, Sequence[Transcript]] | None = None
    ) -> None:
        """Write the results and debates of a policy, and remove the journal.

        The results follow the debates: with them the policy counts as measured.
        """
        name = results["name"]
        folder = self.path / "transcripts" / name
        with written(folder):
            for mode, transcripts in (played or {}).items():
                folder.mkdir(exist_ok=True)
                remove_unfinished(folder)
                write_transcripts(folder / f"{mode}.jsonl", transcripts)
        write_json(self.path / "policies" / f"{name}.json", with_hash(dict(results)))
        self._journal_path(name).unlink(missing_ok=True)

    def _journal_path(self, name: str) -> Path:
        return self.path / "replies" / f"{name}.jsonl"


def read_policy_results(path: Path, name: str) -> PolicyResults:
    """Read the results of a policy.

    Raises:
        UsageError: The file is of another policy, or not as it was written.
    """
    results = read_as_written(path)
    if results is None or results["name"] != name:
        raise UsageError(
            f"{path}: is not as debate-eval has written it for policy {name}; put it back, or "
            "remove it, and its policy is measured again"
        )
    return results


def _refuse_another_plan(path: Path, plan: Plan) -> None:
    try:
        earlier = json.loads((path / PLAN).read_text(encoding="utf-8"))
        begun, resumed = _decisive_parts(earlier), _decisive_parts(plan)
        changed = [key for key in resumed if begun.get(key) != resumed[key]]
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"cannot resume {path}: {PLAN} cannot be read: {error}") from error
    if changed:
        raise UsageError(
            f"cannot resume {path}: found {_ANOTHER.get(changed[0], 'another')} {changed[0]} than "
            "it was begun with; expected the same call with --resume, or another --output"
        )


def _decisive_parts(plan: Plan) -> Plan:
    """Leave out where policies are: a folder may have been moved since, and its hash knows it."""
    parts = dict(plan)
    for key in ("policies", "against"):
        policies = []
        for policy in plan.get(key, []):
            has_hash = bool(policy.get("sha256"))
            policies.append({k: v for k, v in policy.items() if k != "source" or not has_hash})
        parts[key] = policies
    return parts


def policy_results(policy: NamedPolicy, measures: Measures, num_runs: int) -> PolicyResults:
    """Collect figures, values and curves of a policy for the policy's file."""
    figures = {}
    for name, measure in measures_json(measures).items():
        figures[name] = measure | {"runs": num_runs}
    curves: dict[str, list[dict[str, object]]] = {}
    for name, points in measures.curves.items():
        curves[name] = []
        for point in points:
            values = list(point.values.values())
            mean, low, high = bootstrap_interval(values, within=(0.0, 1.0))
            curves[name].append(
                {
                    "x": point.x,
                    "tokens": point.tokens,
                    "mean": mean,
                    "low": low,
                    "high": high,
                    "questions": len(values),
                }
            )
    return {
        "name": policy.name,
        "source": policy.source,
        "sha256_of_weights": policy.sha256,
        "figures": plain(figures),
        "values": plain(measures.values),
        "curves": curves,
    }


def write_results(
    directory: EvaluationDirectory, plan: Plan, setup: Setup, results: Sequence[PolicyResults]
) -> None:
    """Write `results.json`, the last file: with it the evaluation is finished."""
    policies = []
    for policy in results:
        # Values of each question stay in the policy's own file.
        policies.append(
            {key: value for key, value in policy.items() if key not in ("values", "sha256")}
        )
    content = {
        "schema": SCHEMA,
        **plan,
        "measured": setup.described(),
        "rows": {**setup.rows(), **setup.listed()},
        "listed": list(setup.listed()),
        "policies": policies,
    }
    write_json(directory.path / RESULTS, with_hash(plain(content)))


def print_table(
    setup: Setup, title: str, results: Sequence[PolicyResults], *, all_: bool = False
) -> None:
    """Print the listed figures, or all figures with a row, with a column for each policy."""
    deviation = " ± deviation between runs" if setup.runs > 1 else ""
    table = Table(title=f"{title}, mean [95 % interval over questions]{deviation}")
    table.add_column("measure")
    for policy in results:
        table.add_column(policy["name"], justify="right")
    listed = setup.listed()
    rows = {**setup.rows(), **listed}
    for figure in dict.fromkeys([*listed, *rows] if all_ else listed):
        # A figure with an empty row is written, but never printed.
        if not rows[figure]:
            continue
        if any(figure in policy["figures"] for policy in results):
            cells = [_format_measure(policy["figures"].get(figure)) for policy in results]
            table.add_row(rows[figure], *cells)
    console = Console()
    console.print(table)
    for policy in results:
        print_equal_tokens(console, policy)
    console.print(f"measured: {setup.described()}", highlight=False, markup=False)


def curves_at_equal_tokens(results: PolicyResults) -> dict[int, dict[str, PolicyResults]]:
    """Select the point of each curve within the tokens of each round of a debate.

    A curve is a way to answer: more replies, or more rounds. The costliest point within a budget
    counts.

    Returns:
        Points by name of the curve, by sampled tokens an answer, in ascending order.
    """
    curves = {}
    for name, points in results["curves"].items():
        if not name.endswith(_ORACLES) and points and points[0]["tokens"] is not None:
            curves[name.removeprefix("eval/")] = points
    budgets: set[int] = set()
    for name, points in curves.items():
        if name.endswith("majority"):
            # Round 0 has no debate yet: single replies are compared from round 1 on.
            budgets.update(round(point["tokens"]) for point in points if point["x"])
    by_budget: dict[int, dict[str, PolicyResults]] = {}
    for budget in sorted(budgets):
        by_budget[budget] = {}
        for name, points in curves.items():
            affordable = [point for point in points if round(point["tokens"]) <= budget]
            if affordable:
                by_budget[budget][name] = affordable[-1]
    return by_budget


def print_equal_tokens(console: Console, results: PolicyResults) -> None:
    """Print the accuracy of each way to answer within the tokens of each round of a debate."""
    by_budget = curves_at_equal_tokens(results)
    if not by_budget:
        return
    table = Table(title=f"{results['name']}: accuracy by sampled tokens an answer")
    table.add_column("", justify="left")
    for budget in by_budget:
        table.add_column(f"{budget:,}", justify="right")
    names: dict[str, None] = {}
    for points in by_budget.values():
        names |= dict.fromkeys(points)
    for name in names:
        cells = []
        for points in by_budget.values():
            point = points.get(name)
            cells.append(f"{point['mean']:.3f} ({point['x']})" if point else "-")
        table.add_row(name, *cells)
    table.caption = "in brackets: replies (evaluation.direct_samples), or the round from 0"
    console.print(table)


def _format_measure(measure: Mapping[str, float] | None) -> str:
    if measure is None:
        return "-"
    text = f"{measure['mean']:.3f} [{measure['low']:.3f}, {measure['high']:.3f}]"
    deviation = measure.get("run_deviation")
    return text if deviation is None else f"{text}\n± {deviation:.3f}"
