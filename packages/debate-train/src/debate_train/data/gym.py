"""Tasks of reasoning-gym: questions made as needed, judged as `puzzle_answers` has it."""

import random
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
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
from debate_train.data.signs_puzzle import DrawnSource
from debate_train.data.source import DataSettings, Seeds
from debate_train.interrupts import DataError

SIZE = 10_000
"""Numbers of a task's questions, from which they are drawn."""
OTHERS = 5
"""Other questions of a task whose answers are tried as a wrong one."""
_INTEGER = re.compile(r"-?\d+")

SLOW_SIZES = {"acre": 500}
"""Numbers of questions of tasks that make all of them at once."""
_OWN_KEYS = ("size", "seed")
"""Settings that the data itself gives each task."""


class GymTask(Config):
    """One task: its share, and beside it the library's own settings of its difficulty."""

    model_config = ConfigDict(extra="allow")

    weight: float = Field(1.0, gt=0)
    """In relation to the weights of the other tasks."""
    level: int | None = Field(None, ge=0)
    """Difficulty in the library's own curriculum of the task, from 0; its settings go before."""


class ReasoningGym(DataSettings):
    """Procedural tasks of the library reasoning-gym (`pip install reasoning-gym`).

    A question's split follows from its text, so splits never meet: a tenth is `dev`, one `test`.
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
        """The tasks that questions are of."""
        return {name: self.tasks.get(name, GymTask()) for name in self.only or self.tasks}

    @property
    def dataset(self) -> str:
        """The name of the data in metrics."""
        return "+".join(self.chosen)

    def open(self, run_seed: int = 0) -> "ReasoningGymSource":
        """Return the source of these tasks in a run with this seed.

        Raises:
            DataError: The library is not installed, has no such task, or refuses its settings.
        """
        made = {name: _task(f"data.tasks.{name}", name, one) for name, one in self.chosen.items()}
        return ReasoningGymSource(self, made, Seeds.of(self.seed, run_seed))


def _task(key: str, name: str, task: GymTask) -> tuple[Any, Mapping[str, Any]]:
    """Return the library's task and what it is made with."""
    if find_spec(TASK) is None:
        needed = install_command("debate-train[gym]")
        raise DataError(f"{key}: needs the library reasoning-gym; install it with: {needed}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of a library that it brings, when it is compiled.
        from reasoning_gym.factory import (
            DATASETS,
            create_curriculum,
            create_dataset,
            has_curriculum,
        )
    if name not in DATASETS:
        raise DataError(f"{key}: found no such task{did_you_mean(name, DATASETS)}")
    if name in REFUSED:
        raise DataError(f"{key}: {REFUSED[name]}; expected another task")
    if name not in JUDGED:
        raise DataError(f"{key}: how its answers are judged is not known; expected another task")
    settings = task.model_extra or {}
    for own_key in _OWN_KEYS:
        if own_key in settings:
            raise DataError(
                f"{key}.{own_key}: found a setting that the data gives; expected none here, and "
                "data.seed for other questions"
            )
    try:
        if task.level is not None:
            if not has_curriculum(name):
                raise ValueError("it has no levels")
            curriculum = create_curriculum(name)
            highest = max(len(each.levels) for each in curriculum.attributes.values()) - 1
            if task.level > highest:
                raise DataError(
                    f"{key}.level: found {task.level}; expected at most {highest}, "
                    "the highest that changes anything"
                )
            curriculum.set_global_level(task.level)
            leveled, plain = curriculum.generate_configuration({}), create_dataset(name).config
            settings = {k: v for k, v in vars(leveled).items() if v != getattr(plain, k)} | settings
        dataset = create_dataset(name, seed=0, size=_size(name), **settings)
    except DataError:
        raise
    except (AssertionError, TypeError, ValueError) as error:
        raise DataError(f"{key}: refused by reasoning-gym: {error}") from error
    open_task(_made_with(name, settings))
    return dataset, settings


def _made_with(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"task": name, "config": dict(settings), "seed": 0, "size": _size(name)}


def _size(name: str) -> int:
    return SLOW_SIZES.get(name, SIZE)


class ReasoningGymSource(DrawnSource):
    """Draws questions of several tasks by their weights."""

    salt = "gym"
    patience = 2_000

    def __init__(
        self, config: ReasoningGym, tasks: Mapping[str, tuple[Any, Mapping[str, Any]]], seeds: Seeds
    ) -> None:
        super().__init__(config, seeds)
        self._tasks, self._names = tasks, list(tasks)
        self._weights = list(accumulate(one.weight for one in config.chosen.values()))
        self._question = lru_cache(maxsize=1 << 14)(self._made)

    def draw(self, rng: random.Random) -> Question:
        """Return one of a task's questions."""
        (name,) = rng.choices(self._names, cum_weights=self._weights)
        return self._question(name, rng.randrange(_size(name)))

    def _made(self, name: str, index: int) -> Question:
        dataset, settings = self._tasks[name]
        entry = dataset[index]
        task = {**_made_with(name, settings), "index": index}
        meta: dict[str, Any] = {"kind": "text", TASK: task, "subject": name}
        if name == "n_queens":
            meta["accept"] = list(entry["metadata"]["valid_answers"])
        question = Question(f"{name}/{index}", entry["question"], str(entry["answer"]), meta)
        if _INTEGER.fullmatch(str(entry["answer"])):
            return question  # Another number is as good a wrong answer.
        others = (
            str(dataset[(index + step) % _size(name)]["answer"]) for step in range(1, 1 + OTHERS)
        )
        wrong = next((one for one in others if check(question, one).verdict == "wrong"), None)
        named = {} if wrong is None else {"wrong_answers": [wrong]}
        return replace(question, meta=meta | named)
