"""Several sources of questions at once, each with its share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, cast

from pydantic import ConfigDict, Field

from debate_protocol.plugins import Config, Variants
from debate_protocol.types import Question, TurnRequest
from debate_train.data.benchmarks import Benchmark
from debate_train.data.gym import ReasoningGym
from debate_train.data.questions import Questions
from debate_train.data.signs_puzzle import SignsPuzzle
from debate_train.data.source import DataSettings, DataSource, Split

_OF = "data"
"""Key of a question's meta: the name of the source that it comes from."""
_SINGLE: Variants[DataSettings] = Variants(
    "debate_train.data", DataSettings, Questions, Benchmark, ReasoningGym, SignsPuzzle
)

_LATER = ConfigDict(defer_build=True)
"""Sources of other packages import `debate_train.data`, which must be there when they are read."""


class PartOfMixture(Config):
    """One source and its share."""

    model_config = _LATER

    data: Annotated[DataSettings, _SINGLE]
    """Its `batch_size` does not count."""
    weight: float = Field(1.0, gt=0)
    """In relation to the weights of the other sources."""


class Mixture(DataSettings):
    """Questions of several sources, in steps and in evaluations by their weights.

    Ids of questions and `meta["data"]` begin with the name of the source.
    """

    model_config = _LATER

    type: Literal["mixture"] = "mixture"
    sources: dict[str, PartOfMixture] = Field(min_length=1)
    """Names to sources, each with its weight."""

    def open(self, run_seed: int = 0) -> "MixedSource":
        """Open all sources, each with one question a step, so that any number can be asked for."""
        opened = {
            name: part.data.model_copy(update={"batch_size": 1}).open(run_seed)
            for name, part in self.sources.items()
        }
        return MixedSource(self, opened)

    def _parts(self) -> Mapping[str, DataSettings]:
        return {name: part.data for name, part in self.sources.items()}

    @property
    def dataset(self) -> str:
        """The name of the data in metrics."""
        return "+".join(part.dataset for part in self._parts().values())

    def paths(self) -> Mapping[str, str]:
        """Return the files and hub data sets of all sources."""
        return {
            f"data.sources.{name}.{key}": path
            for name, part in self._parts().items()
            for key, path in part.paths().items()
        }

    def summary(self, source: DataSource) -> str:
        """Return the lines of all sources."""
        opened = cast(MixedSource, source).opened
        lines = [f"{n}: {part.summary(opened[n])}" for n, part in self._parts().items()]
        return "data: a mixture of " + "; ".join(line.replace(" data:", "", 1) for line in lines)

    def looked_at(self, source: DataSource) -> Sequence[Question]:
        """Return what a check looks at of all sources."""
        opened = cast(MixedSource, source).opened
        parts = self._parts().items()
        return [q for name, part in parts for q in part.looked_at(opened[name])]

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Return whether a training question of any source may have an answer."""
        opened = {} if source is None else cast(MixedSource, source).opened
        parts = self._parts().items()
        return any(part.may_have_answers(opened.get(name)) for name, part in parts)


class MixedSource(DataSource):
    """Several opened sources.

    Whose turn it is follows from the number of the question alone: each time the one that is
    furthest behind its share comes next.
    """

    def __init__(self, config: Mixture, opened: Mapping[str, DataSource]) -> None:
        self.config, self.opened = config, opened
        self._weights = {name: part.weight for name, part in config.sources.items()}
        self._turns: list[tuple[str, int]] = []
        self._owed = dict.fromkeys(opened, 0.0)
        self._taken = dict.fromkeys(opened, 0)

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the sources say of how they were read."""
        return tuple(f"{name}: {note}" for name, one in self.opened.items() for note in one.notes)

    def _turn(self, number: int) -> tuple[str, int]:
        """Return the source of a question and its number there."""
        total = sum(self._weights.values())
        while len(self._turns) <= number:
            for name, weight in self._weights.items():
                self._owed[name] += weight
            chosen = max(self._owed, key=self._owed.__getitem__)
            self._owed[chosen] -= total
            self._turns.append((chosen, self._taken[chosen]))
            self._taken[chosen] += 1
        return self._turns[number]

    def batch(self, step: int) -> list[Question]:
        """Return the questions of a step."""
        size = self.config.batch_size
        turns = [self._turn(step * size + slot) for slot in range(size)]
        return [_named(name, self.opened[name].batch(number)[0]) for name, number in turns]

    def split(self, name: Split, size: int) -> list[Question]:
        """Return up to `size` questions by the weights; fewer where a source has too few."""
        size = min(size, sum(len(one.split(name, size)) for one in self.opened.values()))
        total = sum(self._weights.values())
        found: list[Question] = []
        for part, source in self.opened.items():
            share = round(size * self._weights[part] / total)
            found += [_named(part, question) for question in source.split(name, share)]
        return found[:size]

    def leave_out(self, held: Callable[[], Sequence[Question]]) -> int:
        """Train on none of these questions; return how many there were."""
        return sum(source.leave_out(held) for source in self.opened.values())

    @property
    def can_demonstrate(self) -> bool:
        """Whether all sources write turns to imitate."""
        return all(source.can_demonstrate for source in self.opened.values())

    def demonstrate(self, request: TurnRequest, *, errors: bool = True) -> str:
        """Return a turn as the question's source writes it."""
        return self.opened[str(request.question.meta[_OF])].demonstrate(request, errors=errors)


def _named(source: str, question: Question) -> Question:
    meta = {**question.meta, _OF: source}
    return replace(question, id=f"{source}/{question.id}", meta=meta)
