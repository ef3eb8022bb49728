"""A finished evaluation, read back from its folder."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from debate_protocol.plugins import did_you_mean
from debate_protocol.transcripts.control_characters import escaped
from debate_train.errors import UsageError
from debate_train.evaluating.directory import RESULTS, SCHEMA, VALUES
from debate_train.run_files.collected_files import read_as_written

Values = Mapping[str, Mapping[str, float]]
"""Figure → question id → value."""

_LARGEST = 1e100
"""Of a value: sums of squares of larger ones overflow, and NaN is not among them."""


@dataclass(frozen=True, slots=True)
class _Line:
    policy: str
    figure: str
    question: str
    value: Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
    runs: int


_LINE = TypeAdapter(_Line)


@dataclass(frozen=True, slots=True)
class Finished:
    """What an evaluation found."""

    path: Path
    results: Mapping[str, Any]
    """`results.json`."""
    values: Mapping[str, Values]
    """`values.jsonl`, by policy."""

    @property
    def questions(self) -> frozenset[str]:
        """The questions on which anything was measured."""
        figures = (figure for own in self.values.values() for figure in own.values())
        return frozenset(question for figure in figures for question in figure)

    def policy(self, name: str) -> str:
        """Return the name of a policy that was measured.

        Raises:
            UsageError: None has this name.
        """
        if name in self.values:
            return name
        raise UsageError(
            f"{self.path}: found no policy {name!r}; expected {' or '.join(self.values)}"
            f"{did_you_mean(name, self.values)}"
        )


def read_finished(path: Path) -> Finished:
    """Read the folder of an evaluation.

    Raises:
        UsageError: There is none, it is not finished, or its files are not as they were written.
    """
    if not (path / RESULTS).is_file():
        begun = (path / "evaluation.json").is_file()
        why = "an evaluation that is not finished: go on with --resume" if begun else "no results"
        raise UsageError(
            f"{escaped(str(path))}: found {why}; expected the folder of a finished evaluation, as "
            "debate-eval RECIPE --output DIR leaves it"
        )
    results = read_as_written(path / RESULTS)
    if results is None:
        raise UsageError(f"{path / RESULTS}: is not as debate-eval has written it")
    if results.get("schema") != SCHEMA:
        raise UsageError(
            f"{path / RESULTS}: found schema {results.get('schema')!r}; expected {SCHEMA!r}"
        )
    names = [str(policy["name"]) for policy in results["policies"]]
    return Finished(path, results, _values(path / VALUES, names, results.get("values_sha256")))


def _values(path: Path, policies: Sequence[str], sha256: str | None) -> dict[str, Values]:
    values: dict[str, dict[str, dict[str, float]]] = {name: {} for name in policies}
    number = 0
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    if sha256 not in (None, hashlib.sha256(content).hexdigest()):
        raise UsageError(f"{path}: is not as debate-eval has written it (SHA-256 differs)")
    try:
        for text in content.removesuffix(b"\n").split(b"\n"):
            number += 1
            line = _LINE.validate_json(text)
            values[line.policy].setdefault(line.figure, {})[line.question] = line.value
    except (ValueError, KeyError) as error:
        raise UsageError(
            f"{path}:{number}: found no value of a policy of this evaluation; expected the file as "
            "debate-eval has written it"
        ) from error
    return dict(values)
