"""Debates of any file: transcripts of this project, or rollouts of other programs."""

import json
from pathlib import Path

from debate_protocol.types import Transcript
from debate_train.errors import UsageError

_WHOLE, _SAMPLES = "transcripts.jsonl", "transcripts/*.jsonl"


def debates_in(
    path: Path, key: str, *, contract: str = "boxed", kind: str | None = None, answer: str | None
) -> list[Transcript]:
    """Return the debates of a file, in order; rows with completions or traces are of others.

    Args:
        path: The file.
        key: Names it in messages.
        contract: How replies of rollouts mark their answers.
        kind: How answers of rollouts are compared.
        answer: The column of rollouts with the right answer.

    Raises:
        UsageError: There is no such file, or it cannot be read.
    """
    from debate_rewards.command_input import UsageError as InputError
    from debate_rewards.command_input import transcripts_in
    from debate_train.rollout_files import import_rollouts

    if not path.is_file():
        raise UsageError(f"{key}: found no file {str(path)!r}; expected one of debates")
    if path.suffix == ".parquet" or _holds_completions(path):
        return import_rollouts(path, contract=contract, kind=kind, answer=answer)
    try:
        return transcripts_in(str(path))
    except InputError as error:
        raise UsageError(str(error)) from error


def files_of(path: Path, key: str) -> list[Path]:
    """Return the files of debates that a path names: itself, or those of a folder.

    Raises:
        UsageError: There is none.
    """
    if not path.is_dir():
        if path.is_file():
            return [path]
        raise UsageError(
            f"{key}: found nothing at {str(path)!r}; expected a file of transcripts or rollouts, a "
            "run directory, or a folder of debate-rollout"
        )
    whole = path / _WHOLE
    found = [whole] if whole.is_file() else sorted(path.glob(_SAMPLES))
    if not found:
        raise UsageError(
            f"{key}: found neither {_WHOLE} nor {_SAMPLES} in {str(path)!r}; expected a run "
            "directory that keeps debates (recording.debates), or a folder of debate-rollout"
        )
    return found


def _holds_completions(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(next((line for line in file if line.strip()), "null"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and ("completion" in first or "traces" in first)
