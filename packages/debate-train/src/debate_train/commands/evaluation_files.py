"""What an evaluation keeps in its folder: replies, what policies were found to do, and results.

An evaluation follows from its replies. One that was stopped plays its debates again from the start,
is answered by the journal where a reply is known, and samples the rest: the calls of a batch engine
are then those of an evaluation that nobody stopped.
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
from debate_train.evaluation.modes import CurvePoint
from debate_train.evaluation.settings import Setup
from debate_train.playing.shared_turns import turn_request_key

RECIPE, ENVIRONMENT = "recipe.yaml", "environment.json"


NAME = r"[\w@+][\w.@+-]{0,59}"


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy that is measured."""

    name: str
    source: str
    """What the caller gave."""
    model: str | None = None
    """The folder or hub id of its weights, None for the recipe's own model."""
    sha256: str = ""
    """Of all files of the model, empty for a hub id."""


class ResumableFolder:
    """A folder that a command fills, one process at a time; use it in `with`.

    Args:
        path: A new or empty folder, or one that has the file `mark`.
        mark: The file that is written first, so that the folder is known as this command's.
        content: Of that file.
        folders: Made in it.

    Raises:
        UsageError: The folder holds anything else, cannot be written, or another process writes.
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

    def keep_environment(self, *, resumed: bool) -> None:
        """Keep versions and device of the first call, and of later ones that say `resumed`."""
        path, now = self.path / ENVIRONMENT, describe_environment()
        if not path.exists():
            write_json(path, now)
        elif resumed:
            first = json.loads(path.read_text(encoding="utf-8"))
            write_json(path, first | {"resumed": [*first.get("resumed", []), now]})

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


_LINE = TypeAdapter(dict[str, Reply])


class ReplyJournal:
    """A file with one line for each call of the engine: its replies by `turn_request_key`.

    A line is there as a whole or not at all, so the replies of one call are kept together.

    Args:
        path: The file, which need not be there.

    Raises:
        UsageError: A line of it is not as it was written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        cut_torn_line(path)
        self.known: dict[str, Reply] = {}
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                found = _LINE.validate_python((as_written(line) or {})["replies"])
            except (ValueError, KeyError):
                raise UsageError(
                    f"{path}:{number}: found other replies than an evaluation has kept; remove the "
                    "file, and its policy is measured again"
                ) from None
            self.known = found | self.known
        self._file = path.open("ab")

    def append(self, replies: Iterable[tuple[str, Reply]]) -> None:
        """Keep the replies of one call; of two with one key the first."""
        line: dict[str, object] = {}
        for key, reply in replies:
            line.setdefault(key, asdict(reply))
        text = json.dumps(with_hash({"replies": line}), separators=(",", ":"))
        with written(self._path):
            self._file.write(text.encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def journaled(engine: Engine, journal: ReplyJournal) -> HeardEngine:
    """Return an engine whose replies are kept before anyone sees them."""
    return HeardEngine(
        engine,
        lambda replies: journal.append(
            (turn_request_key(asked.turn_request), reply) for asked, reply in replies
        ),
    )


SCHEMA = "debate-eval/1"
RESULTS, PLAN = "results.json", "evaluation.json"
_FOLDERS = ("policies", "transcripts", "replies")

Plan = Mapping[str, Any]
"""What an evaluation measures, by which one that is resumed is known to be the same."""
Found = Mapping[str, Any]
"""What one policy was found to do, as its file in `policies/` holds it."""


class EvaluationDirectory(ResumableFolder):
    """The files of one evaluation.

    Args:
        path: A folder that is new or empty; with `resume` that of an evaluation that was stopped.
        plan: What is measured.
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
            _refuse_another(path, plan)
        else:  # It was stopped before anything was written.
            remove_unfinished(path)
        super().__init__(path, PLAN, json.dumps(plan, indent=2).encode() + b"\n", _FOLDERS)
        if resolved_yaml is not None and not (path / RECIPE).exists():
            self.write(RECIPE, resolved_yaml)
        self.keep_environment(resumed=False)

    def measured(self, name: str) -> Found | None:
        """Return what a policy was found to do; None where that is still to be measured."""
        path = self.path / "policies" / f"{name}.json"
        if not path.exists():
            return None
        found = read_found(path, name)
        self._replies(name).unlink(missing_ok=True)  # Left where a stop came in between.
        return found

    def journal(self, name: str) -> ReplyJournal:
        """Return the replies of a policy that is being measured."""
        return ReplyJournal(self._replies(name))

    def keep(self, found: Found, played: Mapping[str, Sequence[Transcript]] | None = None) -> None:
        """Keep what a policy did, and its debates in each mode; its single replies go."""
        name = found["name"]
        folder = self.path / "transcripts" / name
        with written(folder):
            for mode, transcripts in (played or {}).items():
                folder.mkdir(exist_ok=True)
                remove_unfinished(folder)
                write_transcripts(folder / f"{mode}.jsonl", transcripts)
        write_json(self.path / "policies" / f"{name}.json", with_hash(dict(found)))
        self._replies(name).unlink(missing_ok=True)

    def _replies(self, name: str) -> Path:
        return self.path / "replies" / f"{name}.jsonl"


def read_found(path: Path, name: str) -> Found:
    """Return what a policy was found to do.

    Raises:
        UsageError: The file is of another policy, or not as it was written.
    """
    found = read_as_written(path)
    if found is None or found["name"] != name:
        raise UsageError(
            f"{path}: is not as debate-eval has written it for policy {name}; put it back, or "
            "remove it, and its policy is measured again"
        )
    return found


def _refuse_another(path: Path, plan: Plan) -> None:
    """Refuse to go on with what would be measured in another way."""
    try:
        before = json.loads((path / PLAN).read_text(encoding="utf-8"))
        changed = [key for key in plan if before.get(key) != plan[key]]
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"cannot resume {path}: {PLAN} cannot be read: {error}") from error
    if changed:
        raise UsageError(
            f"cannot resume {path}: found another {changed[0]} than the one that it was begun "
            "with; expected the same call with --resume, or another --output"
        )


def found_of(policy: NamedPolicy, measures: Measures, runs: int) -> Found:
    """Return what a policy was found to do."""
    figures = {name: one | {"runs": runs} for name, one in measures_json(measures).items()}
    return {
        "name": policy.name,
        "source": policy.source,
        "sha256_of_weights": policy.sha256,
        "figures": plain(figures),
        "values": plain(measures.values),
        "curves": {name: _points(points) for name, points in measures.curves.items()},
    }


def _points(points: Sequence[CurvePoint]) -> list[dict[str, object]]:
    """Return the points of a curve with the intervals of their means."""
    found: list[dict[str, object]] = []
    for one in points:
        mean, low, high = bootstrap_interval(list(one.values.values()), within=(0.0, 1.0))
        ends = {"mean": mean, "low": low, "high": high, "questions": len(one.values)}
        found.append({"x": one.x, "tokens": one.tokens, **ends})
    return found


def write_results(
    directory: EvaluationDirectory, plan: Plan, setup: Setup, found: Sequence[Found]
) -> None:
    """Write `results.json`, the last file, which says that all is there."""
    policies = [{k: v for k, v in one.items() if k not in ("values", "sha256")} for one in found]
    results = {
        "schema": SCHEMA,
        **plan,
        "measured": setup.described(),
        "rows": _rows(setup),
        "listed": list(setup.listed()),
        "policies": policies,
    }
    write_json(directory.path / RESULTS, with_hash(plain(results)))


def _rows(setup: Setup) -> dict[str, str]:
    """Return the row of each figure; an empty one has none."""
    return {**setup.rows(), **setup.listed()}


def print_table(setup: Setup, title: str, found: Sequence[Found], *, all_: bool = False) -> None:
    """Print the figures that are listed, or all that have a row, a column for each policy."""
    beside = " ± deviation between runs" if setup.runs > 1 else ""
    table = Table(title=f"{title}, mean [95 % interval over questions]{beside}")
    table.add_column("measure")
    for one in found:
        table.add_column(one["name"], justify="right")
    rows = _rows(setup)
    for figure in dict.fromkeys([*setup.listed(), *(rows if all_ else ())]):
        if rows[figure] and any(figure in one["figures"] for one in found):
            table.add_row(rows[figure], *(_measure(one["figures"].get(figure)) for one in found))
    console = Console()
    console.print(table)
    for one in found:
        print_equal_tokens(console, one)
    console.print(f"measured: {setup.described()}", highlight=False, markup=False)


_ORACLES = ("pass@k", "cons@k")
"""Curves that look at the answer."""


def at_equal_tokens(one: Found) -> dict[int, dict[str, Found]]:
    """Return where each way to answer ends within the tokens that each round of a debate has taken.

    A way is taken at its costliest point within these tokens: so many replies, so many rounds.

    Returns:
        Points of the policy's curves by name, by sampled tokens an answer, from few to many.
    """
    curves = {
        name.removeprefix("eval/"): points
        for name, points in one["curves"].items()
        if not name.endswith(_ORACLES) and points and points[0]["tokens"] is not None
    }
    rounds = [p for name, points in curves.items() if name.endswith("majority") for p in points]
    found: dict[int, dict[str, Found]] = {}
    for budget in sorted({round(point["tokens"]) for point in rounds if point["x"]}):
        for name, points in curves.items():
            within = [point for point in points if round(point["tokens"]) <= budget]
            found.setdefault(budget, {}).update({name: within[-1]} if within else {})
    return found


def print_equal_tokens(console: Console, one: Found) -> None:
    """Print where each way to answer ends within the tokens of each round of a debate."""
    found = at_equal_tokens(one)
    if not found:
        return
    table = Table(title=f"{one['name']}: accuracy within so many sampled tokens an answer")
    for column in ("", *(f"{budget:,}" for budget in found)):
        table.add_column(column, justify="right" if column else "left")
    for name in dict.fromkeys(name for points in found.values() for name in points):
        ends = [points.get(name) for points in found.values()]
        table.add_row(name, *(f"{p['mean']:.3f} ({p['x']})" if p else "-" for p in ends))
    table.caption = "in brackets: replies (evaluation.direct_samples), or the round from 0"
    console.print(table)


def _measure(measure: Mapping[str, float] | None) -> str:
    if measure is None:
        return "-"
    text = f"{measure['mean']:.3f} [{measure['low']:.3f}, {measure['high']:.3f}]"
    deviation = measure.get("run_deviation")
    return text if deviation is None else f"{text}\n± {deviation:.3f}"
