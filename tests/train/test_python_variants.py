"""Variants that are not ours: classes and objects of a program, and of installed packages."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import Field, TypeAdapter

from debate_protocol.forms import FORMS, DebateSettings, Simultaneous
from debate_protocol.types import Question
from debate_train import train
from debate_train.commands.cli import main
from debate_train.data import DataSettings, DataSource
from debate_train.errors import UsageError
from debate_train.evaluation import MODES, EvaluationMode, Plays
from debate_train.evaluation.settings import ModeChoice
from debate_train.losses import TokenLoss
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from train.small_recipes import FILE
from train.small_runs import RECIPE

SMALL = yaml.safe_load(RECIPE) | {"steps": 1, "evaluation": {"questions": 0}}


class Plain(TokenLoss):
    """The plain policy gradient, times a factor."""

    factor: float = Field(1.0, gt=0)

    def per_action(self, x):
        return -self.factor * x.advantages_A * x.logps_A


class Sums(DataSettings):
    """Two sums, which are train and test questions alike."""

    batch_size: int = 2
    questions: tuple[Question, ...] = (Question("a", "1 + 2", "3"), Question("b", "2 + 2", "4"))

    def open(self, run_seed=0):
        return SumsSource(self.questions)


class SumsSource(DataSource):
    def __init__(self, questions):
        self._questions = list(questions)

    def batch(self, step):
        return self._questions

    def split(self, name, size):
        return self._questions[:size]


class OneRound(DebateSettings):
    """One round, whatever the settings say."""

    num_agents: int = 2

    def debate(self, begin):
        form = Simultaneous(num_agents=self.num_agents, max_rounds=1, style=self.style)
        return form.debate(begin)


class Turns(EvaluationMode):
    """Counts turns."""

    def plays(self, form):
        return (Plays(form),)

    def figures(self, form):
        return {"turns": "turns"}

    def values(self, played):
        return {"turns": {debate.question.id: float(len(debate.turns)) for debate in played[0]}}


def num_turns(debate):
    return float(len(debate.turns))


def load(settings, *overrides):
    return load_recipe(settings, overrides, model=Recipe)


def test_train_takes_classes_and_objects_wherever_a_type_is_chosen(tmp_path):
    variants = {
        "loss": Plain(factor=2.0),
        "data": Sums,
        "debate": {"type": OneRound, "style": "compact", "personas": "none"},
        "reward": num_turns,
        "evaluation": {"questions": 2, "every": 1, "modes": {"mine": Turns()}},
    }
    run = train(SMALL | variants, output=tmp_path / "run")
    assert run.results["after"]["eval/mine/turns"]["mean"] == 2.0
    recipe = yaml.safe_load((tmp_path / "run/recipe.yaml").read_text())
    assert recipe["loss"] == recipe["loss"] | {"type": f"{__name__}:Plain", "factor": 2.0}
    assert recipe["data"]["type"] == f"{__name__}:Sums"
    assert recipe["data"]["questions"][0]["text"] == "1 + 2"
    assert recipe["debate"]["type"] == f"{__name__}:OneRound"
    assert recipe["reward"] == {"type": f"{__name__}:num_turns"}
    assert recipe["evaluation"]["modes"]["mine"] == {"type": f"{__name__}:Turns"}


def test_run_with_an_object_goes_on_from_python_and_not_from_the_command_line(tmp_path, capsys):
    folder = tmp_path / "run"
    recipe = SMALL | {"loss": Plain, "steps": 2}

    def stop(_):
        raise LookupError("enough")

    with pytest.raises(LookupError):
        train(recipe, output=folder, on_step_end=stop)
    resumed = train(recipe, output=folder, resume=True)
    assert [row["step"] for row in resumed.metrics] == [1, 2]
    capsys.readouterr()
    assert main([str(folder / "recipe.yaml"), "--output", str(folder), "--resume"]) == 2
    error = capsys.readouterr().err
    assert f"loss.type: found '{__name__}:Plain'; expected this Python object itself" in error
    assert error.count("\n") == 1


def test_differences_change_objects_and_phases_keep_them():
    phases = {"a": {}, "b": {"loss": {"factor": 4}}}
    settings = SMALL | {"loss": Plain(factor=2.0), "phases": phases}
    recipe = load(settings, "loss.aggregation=sequence_mean").recipe
    assert recipe.loss.aggregation == "sequence_mean"
    first, second = recipe.phase_recipes().values()
    assert (first.loss.factor, second.loss.factor) == (2.0, 4.0)
    assert load(SMALL | {"loss": Plain}, "loss.type=reinforce").recipe.loss.type == "reinforce"
    changed = load_recipe("quickstart", {"loss": Plain}, model=Recipe).recipe
    assert changed.loss.type == f"{__name__}:Plain"


class NoAction(TokenLoss):
    """Does not value an action."""


class HalfSource(DataSource):
    def batch(self, step):
        return []


class HalfData(DataSettings):
    def open(self, run_seed=0):
        return HalfSource()


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ({"loss": NoAction}, "recipe: loss: .*:NoAction: NoAction has no per_action; expected"),
        ({"loss": Path}, "recipe: loss: pathlib:Path: found <class 'pathlib.Path'>; expected a p"),
        ({"loss": {"type": Plain, "factr": 2}}, "recipe: loss.factr: unknown key"),
        ({"data": HalfData}, "data: HalfSource has no split; expected what its base asks for"),
        ({"trainer": {"learning_rate": np.ones(2)}}, "recipe: trainer.learning_rate: found array"),
        ({"steps": {1}}, "recipe: steps: found [{]1[}]; expected a valid integer"),
    ],
)
def test_object_that_does_not_fit_is_refused_in_a_line(variant, message):
    with pytest.raises(UsageError, match=message) as error:
        train(SMALL | variant)
    assert "\n" not in str(error.value)
    assert "/tmp" not in str(error.value)


# Packages of one file

IMPORTS = """
from typing import Literal
from debate_protocol.forms import FormConfig, Simultaneous
from debate_train.evaluation import EvaluationMode, Plays
"""
FORM = """
class Pair(Simultaneous):
    type: Literal["pair"] = "pair"
    num_agents: Literal[2] = 2
"""
MODE = """
class Again(EvaluationMode):
    type: Literal["again"] = "again"
    form: FormConfig

    def plays(self, form):
        return (Plays(self.form, range(1)),)

    def figures(self, form):
        return {"turns": "turns"}

    def values(self, played):
        return {"turns": {debate.question.id: float(len(debate.turns)) for debate in played[0]}}
"""


def write_package(folder, name, text, entry_points):
    (folder / f"{name}.py").write_text(text)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package of one file; our unions read it as a new process would."""

    def write(name, text):
        entry_points = (
            f"[debate_protocol.forms]\npair = {name}:Pair\n"
            f"[debate_train.evaluation]\nagain = {name}:Again\n"
        )
        write_package(tmp_path, name, text, entry_points)
        monkeypatch.syspath_prepend(tmp_path)
        for union in (FORMS, MODES):
            assert union.by_type  # As it was, which is put back afterwards.
            monkeypatch.delitem(vars(union), "by_type")

    return write


@pytest.mark.parametrize("first", [FORMS, MODES], ids=["form", "mode"])
def test_form_and_mode_of_one_file_are_loaded_whichever_is_read_first(install, first):
    install(f"pairs_{'form' if first is FORMS else 'mode'}", IMPORTS + FORM + MODE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(first) > 1
        settings = {"type": "again", "form": {"type": "pair", "max_rounds": 1, "style": "compact"}}
        mode = TypeAdapter(ModeChoice).validate_python(settings)
    (play,) = mode.plays(Simultaneous())
    assert (play.form.type, play.form.num_agents, play.form.max_rounds) == ("pair", 2, 1)


REWARD = """
from typing import Literal
from pydantic import Field
from debate_rewards import RewardConfig, Score

class Brevity(RewardConfig):
    type: Literal["brevity"] = "brevity"
    words: int = Field(50, ge=1)

    @property
    def streams(self):
        return ("style",)

    def __call__(self, transcripts):
        return [Score((), (None,) * t.protocol.num_agents) for t in transcripts]
"""
CHECK_EACH = """
import json, sys
from debate_train.commands.cli import main
for changes in json.loads(sys.argv[2]):
    print("code", main([sys.argv[1], "--check", *changes]), file=sys.stderr)
"""


def test_recipe_takes_a_reward_of_another_package_and_names_its_keys(tmp_path):
    entry_points = "[debate_rewards.rewards]\nbrevity = debate_brevity:Brevity\n"
    write_package(tmp_path, "debate_brevity", REWARD, entry_points)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(FILE + "reward: {type: brevity, words: 20}\n")
    expected = {
        "seed=0": (0, "the reward has values, but no stream style is named"),
        "advantage.streams={style: {weight: 1}}": (0, ""),
        "reward.type=brevty": (2, "did you mean 'brevity'?"),
        "reward.wrds=3": (2, "reward.wrds: unknown key; did you mean 'words'?"),
        "reward.words=0": (2, "reward.words: found 0; expected at least 1"),
    }
    changes = json.dumps([[change] for change in expected])
    process = subprocess.run(
        [sys.executable, "-c", CHECK_EACH, str(recipe), changes],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    *texts, _ = re.split(r"^code (\d)$", process.stderr, flags=re.MULTILINE)
    errors, codes = texts[::2], texts[1::2]
    for error, code, (expected_code, message) in zip(errors, codes, expected.values(), strict=True):
        assert int(code) == expected_code
        assert message in error
