"""What can be said of a recipe's data without downloading any."""

from collections.abc import Mapping
from dataclasses import dataclass

from debate_protocol.types import Question
from debate_train.checks.check_context import ASSUMED_QUESTION_TOKENS
from debate_train.data import DataConfig, DataSource
from debate_train.data.source import keep_apart
from debate_train.errors import UsageError

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
        return data.may_have_answers(self.source)


def look_at_data(data: DataConfig, *, trains: bool = True) -> DataView:
    """Read local text files; name what is on a hub or in parquet, and leave it alone.

    Args:
        data: Where questions come from.
        trains: Whether there have to be questions to train on.
    """
    if unread := data.unread():
        if unread.is_error:
            return DataView(errors=(f"{unread.key}: {unread.why}",))
        taken = f"questions are taken to have at most {ASSUMED_QUESTION_TOKENS} tokens"
        return DataView((f"{unread.key}: {unread.why}; {taken}",))
    try:
        source = data.open()
        if trains:
            source.batch(0)
    except UsageError as error:
        return DataView(errors=(str(error),))
    longest = max(data.looked_at(source), key=_shown_length)
    lines = (data.summary(source), *source.notes)
    return DataView(lines, (), longest, source.can_demonstrate, source)


def overlap_lines(views: Mapping[str, DataView], stages: Mapping[str, DataConfig]) -> list[str]:
    """Say what stages are not trained on, as another one is measured on it.

    Args:
        views: What was seen of each stage's data.
        stages: That data, by the same names.

    Raises:
        DataError: There are such questions, and `overlap` refuses them.
    """
    opened = {name: view.source for name, view in views.items() if view.source is not None}
    found = [
        keep_apart(own, [one for other, one in opened.items() if other != name], stages[name])
        for name, own in opened.items()
    ]
    return [said for said in found if said]


def _shown_length(question: Question) -> int:
    return len(question.text) + sum(len(str(question.meta.get(key, ""))) for key in _SHOWN)


def many(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural where it needs one."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"
