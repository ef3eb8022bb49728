"""Over-sampling of questions: which are kept, which are left out and why, and what it costs."""

import logging
import zlib
from pathlib import Path
from typing import Any

import pytest

from debate_rewards.decisions import Answers
from debate_train.commands.cli import main
from debate_train.data.source import DataSource
from debate_train.playing import StepDebates, play_step
from debate_train.recipe import Recipe
from debate_train.trainers.torch_session import TorchTrainerSession
from train.drawn_steps import INFORMATIVE, Batches, counts, engine, recipe
from train.small_runs import at_call, end_of


def played(source: DataSource, step: int = 0, **rollout: Any) -> StepDebates:
    return play_step(recipe(**rollout), source, step, engine())


def kept(debates: StepDebates) -> list[str]:
    return [debate.question.id for debate in debates]


def test_a_step_draws_until_enough_questions_teach_something() -> None:
    source = Batches("e1 s1", "h1 s2", "s3 s4")
    debates = played(source)
    assert kept(debates) == ["s1", "s1", "s2", "s2"]
    assert source.asked == [0, 1]  # The third batch is not needed.
    tokens = sum(len(turn.reply.token_ids) for d in debates for turn in d.turns if turn.reply)
    # Each of the four questions has two replies of equal length, and half of them are dropped.
    assert counts(debates) == {
        "rounds": 2,
        "batches": 2,
        "drawn": 4,
        "kept": 2,
        "all_right": 1,
        "all_wrong": 1,
        "dropped_tokens": tokens,
    }
    assert tokens > 0


def test_a_round_draws_what_is_missing_at_the_share_that_was_kept() -> None:
    source = Batches("h1 s1 s2 s3", "h2 h3 s4 s5 s6")
    debates = play_step(four(), source, 0, engine())
    assert kept(debates)[::2] == ["s1", "s2", "s3", "s4"]
    # 3 of 4 are kept: for 1 more ceil(1 * 4 / 3) = 2 are drawn, both all wrong; then 3 of 6 are
    # kept, ceil(1 * 6 / 3) = 2, of which one is surplus. s6 is not drawn.
    num_questions = counts(debates)
    assert (num_questions["rounds"], num_questions["drawn"], num_questions["surplus"]) == (3, 8, 1)


def four() -> Recipe:
    two_questions = recipe()
    return two_questions.model_copy(
        update={"data": two_questions.data.model_copy(update={"batch_size": 4})}
    )


def test_a_question_is_played_once_a_step() -> None:
    debates = played(Batches("s1 h1", "s1 h1", "s1 s2"))
    assert kept(debates) == ["s1", "s1", "s2", "s2"]
    num_questions = counts(debates)
    assert (num_questions["repeated"], num_questions["drawn"], num_questions["all_wrong"]) == (
        3,
        3,
        1,
    )


def test_starvation_is_reported_and_not_fatal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "debate_train.playing"):
        debates = played(Batches("e1 h1", "h2 s1", "n1 h3"))
    assert kept(debates) == ["s1", "s1"]
    num_questions = counts(debates)
    assert (num_questions["missing"], num_questions["batches"], num_questions["no_answer"]) == (
        1,
        3,
        1,
    )
    (warning,) = [text for text in caplog.messages if "kept" in text]
    assert warning == (
        "train/0: kept 1 of 2 wanted questions out of 6 drawn (1 all right, 3 all wrong, "
        "1 no answer)"
    )
    assert kept(played(Batches("e1 h1"), oversample=1)) == []


@pytest.mark.parametrize(
    ("rollout", "debate", "problem"),
    [
        ({"select": None}, {}, "rollout.oversample: found 3 without select"),
        ({"select": {"type": "informative"}}, {}, "expected group: question"),
        (
            {
                "select": {
                    "type": "in_order",
                    "rules": [INFORMATIVE, {"type": "at_most", "go_on": 1, "others": "drop"}],
                }
            },
            {},
            "with a rule at_most that comes first or drops",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(
    rollout: dict[str, Any], debate: dict[str, Any], problem: str
) -> None:
    settings = recipe().model_dump(exclude_unset=True)
    settings["rollout"] |= rollout
    settings["debate"] |= debate
    with pytest.raises(ValueError, match=problem.replace("(", r"\(")):
        Recipe.model_validate(settings)


RECIPE = """\
name: small
steps: 4
model: {type: scratch, hidden_size: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn_size: 8}
data: {type: signs_puzzle, batch_size: 2, num_digits: 3, largest_digit: 4}
debate:
  type: direct
  style: compact
  personas: none
  gate_after: [0]
rollout:
  max_tokens: 4
  debates_per_question: 2
  select: {type: informative, group: question}
  oversample: 2
reward: {type: verifiable}
advantage: {baseline: prompt, scale: std}
loss: {type: dapo}
trainer: {type: torch, learning_rate: 1.0e-2}
evaluation: {questions: 0}
recording: {debates: 0}
tracking: {wandb: false}
"""


@pytest.fixture
def splitting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three questions have a right reply and a wrong one: the tiny model solves none."""

    def judged(answers: Answers) -> list[bool | None]:
        lots = [zlib.crc32(question.id.encode()) % 3 for question, _ in answers]
        return [lot > 0 and position % 2 == 0 for position, lot in enumerate(lots)]

    monkeypatch.setattr("debate_train.playing.step_debates.checked", judged)


def ended(folder: Path, *changes: str) -> int:
    file = folder / "recipe.yaml"
    folder.mkdir(exist_ok=True)
    file.write_text(RECIPE)
    return main([str(file), *changes, "--output", str(folder / "run")])


@pytest.mark.usefixtures("splitting")
@pytest.mark.parametrize("depth", [0, 1])
def test_a_resumed_run_draws_what_an_uninterrupted_one_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    ahead = f"pipeline.max_staleness={depth}"
    assert ended(tmp_path / "whole", ahead) == 0
    uninterrupted = end_of(tmp_path / "whole/run")
    rows = uninterrupted[0]
    assert [row["sampling/kept"] + row["sampling/missing"] for row in rows] == [2.0] * 4
    assert len({row["sampling/batches"] for row in rows}) == 2  # Some steps draw more than once.

    def stop() -> None:
        raise MemoryError("stopped")

    with monkeypatch.context() as context:
        at_call(context, TorchTrainerSession, "step", 3, stop)
        assert ended(tmp_path / "stopped", ahead) != 0
    assert ended(tmp_path / "stopped", ahead, "--resume") == 0
    assert end_of(tmp_path / "stopped/run") == uninterrupted
