"""Variants that a program hands over: classes and objects without an entry point."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import Field
from torch import Tensor

from debate_protocol.forms import DebateSettings, DebateStart, Simultaneous
from debate_protocol.types import DebateRun, Question, Transcript
from debate_rewards.reward import RewardConfig, Score, ScoreError
from debate_train import StepEnd, train
from debate_train.checkpoints.resumes import recipe_changes
from debate_train.commands.cli import main as train_main
from debate_train.data import DataSettings, DataSource, Split
from debate_train.errors import UsageError
from debate_train.evaluation import EvaluationMode, Plays, Values
from debate_train.losses import LossInputs, PpoClip, TokenLoss
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from debate_train.recipe.resolved import resolved_yaml
from train.small_runs import RECIPE

SMALL = yaml.safe_load(RECIPE) | {"steps": 1, "evaluation": {"questions": 0}}
HERE = __name__


class Plain(TokenLoss):
    """The plain policy gradient, times a factor."""

    factor: float = Field(1.0, gt=0)

    def per_action(self, x: LossInputs) -> Tensor:
        return -self.factor * x.advantages_A * x.logps_A


class Sums(DataSettings):
    """A few sums, which are train and test questions alike."""

    batch_size: int = 2
    questions: tuple[Question, ...] = (Question("a", "1 + 2", "3"), Question("b", "2 + 2", "4"))

    def open(self, run_seed: int = 0) -> "SumsSource":
        return SumsSource(self.questions)


class SumsSource(DataSource):
    def __init__(self, questions: tuple[Question, ...]) -> None:
        self._questions = list(questions)

    def batch(self, step: int) -> list[Question]:
        return self._questions

    def split(self, name: Split, size: int) -> list[Question]:
        return self._questions[:size]


class Once(DebateSettings):
    """One round, whatever the settings say."""

    num_agents: int = 2

    def debate(self, begin: DebateStart) -> DebateRun:
        return Simultaneous(num_agents=self.num_agents, max_rounds=1, style=self.style).debate(
            begin
        )


class Turns(EvaluationMode):
    """Counts turns."""

    def plays(self, form: Any) -> Sequence[Plays]:
        return (Plays(form),)

    def figures(self, form: Any) -> Mapping[str, str]:
        return {"turns": "turns"}

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        return {"turns": {one.question.id: float(len(one.turns)) for one in played[0]}}


def worth(debate: Transcript) -> float:
    return float(len(debate.turns))


def kept(folder: Path) -> Any:
    return yaml.safe_load((folder / "recipe.yaml").read_text())


def test_train_takes_own_classes_and_objects_wherever_a_type_is_chosen(tmp_path: Path) -> None:
    own = {
        "loss": Plain(factor=2.0),
        "data": Sums,
        "debate": {"type": Once, "style": "compact", "personas": "none"},
        "reward": worth,
        "evaluation": {"questions": 2, "modes": {"mine": Turns()}},
    }
    trained = train(SMALL | own, output=tmp_path / "run")
    assert trained.results["after"]["eval/mine/turns"]["mean"] == 2.0
    recipe = kept(tmp_path / "run")
    assert recipe["loss"]["type"] == f"{HERE}:Plain"
    assert recipe["loss"]["factor"] == 2.0
    assert recipe["data"]["type"] == f"{HERE}:Sums"
    assert recipe["data"]["questions"][0]["text"] == "1 + 2"
    assert recipe["debate"]["type"] == f"{HERE}:Once"
    assert recipe["reward"] == {"type": f"{HERE}:worth"}
    assert recipe["evaluation"]["modes"]["mine"] == {"type": f"{HERE}:Turns"}


def test_run_with_own_objects_goes_on_from_python_and_not_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(_: StepEnd) -> None:
        raise LookupError("enough")

    recipe, folder = SMALL | {"loss": Plain, "steps": 2}, tmp_path / "run"
    with pytest.raises(LookupError):
        train(recipe, output=folder, on_step_end=stop)
    again = train(recipe, output=folder, resume=True)
    assert [row["step"] for row in again.metrics] == [1, 2]
    capsys.readouterr()
    wanted = [str(folder / "recipe.yaml"), "--output", str(folder), "--resume"]
    assert train_main(wanted) == 2
    said = capsys.readouterr().err
    assert f"loss.type: found '{HERE}:Plain'; expected this Python object itself" in said
    assert said.count("\n") == 1


def test_one_of_ours_is_written_under_its_type(tmp_path: Path) -> None:
    given = SMALL | {"loss": PpoClip(clip_high=0.3), "data": {**SMALL["data"]}}
    text = resolved_yaml(load_recipe(given, model=Recipe))
    plain = SMALL | {"loss": {"type": "ppo_clip", "clip_high": 0.3}}
    assert recipe_changes(text, resolved_yaml(load_recipe(plain, model=Recipe))) == {}


def test_differences_change_own_objects_and_phases_keep_them() -> None:
    given = SMALL | {"loss": Plain(factor=2.0), "phases": {"a": {}, "b": {"loss": {"factor": 4}}}}
    loaded = load_recipe(given, ["loss.aggregation=sequence_mean"], model=Recipe)
    for recipe in (loaded.recipe, Recipe.model_validate(given)):
        a, b = recipe.phase_recipes().values()
        assert isinstance(a.loss, Plain)
        assert isinstance(b.loss, Plain)
        assert (a.loss.factor, b.loss.factor) == (2.0, 4.0)
    assert loaded.recipe.loss.aggregation == "sequence_mean"
    other = load_recipe(SMALL | {"loss": Plain}, ["loss.type=reinforce"], model=Recipe).recipe
    assert other.loss.type == "reinforce"
    assert load_recipe("quickstart", {"loss": Plain}, model=Recipe).recipe.loss.type == (
        f"{HERE}:Plain"
    )


class NoAction(TokenLoss):
    """Says nothing of an action."""


class HalfSource(DataSource):
    def batch(self, step: int) -> list[Question]:
        return []


class Half(DataSettings):
    def open(self, run_seed: int = 0) -> DataSource:
        return HalfSource()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"loss": NoAction}, "recipe: loss: .*:NoAction: NoAction has no per_action; expected"),
        (
            {"loss": Turns},
            "recipe: loss: .*:Turns: expected a subclass of debate_train.losses.Loss",
        ),
        ({"loss": Path}, "recipe: loss: pathlib:Path: found <class 'pathlib.Path'>; expected a p"),
        ({"loss": worth}, "recipe: loss: found <function worth at"),
        ({"loss": {"type": Plain, "factr": 2}}, "recipe: loss.factr: unknown key"),
        (
            {"loss": {"type": Plain, "factor": -1}},
            "recipe: loss.factor: found -1; expected greater",
        ),
        ({"data": Half}, "data: HalfSource has no split; expected what its base asks for"),
        ({"extends": "nothing.yaml"}, "^recipe: extends: no file nothing.yaml$"),
        ({"trainer": {"learning_rate": np.ones(2)}}, "recipe: trainer.learning_rate: found array"),
        ({"steps": {1}}, "recipe: steps: found [{]1[}]; expected a valid integer"),
    ],
)
def test_what_cannot_be_a_part_is_refused_in_a_line(own: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        train(SMALL | own)
    assert "\n" not in str(refused.value)
    assert "/tmp" not in str(refused.value)


def test_reward_is_refused_in_a_line_where_it_is_none(tmp_path: Path) -> None:
    class Silent(RewardConfig):
        """Neither of its two methods."""

    with pytest.raises(UsageError, match=r"^reward: found 3; "):
        train(SMALL, reward=3)  # type: ignore[arg-type]
    with pytest.raises(ScoreError, match="Silent has neither __call__ nor score"):
        train(SMALL, output=tmp_path / "run", reward=Silent())


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    given = {
        "steps": np.int64(2),
        "loss": {"type": Plain, "factor": np.float32(0.5)},
        "trainer": {"learning_rate": np.float32(0.25)},
    }
    loaded = load_recipe(SMALL | given, model=Recipe)
    again = yaml.safe_load(resolved_yaml(loaded))
    assert (again["steps"], again["trainer"]["learning_rate"]) == (2, 0.25)
    assert again["loss"]["factor"] == 0.5


def test_own_data_that_trains_on_what_it_is_measured_on_gets_one_warning(tmp_path: Path) -> None:
    said = io.StringIO()
    with redirect_stderr(said):
        train(SMALL | {"data": Sums, "evaluation": {"questions": 2, "every": 1}}, output=tmp_path)
    warnings = Counter(line.partition(":")[2][:6] for line in said.getvalue().splitlines())
    assert warnings[" data:"] == 1
    assert "2 of the 2 questions of step 1 are in the dev and the test split" in said.getvalue()


def test_a_score_of_a_class_is_used(tmp_path: Path) -> None:
    class Half(RewardConfig):
        """No credit at all."""

        def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
            return [Score(()) for _ in transcripts]

    train(SMALL, output=tmp_path / "run", reward=Half)
    assert kept(tmp_path / "run")["reward"]["type"].endswith("<locals>.Half")
