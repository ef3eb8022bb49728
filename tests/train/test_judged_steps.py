"""Steps of debates before a judge whose copies part in one round, and what of them is paid."""

from itertools import count

import pytest

from debate_protocol.forms import Judged
from debate_protocol.types import Question, Reply, Transcript, TurnRequest
from debate_rewards import JudgedReward
from debate_rollout.engines import ScriptedEngine
from debate_rollout.rendering import TokenText
from debate_train.advantages import Grouped
from debate_train.batches.rows import stream_credit, turn_tokens
from debate_train.data import SignsPuzzle
from debate_train.models.scratch import word_tokenizer
from debate_train.playing import play_step
from debate_train.recipe import Recipe
from debate_train.recipe.scripted_debates import play_debate


def test_copies_share_what_comes_before_the_round_that_is_paid() -> None:
    contract = {"name": "speech", "sections": ["solution"]}
    debate = {"type": "judged", "style": "compact", "contract": contract, "max_rounds": 5}
    words = ["<decision>", "</decision>"]
    recipe = Recipe.model_validate(
        {
            "name": "t",
            "steps": 1,
            "model": {"type": "scratch"},
            "data": {"type": "signs_puzzle", "batch_size": 16},
            "debate": {**debate, "diverge": True},
            "rollout": {"debates_per_question": 3},
            "reward": {"type": "judged"},
            "advantage": {"baseline": "prompt"},
            "loss": {"type": "ppo_clip"},
        }
    )
    said = count()  # Nobody says the same thing twice.

    def say(request: TurnRequest) -> str:
        is_judge = request.contract is not None and "decision" in request.contract.sections
        if is_judge:
            return "<decision> Agent 0 </decision>"
        return "<solution> {} {} </solution>".format(*divmod(next(said), 50))

    engine = ScriptedEngine().open(None, word_tokenizer(words), script=say)
    debates = play_step(recipe, SignsPuzzle(batch_size=16).open(), 0, engine)
    parted = set()
    for first in range(0, len(debates), 3):
        copies = debates[first : first + 3]
        (at,) = {one.meta["diverged"] for one in copies}
        parted.add(at)
        for turns in zip(*(one.turns for one in copies), strict=True):
            if turns[0].round < 4:
                assert len({turn.text for turn in turns}) == (1 if turns[0].round < at else 3)
            if turns[0].round <= at:
                assert all(turn.prompt == turns[0].prompt for turn in turns)
        for score in JudgedReward()(copies):
            paid = {credit.round for credit in score.credits if credit.value is not None}
            assert paid == {at}
    assert len(parted) > 2


def paid_text(transcript: Transcript, agent: int) -> str:
    """Return the characters of an agent's last turn that stream `judge` gives an advantage."""
    advantage = Grouped(baseline="none")
    (given,) = advantage([transcript], JudgedReward(judge="truth")([transcript]))
    turn = [turn for turn in transcript.turns if turn.agent == agent][-1]
    text = TokenText(turn.text, tuple(range(len(turn.text))))
    credit = stream_credit(turn_tokens(transcript, turn, text), given[turn.key], advantage.streams)
    values = credit[0][[*advantage.streams].index("judge")]
    return "".join(c for c, value in zip(turn.text, values, strict=True) if value)


@pytest.mark.parametrize(
    ("said", "paid"),
    [
        ("<decision>Agent 0</decision>", "<decision>Agent 0</decision>"),
        ("<decision>neither</decision>", "<decision>neither</decision>"),
        ("I like the first one.", "I like the first one."),
    ],
)
def test_what_a_judge_is_paid_reaches_its_decision(said: str, paid: str) -> None:
    def say(request: TurnRequest) -> Reply:
        return Reply(f"\\boxed{{{request.agent}}}" if request.agent < 2 else said)

    question = Question("q", "?", "0", {"kind": "number"})
    assert paid_text(play_debate(Judged(judges=1).start(question, seed=0), say), 2) == paid
