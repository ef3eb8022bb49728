"""Rollouts of other programs, and debates of any file, as transcripts."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from debate_protocol.command_line import UsageError, transcripts_in
from debate_protocol.parsing import get_contract
from debate_protocol.plugins import did_you_mean
from debate_protocol.types import Transcript
from debate_report.imports.formats import parse, reader_of, rows_in
from debate_report.imports.rollout import ReadSettings
from debate_report.imports.values import Record
from debate_rewards.answers.reply import KINDS

__all__ = ["import_rollouts"]

WHOLE_FILE = "transcripts.jsonl"
SAMPLE_FILES = "transcripts/*.jsonl"
IMPORTED_SUFFIXES = (".jsonl", ".eval", ".parquet", ".json")
RUN_FILES = ("metrics.jsonl", "recipe.yaml")
"""Files that mark the folder of a run."""
MAX_DEPTH = 4
"""Folders above a file of rollouts, as in prime-rl's `rollouts/step_7/train/all/traces.jsonl`."""
MAX_KINDS = 6
# What transcripts of this project have in each row.
TRANSCRIPT_KEYS = frozenset({"question", "turns"})


def debates_in(
    path: Path,
    key: str,
    *,
    contract: str = "boxed",
    kind: str | None = None,
    answer: str | None,
    tokenizer: Path | None = None,
    allow_no_text: bool = False,
) -> list[Transcript]:
    """Read the debates of a file, in order; other programs' rows are imported.

    Args:
        path: The file.
        key: Names it in messages.
        contract: How replies of rollouts mark their answers.
        kind: How answers of rollouts are compared.
        answer: The column of rollouts with the right answer.
        tokenizer: The tokenizer of rollouts that are ids alone.
        allow_no_text: Whether rollouts may have no text.

    Raises:
        UsageError: There is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise UsageError(f"{key}: found no file {str(path)!r}; expected one of debates")
    if is_transcript_file(path):
        return list(transcripts_in("debate-report", str(path)))
    return import_rollouts(
        path,
        contract=contract,
        kind=kind,
        answer=answer,
        tokenizer=tokenizer,
        allow_no_text=allow_no_text,
    )


def files_of(path: Path, key: str) -> list[Path]:
    """List the files of debates under a path: the file itself, or the files of a folder.

    Raises:
        UsageError: There is no such file.
    """
    if not path.is_dir():
        if path.is_file():
            return [path]
        raise UsageError(
            f"{key}: found nothing at {str(path)!r}; expected a file of transcripts or rollouts, a "
            "run directory, or a folder of debate-rollout"
        )
    all_debates = path / WHOLE_FILE
    files = [all_debates] if all_debates.is_file() else sorted(path.glob(SAMPLE_FILES))
    if not files:
        raise UsageError(
            f"{key}: found neither {WHOLE_FILE} nor {SAMPLE_FILES} in {str(path)!r}; expected a "
            "run directory that keeps debates (recording.debates), or a folder of debate-rollout"
        )
    return files


def rollout_files_of(source: Path) -> list[Path]:
    """List the files of other programs' rollouts in a folder, or else in folders below it.

    Folders below may differ by numbers alone, as those of steps do: others hold the same replies
    twice (prime-rl's `all` and `effective`), or of several models or splits.

    Args:
        source: A folder; or a pattern of folders or files, such as `rollouts/step_*/train/all`.

    Returns:
        The files, step 10 after step 2; none where the folder holds no rollouts, or runs.

    Raises:
        UsageError: Folders below differ otherwise.
    """
    if not is_pattern(source):
        files = _files_below(source)
        _refuse_several_kinds(source, files)
        return files
    top = folder_of(source)
    matches = sorted(top.glob(str(source.relative_to(top))), key=_natural_order)
    nested = [[match] if match.is_file() else _files_below(match) for match in matches]
    return [file for files in nested for file in files]


def is_pattern(source: Path) -> bool:
    """Whether a path has a `*` and is no file or folder of this name."""
    return "*" in str(source) and not source.exists()


def folder_of(pattern: Path) -> Path:
    """The folder above the first part with a `*`."""
    return next(parent for parent in pattern.parents if "*" not in str(parent))


def _files_below(folder: Path) -> list[Path]:
    """List a folder's own files of rollouts; without any, the files of the folders below it."""
    files = []
    for current, files_here in _walk(folder):
        if not files_here:
            continue
        files += files_here
        if current == folder:
            break
    return sorted(files, key=_natural_order)


def _walk(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yield folders from the top, each with the files of rollouts; runs are left out."""
    for current, folders, names in os.walk(folder):
        depth = len(Path(current).relative_to(folder).parts)
        if depth == MAX_DEPTH or any(name in names for name in RUN_FILES):
            folders.clear()
        if any(name in names for name in RUN_FILES):
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = [Path(current, name) for name in names]
        yield Path(current), [file for file in files if file.suffix in IMPORTED_SUFFIXES]


def _natural_order(path: Path) -> list[tuple[int, str]]:
    # By length first, so that step 10 comes after step 2.
    return [(len(part), part) for part in (*path.parent.parts, path.stem)]


def _refuse_several_kinds(folder: Path, files: list[Path]) -> None:
    parents = [str(file.parent.relative_to(folder)) for file in files]
    kinds = list(dict.fromkeys(re.sub(r"\d+", "*", parent) for parent in parents))
    if len(kinds) > 1:
        num_more = len(kinds) - MAX_KINDS
        more = f" and {num_more} more" if num_more > 0 else ""
        raise UsageError(
            f"{folder}: found files in folders of several kinds: {', '.join(kinds[:MAX_KINDS])}"
            f"{more}; expected one kind, which a pattern in quotes names: '{folder / kinds[0]}'"
        )


def import_rollouts(
    path: Path,
    *,
    contract: str = "boxed",
    kind: str | None = None,
    answer: str | None = None,
    tokenizer: Path | None = None,
    allow_no_text: bool = False,
) -> list[Transcript]:
    """Read the replies of a file as transcripts of one turn each; episodes are debates.

    What the file says of a reply is in `meta`: `reward`, `step`, `group`, `advantage` (or `tokens`
    with `advantages`), its own `verdict`, the `finish` of a cut reply, the `error` of a failed one,
    and every other number under its own name. What is not known is not there. Replies to one
    question have its id, which ends with a hash of the prompt. A conversation of several replies
    counts as one; its last reply has the answer.

    Args:
        path: The file.
        contract: How answers are read: `boxed` (in a reply without a box by its `<answer>`,
            its line `Answer: …` or its `#### …`) or `answer_line`.
        kind: Kind of the questions, as in `Question.meta`; `None` is mathematics.
        answer: The column with the right answer; `None` takes the format's own. Rows without one
            have no right answer, and only figures that need none.
        tokenizer: `tokenizer.json`, or a model's folder, for files of token ids without text.
        allow_no_text: Whether files without text are read, for what else they say.

    Raises:
        UsageError: The file cannot be read, or is in no format that is known (`DataError`, a kind
            of it).
    """
    try:
        rules = get_contract(contract)
    except ValueError as error:
        raise UsageError(f"contract: {error}") from error
    if kind is not None and kind not in KINDS:
        raise UsageError(
            f"kind: found {kind!r:.60}; expected one of {', '.join(KINDS)}"
            f"{did_you_mean(kind, KINDS)}"
        )
    rows = rows_in(path)
    reader = reader_of(rows, path)
    settings = ReadSettings(
        path=path,
        contract=rules.name,
        kind=kind,
        answer=answer,
        tokenizer=tokenizer,
        allow_no_text=allow_no_text,
    )
    return list(reader.read(rows, settings))


def is_transcript_file(path: Path) -> bool:
    """Whether a file holds this project's transcripts, or lines of no other format."""
    if path.suffix in (".parquet", ".eval", ".json"):
        return False
    try:
        with path.open("rb") as file:
            first = parse(next((line for line in file if line.strip()), b"null"))
    except (OSError, ValueError, RecursionError):
        return True
    return not isinstance(first, dict) or _is_transcript(first)


def _is_transcript(row: Record) -> bool:
    return row.keys() >= TRANSCRIPT_KEYS and isinstance(row["question"], dict)
