"""Tasks of reasoning-gym: questions made as needed, judged as `puzzle_answers` has it."""

import random
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, Literal

from pydantic import ConfigDict, Field

from debate_protocol.plugins import Config, did_you_mean, install_command
from debate_protocol.types import Question
from debate_rewards.answer_checking import check
from debate_rewards.math_pool import TASK
from debate_rewards.puzzle_answers import JUDGED, REFUSED, open_task
from debate_train.data.drawn_source import DrawnSource
from debate_train.data.source import DataSettings, Seeds
from debate_train.errors import DataError

SIZE = 10_000
"""Number of questions of a task, from which they are drawn."""
SLOW_SIZES = {"acre": 500}
"""Numbers of questions of tasks that make all of them at once."""
OTHERS = 5
"""Other questions of a task whose answers are tried as a wrong one."""
INTEGER = re.compile(r"-?\d+")
RESERVED_SETTINGS = ("size", "seed")
"""Settings that the data itself gives each task."""


class GymTask(Config):
    """A task's share, with the library's own settings of difficulty beside it."""

    model_config = ConfigDict(extra="allow")

    weight: float = Field(1.0, gt=0)
    """In relation to the weights of the other tasks."""
    level: int | None = Field(None, ge=0)
    """Difficulty in the library's own curriculum of the task, from 0; its settings go before."""


class ReasoningGym(DataSettings):
    """Procedural tasks of the library reasoning-gym (`pip install reasoning-gym`).

    The text of a question decides its split, so splits never meet: a tenth is `dev`, one `test`.
    """

    type: Literal["reasoning_gym"] = "reasoning_gym"
    tasks: dict[str, GymTask] = Field(min_length=1)
    """Names of tasks, such as `chain_sum`, to their settings."""
    only: list[str] | None = Field(None, min_length=1)
    """The tasks that questions are of; null: all."""
    seed: int | None = None
    """Seed of the questions, see `debate_train.data.source.Seeds`."""

    @property
    def chosen(self) -> Mapping[str, GymTask]:
        """The tasks of the questions."""
        return {name: self.tasks.get(name, GymTask()) for name in self.only or self.tasks}

    @property
    def dataset(self) -> str:
        """The name of the data in metrics."""
        return "+".join(self.chosen)

    def open(self, run_seed: int = 0) -> "ReasoningGymSource":
        """Open the source of these tasks in a run with this seed.

        Raises:
            DataError: The library is not installed, has no such task, or refuses the settings.
        """
        tasks = {name: open_gym_task(name, task) for name, task in self.chosen.items()}
        return ReasoningGymSource(self, tasks, Seeds.of(self.seed, run_seed))


@dataclass(frozen=True, slots=True)
class OpenedTask:
    """A task with questions, made by these settings."""

    name: str
    dataset: Any
    settings: Mapping[str, Any]
    size: int

    @property
    def origin(self) -> dict[str, Any]:
        """The task as the checker of answers makes it again."""
        return {"task": self.name, "config": dict(self.settings), "seed": 0, "size": self.size}


def open_gym_task(name: str, task: GymTask) -> OpenedTask:
    """Make the library's task.

    Raises:
        DataError: The library is not installed, has no such task, or refuses the settings.
    """
    key = f"data.tasks.{name}"
    if find_spec(TASK) is None:
        command = install_command("debate-train[gym]")
        raise DataError(f"{key}: needs the library reasoning-gym; install it with: {command}")
    with warnings.catch_warnings():
        # A library that reasoning-gym brings along warns when it is compiled.
        warnings.simplefilter("ignore")
        from reasoning_gym.factory import DATASETS, create_dataset
    if name not in DATASETS:
        raise DataError(f"{key}: found no such task{did_you_mean(name, DATASETS)}")
    if name in REFUSED:
        raise DataError(f"{key}: {REFUSED[name]}; expected another task")
    if name not in JUDGED:
        raise DataError(f"{key}: how its answers are judged is not known; expected another task")
    settings = dict(task.model_extra or {})
    for setting in RESERVED_SETTINGS:
        if setting in settings:
            raise DataError(
                f"{key}.{setting}: found a setting that the data gives; expected none here, and "
                "data.seed for other questions"
            )
    size = SLOW_SIZES.get(name, SIZE)
    try:
        if task.level is not None:
            settings = _level_settings(key, name, task.level) | settings
        dataset = create_dataset(name, seed=0, size=size, **settings)
    except DataError:
        raise
    except (AssertionError, TypeError, ValueError) as error:
        raise DataError(f"{key}: refused by reasoning-gym: {error}") from error
    # Rewards make the task again from `origin`, in worker processes: refused here if that fails.
    opened = OpenedTask(name=name, dataset=dataset, settings=settings, size=size)
    open_task(opened.origin)
    return opened


def _level_settings(key: str, name: str, level: int) -> dict[str, Any]:
    """List the settings changed by a level of the task's curriculum.

    Raises:
        DataError: The curriculum has no such level.
        ValueError: The task has no curriculum.
    """
    from reasoning_gym.factory import create_curriculum, create_dataset, has_curriculum

    if not has_curriculum(name):
        raise ValueError("it has no levels")
    curriculum = create_curriculum(name)
    highest = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
    if level > highest:
        raise DataError(
            f"{key}.level: found {level}; expected at most {highest}, "
            "the highest that changes anything"
        )
    curriculum.set_global_level(level)
    leveled = curriculum.generate_configuration({})
    # Only what differs from the defaults: the recipe's own settings go over the level's.
    plain = create_dataset(name).config
    return {
        setting: value
        for setting, value in vars(leveled).items()
        if value != getattr(plain, setting)
    }


class ReasoningGymSource(DrawnSource):
    """Draws questions of several tasks by their weights."""

    salt = "gym"
    patience = 2_000

    def __init__(self, config: ReasoningGym, tasks: Mapping[str, OpenedTask], seeds: Seeds) -> None:
        super().__init__(config, seeds)
        self._tasks = tasks
        self._names = list(tasks)
        self._cumulative_weights = list(accumulate(task.weight for task in config.chosen.values()))
        self._question = lru_cache(maxsize=1 << 14)(self._make_question)

    def draw(self, rng: random.Random) -> Question:
        """Draw a task, and a question of it."""
        (name,) = rng.choices(self._names, cum_weights=self._cumulative_weights)
        return self._question(name, rng.randrange(self._tasks[name].size))

    def _make_question(self, name: str, index: int) -> Question:
        task = self._tasks[name]
        entry = task.dataset[index]
        answer = str(entry["answer"])
        meta: dict[str, Any] = {
            "kind": "text",
            TASK: {**task.origin, "index": index},
            "subject": name,
        }
        if name == "n_queens":
            meta["accept"] = list(entry["metadata"]["valid_answers"])
        question = Question(id=f"{name}/{index}", text=entry["question"], answer=answer, meta=meta)
        if INTEGER.fullmatch(answer):
            return question  # any other number is a wrong answer
        # A guided debate needs a wrong answer of the right form, such as another question's.
        for step in range(1, 1 + OTHERS):
            other_answer = str(task.dataset[(index + step) % task.size]["answer"])
            if check(question, other_answer).verdict == "wrong":
                return replace(question, meta=meta | {"wrong_answers": [other_answer]})
        return question
