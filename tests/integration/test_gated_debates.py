"""Forms with gates, rules that answer them, and the driver between, on scripted replies."""

from functools import partial
from itertools import product

from debate_protocol.forms import ActorCritic, Direct, SelfDebate, Simultaneous
from debate_protocol.types import Question, TurnRequest
from debate_rewards import Agreed, AtMost, Informative, InOrder, PartialTrajectory, Verifiable
from debate_rollout.drivers import play
from debate_rollout.engines.scripted import ScriptedEngine


def question(id: str) -> Question:
    return Question(id, f"{id}?", "4", {"kind": "number"})


def say(request: TurnRequest) -> str:
    """Right for `easy`, wrong for `hard`, by turns for the others; a critic only comments."""
    if request.agent == 1 and "critic" in request.question.id:
        return "Add again."
    is_right = {"easy": True, "hard": False}.get(request.question.id, request.agent % 2 == 0)
    return f"\\boxed{{{4 if is_right else 5}}}"


ENGINE = ScriptedEngine().open(script=say)
NAMES = ("easy", "split-1", "hard", "split-2", "split-3")


def test_self_debates_are_filtered_and_drawn_when_rules_answer_their_gates() -> None:
    form = SelfDebate(first_turns=4, second_turns=2)
    select = partial(InOrder(rules=(Informative(), AtMost(go_on=2))), seed=5)
    runs = [form.start(question(name), seed=i) for i, name in enumerate(NAMES)]
    debates = play(runs, ENGINE, max_tokens=9, select=select)
    assert [debate.id for debate in debates] == ["split-1", "split-2", "split-3"]
    ended = [(debate.meta["ended"], len(debate.turns)) for debate in debates]
    # Of three informative questions two debate; the third is kept with its 4 first turns.
    assert sorted(ended) == [("gate", 4), ("max_rounds", 6), ("max_rounds", 6)]
    scores = Verifiable()(debates)
    for debate, score in zip(debates, scores, strict=True):
        assert [c.value for c in score.credits[:4]] == [1.0, -1.0, 1.0, -1.0]
        assert len(score.credits) == len(debate.turns)


def test_single_replies_are_a_group_when_the_question_makes_it() -> None:
    form = Direct(contract="boxed", gate_after=(0,))
    runs = [
        form.start(question(name), seed=copy, debate_id=f"{name}/{copy}")
        for name, copy in product(("easy", "hard"), range(3))
    ]
    assert play(runs, ENGINE, max_tokens=9, select=Informative(group="question")) == []


def test_debates_end_early_when_their_agents_agree() -> None:
    form = Simultaneous(num_agents=3, max_rounds=3, contract="boxed", gate_after=(0, 1))
    runs = [form.start(question(name), seed=0) for name in ("easy", "split")]
    early, full = play(runs, ENGINE, max_tokens=9, select=Agreed())
    assert (early.meta["ended"], len(early.turns)) == ("gate", 3)
    assert (full.meta["ended"], len(full.turns)) == ("max_rounds", 9)


def test_actor_critic_debates_are_valued_when_played_through_the_driver() -> None:
    form = ActorCritic(max_rounds=3, guided=True, continuations=2)
    (debate,) = play([form.start(question("critic"), seed=0)], ENGINE, max_tokens=9)
    (score,) = PartialTrajectory()([debate])
    # The script's actor is always right, so is every roll-out; round 0 is not valued.
    assert [c.value for c in score.credits] == [None, None, 1.0, 1.0, 1.0]
