"""What can be said of a recipe's data without downloading any."""

import os.path
from dataclasses import dataclass

from debate_protocol.types import Question
from debate_train.checks.check_context import ASSUMED_QUESTION_TOKENS
from debate_train.data import DataConfig, DataSource, Questions
from debate_train.errors import UsageError

_ALL = 10**9
_SHOWN = ("passage", "choices")
"""What prompts show of a question's meta."""


@dataclass(frozen=True, slots=True)
class DataView:
    """What was seen. `longest`, `can_demonstrate` and `source` are None where nothing was read."""

    lines: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    longest: Question | None = None
    can_demonstrate: bool | None = None
    source: DataSource | None = None

    def has_answers(self, data: DataConfig) -> bool:
        """Return whether any training question may have an answer."""
        if not isinstance(data, Questions):
            return True
        if self.source is None:
            return data.fields.answer is not None
        return any(question.answer for question in self.source.split("train", _ALL))


def look_at_data(data: DataConfig) -> DataView:
    """Read local text files; name what is on a hub or in parquet, and leave it alone."""
    if isinstance(data, Questions):
        for key, path in (("path", data.path), ("test_path", data.test_path)):
            if path is not None and not path.endswith((".jsonl", ".json")):
                return _not_read(f"data.{key}", path)
    try:
        source = data.open()
    except UsageError as error:
        return DataView(errors=(str(error),))
    questions = _questions(data, source)
    longest = max(questions, key=_shown_length)
    lines = (_summary(data, source), *source.notes)
    return DataView(lines, (), longest, source.can_demonstrate, source)


def _not_read(key: str, path: str) -> DataView:
    parquet = path.endswith(".parquet")
    if parquet and not os.path.isfile(path):
        return DataView(errors=(f"{key}: there is no file {path!r:.300}",))
    if not parquet and (os.path.exists(path) or path.startswith((".", "/", "~"))):
        return DataView(
            errors=(
                f"{key}: found {path!r:.300}; expected a file that ends in .jsonl, .json or "
                ".parquet, or the id of a hub data set such as openai/gsm8k",
            )
        )
    what = "parquet file, not read here" if parquet else "hub dataset, not checked here"
    taken = f"questions are taken to have at most {ASSUMED_QUESTION_TOKENS} tokens"
    return DataView((f"{key}: {path} ({what}); {taken}",))


def _questions(data: DataConfig, source: DataSource) -> list[Question]:
    if not isinstance(data, Questions):
        return source.batch(0)
    return [q for name in ("train", "dev", "test") for q in source.split(name, _ALL)]


def _summary(data: DataConfig, source: DataSource) -> str:
    if not isinstance(data, Questions):
        return f"data: {data.type}, made as needed"
    train, dev, test = (len(source.split(name, _ALL)) for name in ("train", "dev", "test"))
    return f"data: {data.path}: {train:,} train, {dev:,} dev, {test:,} test questions"


def _shown_length(question: Question) -> int:
    return len(question.text) + sum(len(str(question.meta.get(key, ""))) for key in _SHOWN)
