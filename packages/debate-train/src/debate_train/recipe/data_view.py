"""The questions of a recipe as far as this machine can read them without downloads."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from debate_protocol.types import Question
from debate_train.checkpoints.run_directory import file_digest
from debate_train.data import DataSettings, DataSource
from debate_train.data.source import keep_apart
from debate_train.errors import UsageError
from debate_train.recipe.context import ASSUMED_QUESTION_TOKENS
from debate_train.recipe.recipe import Recipe

# Keys of a question's meta that prompts show.
SHOWN_KEYS = ("passage", "choices")


@dataclass(frozen=True, slots=True)
class DataView:
    """Lines and errors about data; `longest` and `source` are `None` for unread data."""

    lines: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    longest: Question | None = None
    source: DataSource | None = None

    def has_answers(self, data: DataSettings) -> bool:
        """Whether any training question may have an answer."""
        return data.may_have_answers(self.source)


def look_at_data(data: DataSettings, *, trains: bool = True) -> DataView:
    """Read local text files; only name data on a hub or in parquet.

    Args:
        data: The source of questions.
        trains: Whether there have to be questions to train on.
    """
    try:
        unread = data.unread()
        if unread:
            assumed = f"questions are taken to have at most {ASSUMED_QUESTION_TOKENS} tokens"
            return DataView(lines=(f"{unread}; {assumed}",))
        source = data.open()
        if trains:
            source.batch(0)
    except UsageError as error:
        return DataView(errors=(str(error),))
    longest = max(data.checked_questions(source), key=_shown_chars)
    return DataView(
        lines=(data.summary(source), *source.notes),
        longest=longest,
        source=source,
    )


def _shown_chars(question: Question) -> int:
    shown_meta = [str(question.meta.get(key, "")) for key in SHOWN_KEYS]
    return len(question.text) + len("".join(shown_meta))


def overlap_lines(
    views: Mapping[str, DataView], stages: Mapping[str, DataSettings], num_measured: int
) -> list[str]:
    """Describe training questions left out because another stage measures them.

    Args:
        views: Data of each stage.
        stages: Settings of each stage, by the same names.
        num_measured: Most measured questions of a split.

    Raises:
        DataError: `overlap` refuses shared questions.
    """
    sources = {name: view.source for name, view in views.items() if view.source is not None}
    lines = []
    for name, source in sources.items():
        other_sources = [other for other_name, other in sources.items() if other_name != name]
        line = keep_apart(source, other_sources, stages[name], num_measured)
        if line:
            lines.append(line)
    return lines


def data_prints(recipe: Recipe) -> dict[str, str]:
    """Hash the files of questions, by key; data on a hub has none."""
    stages = {"": recipe}
    for name, phase in recipe.phase_recipes().items():
        if phase.data != recipe.data:
            stages[f"phases.{name}."] = phase
    prints = {}
    for prefix, stage in stages.items():
        for key, path in stage.data.paths().items():
            digest = file_digest(Path(path))
            if digest is not None:
                prints[f"{prefix}{key}"] = digest
    return prints
