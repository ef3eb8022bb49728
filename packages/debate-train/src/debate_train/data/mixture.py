"""Several sources of questions at once, by shares."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Literal, cast

from pydantic import ConfigDict, Field

from debate_protocol.plugins import Config, Variants
from debate_protocol.types import Question, TurnRequest
from debate_train.data.benchmarks import Benchmark
from debate_train.data.gym import ReasoningGym
from debate_train.data.questions import Questions
from debate_train.data.signs_puzzle import SignsPuzzle
from debate_train.data.source import (
    MOST_HELD_OUT,
    DataSettings,
    DataSource,
    Split,
    keep_apart,
)

SOURCE_KEY = "data"
"""Key of a question's meta: the name of its source."""
SINGLE_SOURCES: Variants[DataSettings] = Variants(
    "debate_train.data", DataSettings, Questions, Benchmark, ReasoningGym, SignsPuzzle
)
# Sources of other packages import `debate_train.data`, which has to be complete before they are
# read.
DEFERRED = ConfigDict(defer_build=True)


class PartOfMixture(Config):
    """A source and a share."""

    model_config = DEFERRED

    data: Annotated[DataSettings, SINGLE_SOURCES]
    """Its `batch_size` does not count."""
    weight: float = Field(1.0, gt=0)
    """In relation to the weights of the other sources."""


class Mixture(DataSettings):
    """Questions of several sources, in steps and in evaluations by their weights.

    Ids of questions and `meta["data"]` begin with the name of the source.
    """

    model_config = DEFERRED

    type: Literal["mixture"] = "mixture"
    sources: dict[str, PartOfMixture] = Field(min_length=1)
    """Names to sources, each with its weight."""

    def open(self, run_seed: int = 0) -> "MixedSource":
        """Open all sources."""
        opened = {}
        for name, member in self.sources.items():
            # With one question a step, a source's steps number its questions.
            settings = member.data.model_copy(update={"batch_size": 1})
            opened[name] = settings.open(run_seed)
        return MixedSource(self, opened)

    @property
    def dataset(self) -> str:
        """The name of the data in metrics."""
        return "+".join(member.data.dataset for member in self.sources.values())

    def paths(self) -> Mapping[str, str]:
        """List the files and hub data sets of all sources."""
        paths = {}
        for name, member in self.sources.items():
            for key, path in member.data.paths().items():
                paths[f"data.sources.{name}.{key}"] = path
        return paths

    def summary(self, source: DataSource) -> str:
        """Describe all sources in a line."""
        opened = cast(MixedSource, source).opened
        lines = []
        for name, member in self.sources.items():
            line = f"{name}: {member.data.summary(opened[name])}"
            lines.append(line.replace(" data:", "", 1))
        return "data: a mixture of " + "; ".join(lines)

    def checked_questions(self, source: DataSource) -> Sequence[Question]:
        """Select the questions for a check, from all sources."""
        opened = cast(MixedSource, source).opened
        questions: list[Question] = []
        for name, member in self.sources.items():
            questions += member.data.checked_questions(opened[name])
        return questions

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Say whether a training question of any source may have an answer."""
        opened = {} if source is None else cast(MixedSource, source).opened
        return any(
            member.data.may_have_answers(opened.get(name)) for name, member in self.sources.items()
        )


class MixedSource(DataSource):
    """Several opened sources.

    The number of a question decides the source: the source furthest behind the expected share
    always comes next.
    """

    def __init__(self, config: Mixture, opened: Mapping[str, DataSource]) -> None:
        self.config = config
        self.opened = opened
        self._weights = {name: member.weight for name, member in config.sources.items()}
        self._schedule: list[tuple[str, int]] = []
        self._behind = dict.fromkeys(opened, 0.0)
        self._num_scheduled = dict.fromkeys(opened, 0)
        self._notes_on_overlap: list[str] = []

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Notes of all sources on how they were read."""
        notes = []
        for name, source in self.opened.items():
            notes += [f"{name}: {note}" for note in source.notes]
        return (*notes, *self._notes_on_overlap)

    @cached_property
    def _trainable(self) -> Mapping[str, DataSource]:
        """The sources without the held-out questions of the others; read when training begins."""
        # What is drawn by a rule takes long to list, and is in no file.
        of_files = [source for source in self.opened.values() if source.split_rule is None]
        for name, source in self.opened.items():
            others = [other for other in of_files if other is not source]
            settings = self.config.sources[name].data
            note = keep_apart(source, others, settings, MOST_HELD_OUT)
            if note:
                self._notes_on_overlap.append(f"{name}: {note}")
        return self.opened

    def _scheduled(self, number: int) -> tuple[str, int]:
        """Look up the source of a question and the question's number there."""
        # The schedule is deterministic and grows as needed: a resumed run builds it again.
        total_weight = sum(self._weights.values())
        while len(self._schedule) <= number:
            for name, weight in self._weights.items():
                self._behind[name] += weight
            furthest_behind = max(self._behind, key=self._behind.__getitem__)
            self._behind[furthest_behind] -= total_weight
            self._schedule.append((furthest_behind, self._num_scheduled[furthest_behind]))
            self._num_scheduled[furthest_behind] += 1
        return self._schedule[number]

    def batch(self, step: int) -> list[Question]:
        """Select the questions of a step."""
        batch_size = self.config.batch_size
        batch = []
        for slot in range(batch_size):
            name, number = self._scheduled(step * batch_size + slot)
            # Each source was opened with one question a step: its step is the question's number.
            question = self._trainable[name].batch(number)[0]
            batch.append(_with_source(name, question))
        return batch

    def split(self, name: Split, size: int) -> list[Question]:
        """Select up to `size` questions by the weights; fewer where a source has too few."""
        sources = self._trainable if name == "train" else self.opened
        # Shares are of the available questions, if these are fewer than requested.
        num_available = 0
        for source in sources.values():
            num_available += len(source.split(name, size))
        size = min(size, num_available)
        total_weight = sum(self._weights.values())
        questions: list[Question] = []
        summed_weight = 0.0
        num_shared = 0
        for source_name, source in sources.items():
            # Sums of shares are rounded, so that the shares add up to the size.
            summed_weight += self._weights[source_name]
            share = round(size * summed_weight / total_weight) - num_shared
            num_shared += share
            for question in source.split(name, share):
                questions.append(_with_source(source_name, question))
        return questions

    @property
    def split_rule(self) -> Callable[[str], Split] | None:
        """The common rule of all sources; `None` without one."""
        rules = {source.split_rule for source in self.opened.values()}
        # Sources of files have no rule, and neither has a mixture with one of them.
        return rules.pop() if len(rules) == 1 else None

    def is_empty(self, name: Split) -> bool:
        """Whether no source holds a question of a split."""
        return all(source.is_empty(name) for source in self.opened.values())

    def held_out(self, num_measured: int) -> list[Question]:
        """List the held-out questions of all sources."""
        questions = []
        for source in self.opened.values():
            questions += source.held_out(num_measured)
        return questions

    def leave_out(self, held: Callable[[], Sequence[Question]]) -> int:
        """Leave these questions out of training; return how many there were."""
        return sum(source.leave_out(held) for source in self.opened.values())

    @property
    def can_demonstrate(self) -> bool:
        """Whether all sources write turns to imitate."""
        return all(source.can_demonstrate for source in self.opened.values())

    def demonstrate(self, request: TurnRequest, *, errors: bool = True) -> str:
        """Write a turn as the question's source writes it."""
        source = self.opened[str(request.question.meta[SOURCE_KEY])]
        return source.demonstrate(request, errors=errors)


def _with_source(name: str, question: Question) -> Question:
    meta = {**question.meta, SOURCE_KEY: name}
    return replace(question, id=f"{name}/{question.id}", meta=meta)
