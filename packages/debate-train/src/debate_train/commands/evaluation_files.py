"""The folder of an evaluation, and replies kept as they come, so that none is sampled twice.

An evaluation follows from its replies. One that was stopped plays its debates again from the start,
is answered by the journal where a reply is known, and samples the rest: the calls of a batch engine
are then those of an evaluation that nobody stopped.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from debate_protocol.transcripts.files import write_transcripts
from debate_protocol.types import Reply, Transcript
from debate_rollout.engine import Engine
from debate_rollout.routing import HeardEngine
from debate_train.checkpoints.run_directory import (
    as_written,
    describe_environment,
    layout_problem,
    not_writable,
    read_as_written,
    refuse_used,
    with_hash,
    write_json,
    written,
)
from debate_train.checkpoints.whole_files import (
    LOCK,
    DirectoryLock,
    cut_torn_line,
    open_plain,
    remove_unfinished,
    write_whole,
)
from debate_train.evaluation.measuring import ask_key
from debate_train.interrupts import UsageError

_LINE = TypeAdapter(dict[str, Reply])


class ReplyJournal:
    """A file of one line for each call of the engine: the replies of the call, by `ask_key`.

    A line is there as a whole or not at all, so the replies of one call are kept together.

    Args:
        path: The file, which need not be there.

    Raises:
        UsageError: A line of it is not as it was written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        cut_torn_line(path)
        self.known = _read(path)
        self._file = os.fdopen(open_plain(path, os.O_WRONLY | os.O_APPEND), "ab")

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


def _read(path: Path) -> dict[str, Reply]:
    known: dict[str, Reply] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                found = _LINE.validate_python((as_written(line) or {})["replies"])
            except (ValueError, KeyError):
                raise UsageError(
                    f"{path}:{number}: found other replies than an evaluation has kept; expected "
                    "the file as debate-eval has written it: remove it, and its policy is measured "
                    "again"
                ) from None
            for key, reply in found.items():
                known.setdefault(key, reply)
    return known


def journaled(engine: Engine, journal: ReplyJournal) -> HeardEngine:
    """Return an engine whose replies are kept before anyone sees them."""
    return HeardEngine(
        engine,
        lambda replies: journal.append((ask_key(asked.ask), reply) for asked, reply in replies),
    )


SCHEMA = "debate-eval/1"
RESULTS, VALUES, TABLE = "results.json", "values.jsonl", "results.csv"
_PLAN, _RECIPE, _ENVIRONMENT = "evaluation.json", "recipe.yaml", "environment.json"
_FOLDERS = ("policies", "transcripts", "replies", "plots")
_OF_POLICIES = ("policies/*", "replies/*", "plots/*", "transcripts/*/*")
_FILES = (LOCK, _PLAN, _RECIPE, _ENVIRONMENT, RESULTS, VALUES, TABLE, *_OF_POLICIES)

Plan = Mapping[str, Any]
"""What an evaluation measures, by which one that is resumed is known to be the same."""


class EvaluationDirectory:
    """Writes the files of one evaluation; made by `create` or `resume`, held until `close`."""

    def __init__(self, path: Path, lock: DirectoryLock) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, path: Path, plan: Plan, resolved_yaml: str | None) -> "EvaluationDirectory":
        """Start an evaluation in a folder that is new or empty.

        Raises:
            UsageError: The folder holds files, is a file, or cannot be written.
        """
        refuse_used(path)
        return cls._begun(path, plan, resolved_yaml)

    @classmethod
    def resume(cls, path: Path, plan: Plan, resolved_yaml: str) -> "EvaluationDirectory":
        """Go on with an evaluation, wherever it stopped.

        Raises:
            UsageError: There is none in the folder, or it is another.
        """
        if not path.is_dir():
            raise UsageError(
                f"cannot resume {path}: found no such folder; expected that of an earlier call of "
                "debate-eval, or a call without --resume"
            )
        if problem := layout_problem(path, _FILES, _FOLDERS):
            raise UsageError(f"cannot resume {path}: {problem}, as debate-eval writes it")
        if not (path / _PLAN).exists():  # It was stopped before anything was written, if at all.
            remove_unfinished(path)
            refuse_used(path)
            return cls._begun(path, plan, resolved_yaml)
        _refuse_another(path, plan)
        return cls._begun(path, plan, resolved_yaml)

    @classmethod
    def _begun(cls, path: Path, plan: Plan, resolved_yaml: str | None) -> "EvaluationDirectory":
        try:
            path.mkdir(parents=True, exist_ok=True)
            found = cls(path, DirectoryLock(path))
        except OSError as error:
            raise not_writable(path, error) from error
        try:
            remove_unfinished(path)
            if not (path / _PLAN).exists():  # First: by it the folder is known as an evaluation's.
                write_json(path / _PLAN, plan)
            for name in _FOLDERS:
                (path / name).mkdir(exist_ok=True)
                remove_unfinished(path / name)
            if resolved_yaml is not None and not (path / _RECIPE).exists():
                write_whole(path / _RECIPE, resolved_yaml.encode())
            if not (path / _ENVIRONMENT).exists():
                write_json(path / _ENVIRONMENT, describe_environment())
        except OSError as error:
            found.close()
            raise not_writable(path, error) from error
        return found

    def close(self) -> None:
        """Let other processes write here."""
        self._lock.release()

    def __enter__(self) -> "EvaluationDirectory":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def measured(self, name: str) -> dict[str, Any] | None:
        """Return what a policy was found to do; None where that is still to be measured.

        Raises:
            UsageError: What is there is of another policy, or not as it was written.
        """
        path = self.path / "policies" / f"{name}.json"
        if not path.exists():
            return None
        found = read_as_written(path)
        if found is None or found["name"] != name:
            raise UsageError(
                f"{path}: is not as debate-eval has written it for policy {name}; put it back, or "
                "remove it, and its policy is measured again"
            )
        self._replies(name).unlink(missing_ok=True)  # Left where a stop came in between.
        return found

    def journal(self, name: str) -> ReplyJournal:
        """Return the replies of a policy that is being measured."""
        return ReplyJournal(self._replies(name))

    def keep(
        self, name: str, found: Mapping[str, object], played: Mapping[str, Sequence[Transcript]]
    ) -> None:
        """Keep what a policy did, and its debates in each mode; its single replies go."""
        folder = self.path / "transcripts" / name
        with written(folder):
            folder.mkdir(exist_ok=True)
            remove_unfinished(folder)
            for mode, transcripts in played.items():
                write_transcripts(folder / f"{mode}.jsonl", transcripts)
        write_json(self.path / "policies" / f"{name}.json", with_hash(found))
        self._replies(name).unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """Write a file of results as a whole."""
        with written(self.path / name):
            write_whole(self.path / name, text.encode())

    def _replies(self, name: str) -> Path:
        return self.path / "replies" / f"{name}.jsonl"


def _refuse_another(path: Path, plan: Plan) -> None:
    """Refuse to go on with what would be measured in another way."""
    try:
        before = json.loads((path / _PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"cannot resume {path}: its {_PLAN} cannot be read; expected it as debate-eval has "
            "written it: choose another --output"
        ) from error
    for key in plan:
        if not isinstance(before, dict) or before.get(key) != plan[key]:
            raise UsageError(
                f"cannot resume {path}: found another {key.replace('_', ' ')} than the one that it "
                "was begun with; expected the same call with --resume, or another --output"
            )
