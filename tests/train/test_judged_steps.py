"""Steps of debates before a judge whose copies part in one round, and what of them is paid."""

from itertools import count

from debate_protocol.types import Ask
from debate_rewards import JudgedReward
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.models.scratch import word_tokenizer
from debate_train.playing import play_step
from debate_train.recipe import Recipe


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

    def say(ask: Ask) -> str:
        is_judge = ask.contract is not None and "decision" in ask.contract.sections
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
