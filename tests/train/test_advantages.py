"""From credits to advantages: every number here is worked by hand."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from pydantic import TypeAdapter

from debate_protocol.parsing import CONTRACTS, Contract
from debate_protocol.types import AgentRole, Protocol, Question, Reply, Transcript, Turn, TurnKey
from debate_rewards.reward import Credit, Score
from debate_rewards.rewards import Mixed, RewardChoice, WinMinusLoss, WinRate
from debate_train.advantages import (
    Advantage,
    Advantages,
    Baseline,
    Grouped,
    RoleEma,
    Stream,
    TurnAdvantages,
)
from debate_train.batches.rows import build_batch
from debate_train.models.scratch import word_tokenizer

pytestmark = pytest.mark.numeric

GENERATOR = {"generator": Stream()}
ByTurn = dict[tuple[int, int], float]


def transcript(name: str = "d", question: str = "q", agents: int = 3) -> Transcript:
    return Transcript(name, Question(question, "?"), Protocol(num_agents=agents), ())


def credit(agent: int, round: int, value: float | None, **settings: Any) -> Credit:
    return Credit(agent, round, settings.pop("stream", "generator"), value, **settings)


def by_turn(turns: TurnAdvantages, stream: str = "generator") -> ByTurn:
    """The one advantage of each turn in this stream, by agent and round."""
    values = {}
    for key, advantages in turns.items():
        for advantage in advantages:
            if advantage.stream == stream:
                values[key.agent, key.round] = advantage.value
    return values


def of_debate(config: Grouped, *credits: Credit, stream: str = "generator") -> ByTurn:
    """The advantages in a single debate."""
    (turns,) = config([transcript()], [Score(credits)])
    return by_turn(turns, stream)


def test_shares_of_streams_are_refused_when_they_exceed_the_total() -> None:
    streams = {"generator": Stream(share=0.7), "judge": Stream(share=0.3)}
    assert Grouped(streams=streams).shares == {"generator": 0.7, "judge": 0.3}
    with pytest.raises(ValueError, match=r"found shares generator 0\.7, judge 0\.4; expected"):
        Grouped(streams=streams | {"judge": Stream(share=0.4)})
    # A stream of weight 0 is left out, so its share is nobody's.
    assert Grouped(streams={"judge": Stream(weight=0, share=0.4)}).shares == {}


TWO_DEBATES = (
    Score((credit(0, 0, 1.0), credit(1, 0, 0.0), credit(0, 1, 0.5), credit(1, 1, -0.5))),
    Score((credit(0, 0, -1.0), credit(1, 0, 3.0))),
)


@pytest.mark.parametrize(
    ("baseline", "questions", "first", "second"),
    [
        # Means: debate 0 (1+0+.5-.5)/4 = .25; debate 1 (-1+3)/2 = 1.
        ("debate", "qp", (0.75, -0.25, 0.25, -0.75), (-2, 2)),
        # Debate 0: round 0 mean .5, round 1 mean 0; debate 1 asks another question: mean 1.
        ("question_round", "qp", (0.5, -0.5, 0.5, -0.5), (-2, 2)),
        # Round 0 of both debates: (1+0-1+3)/4 = .75; round 1: (.5-.5)/2 = 0.
        ("question_round", "qq", (0.25, -0.75, 0.5, -0.5), (-1.75, 2.25)),
        # All six: (1+0+.5-.5-1+3)/6 = .5
        ("batch", "qp", (0.5, -0.5, 0.0, -1.0), (-1.5, 2.5)),
        ("none", "qp", (1, 0, 0.5, -0.5), (-1, 3)),
    ],
)
def test_advantages_compare_within_the_group(
    baseline: Baseline, questions: str, first: Sequence[float], second: Sequence[float]
) -> None:
    debates = [transcript(question, question) for question in questions]
    turns = Grouped(baseline=baseline, streams=GENERATOR)(debates, TWO_DEBATES)
    keys = [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert by_turn(turns[0]) == pytest.approx(dict(zip(keys, first, strict=True)))
    assert by_turn(turns[1]) == pytest.approx(dict(zip(keys[:2], second, strict=True)))


def test_std_divides_by_the_sample_deviation() -> None:
    # 0, 0, 3: mean 1, squares 1+1+4 = 6, over n-1 = 2: variance 3, deviation √3.
    scaled = Grouped(scale="std", streams=GENERATOR)
    values = of_debate(scaled, credit(0, 0, 0.0), credit(1, 0, 0.0), credit(2, 0, 3.0))
    scale = 1 / (math.sqrt(3) + 1e-6)
    assert values == pytest.approx({(0, 0): -scale, (1, 0): -scale, (2, 0): 2 * scale}, rel=1e-12)


@pytest.mark.parametrize("scale", ["none", "std"])
@pytest.mark.parametrize("agent_values", [(0.1,) * 3, (1 / 3,) * 3, (-0.5, None, None)])
def test_advantages_are_exactly_0_without_spread(
    scale: str, agent_values: Sequence[float | None]
) -> None:
    config = Grouped.model_validate({"scale": scale, "streams": GENERATOR})
    credits = [credit(agent, 0, value) for agent, value in enumerate(agent_values)]
    assert set(of_debate(config, *credits).values()) == {0.0}


def test_turns_without_value_join_the_mean_as_0_when_a_member_has_a_penalty() -> None:
    # -0.5 and two zeros: mean -1/6. The penalty keeps -1/2 + 1/6 = -1/3; the others no gradient.
    values = of_debate(
        Grouped(streams=GENERATOR),
        credit(0, 0, -0.5, penalty=True),
        credit(1, 0, None),
        credit(2, 0, None),
        credit(3, 0, None, expected=False),
    )
    assert values == pytest.approx({(0, 0): -1 / 3})


def test_turns_without_value_stay_out_when_nobody_has_a_penalty() -> None:
    credits = (credit(0, 0, 1.0), credit(1, 0, 0.0), credit(2, 0, None))
    values = of_debate(Grouped(streams=GENERATOR), *credits)
    assert values == pytest.approx({(0, 0): 0.5, (1, 0): -0.5})  # mean over two, not three


def test_components_are_centred_apart_then_added() -> None:
    # peers 1, 0, None: mean .5; truth 1, 1, -1: mean 1/3; agent 3 has None in both: masked.
    components = {"peers": (0.7, (1.0, 0.0, None, None)), "truth": (0.3, (1.0, 1.0, -1.0, None))}
    credits = []
    for name, (weight, agent_values) in components.items():
        for agent, value in enumerate(agent_values):
            credits.append(credit(agent, 0, value, component=name, weight=weight))
    (turns,) = Grouped(streams=GENERATOR)([transcript()], [Score(tuple(credits))])
    sums = {key.agent: sum(a.value for a in advantages) for key, advantages in turns.items()}
    # .7·.5 + .3·2/3 = .55; .7·(-.5) + .3·2/3 = -.15; 0 + .3·(-4/3) = -.4
    assert sums == pytest.approx({0: 0.55, 1: -0.15, 2: -0.4})


def test_return_is_one_member_per_agent_and_reaches_all_its_turns() -> None:
    # Agent 0 spoke three times, agent 1 once: mean (1 + 0)/2 = .5, not (3·1 + 0)/4.
    credits = [credit(0, round, 1.0, stream="return") for round in range(3)]
    credits.append(credit(1, 0, 0.0, stream="return"))
    config = Grouped(streams={"return": Stream()})
    (turns,) = config([transcript(agents=2)], [Score(tuple(credits))])
    expected = {(0, 0): 0.5, (0, 1): 0.5, (0, 2): 0.5, (1, 0): -0.5}
    assert by_turn(turns, "return") == pytest.approx(expected)


def test_prompt_compares_answers_to_one_prompt() -> None:
    def turn(agent: int, round: int, prompt: str) -> Turn:
        return Turn(agent, round, "", prompt=({"role": "user", "content": prompt},))

    # Two debates of one question: four first turns share prompt q, each pair has a prompt q_d.
    debates = []
    for number in range(2):
        turns = (turn(0, 0, "q"), turn(1, 0, "q"))
        turns += (turn(2, 1, f"q_d{number}"), turn(3, 1, f"q_d{number}"))
        rules = Protocol(num_agents=4, max_rounds=2)
        debates.append(Transcript(f"d{number}", Question("q", "?"), rules, turns))
    scores = []
    for agent_values in ((1.0, -1.0, 1.0, 1.0), (-1.0, -1.0, 1.0, -1.0)):
        credits = [credit(agent, agent // 2, value) for agent, value in enumerate(agent_values)]
        scores.append(Score(tuple(credits)))
    # q: (1 - 1 - 1 - 1)/4 = -1/2; q_d of debate 0: 1, of debate 1: 0.
    first, second = Grouped(baseline="prompt", streams=GENERATOR)(debates, scores)
    assert list(by_turn(first).values()) == pytest.approx([1.5, -0.5, 0, 0])
    assert list(by_turn(second).values()) == pytest.approx([-0.5, -0.5, 1, -1])
    by_round = Grouped(baseline="question_round", streams=GENERATOR)(debates, scores)
    assert by_turn(by_round[0])[2, 1] == 0.5  # (1 + 1 + 1 - 1)/4: the q_d together


def test_prompt_of_turns_without_messages_is_told_by_its_tokens() -> None:
    turns = []
    for agent, prompt_ids in enumerate(((1, 2), (1, 2), (1, 3))):
        turns.append(Turn(agent, 0, "", reply=Reply("", prompt_ids=prompt_ids)))
    debate = Transcript("d", Question("q", "?"), Protocol(num_agents=3), tuple(turns))
    score = Score((credit(0, 0, 1.0), credit(1, 0, 0.0), credit(2, 0, 9.0)))
    (advantages,) = Grouped(baseline="prompt", streams=GENERATOR)([debate], [score])
    assert list(by_turn(advantages).values()) == [0.5, -0.5, 0.0]


def test_stream_has_the_baseline_that_it_names() -> None:
    streams = {"generator": Stream(baseline="none"), "judge": Stream()}
    judge = (credit(0, 0, 3.0, stream="judge"), credit(1, 0, 1.0, stream="judge"))
    score = Score((credit(0, 0, 3.0), credit(1, 0, 1.0), *judge))
    (turns,) = Grouped(baseline="batch", streams=streams)([transcript()], [score])
    assert by_turn(turns, "generator") == {(0, 0): 3.0, (1, 0): 1.0}
    assert by_turn(turns, "judge") == {(0, 0): 1.0, (1, 0): -1.0}


@pytest.mark.parametrize(("baseline", "expected"), [(None, [0.6, 0.2]), ("batch", [0.2, -0.2])])
def test_centred_credits_keep_their_values_unless_the_stream_names_a_baseline(
    baseline: Baseline | None, expected: list[float]
) -> None:
    config = Grouped(streams={"judge": Stream(baseline=baseline)})
    credits = [credit(a, 0, v, stream="judge", centred=True) for a, v in enumerate((0.6, 0.2))]
    assert list(of_debate(config, *credits, stream="judge").values()) == pytest.approx(expected)


@pytest.mark.parametrize("streams", [{"generator": Stream(weight=0)}, {"judge": Stream()}])
def test_streams_without_weight_or_name_are_left_out(streams: dict[str, Stream]) -> None:
    assert of_debate(Grouped(baseline="none", streams=streams), credit(0, 0, 1.0)) == {}


def test_turns_without_signal_are_left_out_of_the_rounds_that_ask_for_it() -> None:
    # Round 0: 1, 1, 1 are all 0, and stay. Round 1: 1, 0 and a turn without a value.
    credits = [credit(agent, 0, 1.0) for agent in range(3)]
    credits += [credit(0, 1, 1.0), credit(1, 1, 0.0), credit(2, 1, None)]
    turns = tuple(Turn(agent, round, "") for round in range(2) for agent in range(3))
    debate = replace(transcript(), turns=turns)
    config = Grouped(baseline="question_round", streams=GENERATOR, leave_out_zeros=(1,))
    advantages = config.compute([debate], [Score(tuple(credits))], {})
    assert advantages.left_out == [{TurnKey(2, 1)}]
    assert [turn.key for turn in advantages.trained_turns([debate])[0].turns] == [
        turn.key for turn in turns[:5]
    ]


def test_spans_take_the_baseline_of_their_turn_and_none_is_0() -> None:
    credits = (
        credit(0, 0, 0.5, stream="judge"),
        credit(0, 0, 1.0, stream="judge", span=(0, 5)),
        credit(0, 0, 0.2, stream="judge", span=(5, 9)),
        credit(0, 0, None, stream="judge", span=(9, 12)),
        credit(1, 0, 0.1, stream="judge"),
    )
    (turns,) = Grouped(streams={"judge": Stream()})([transcript()], [Score(credits)])
    # Mean of the turns: (.5 + .1)/2 = .3; spans are no members themselves, and their mean, .6, does
    # not count beside their turn's value.
    by_span = {advantage.span: advantage.value for advantage in turns[TurnKey(0, 0)]}
    assert by_span == pytest.approx({None: 0.2, (0, 5): 0.7, (5, 9): -0.1, (9, 12): 0.0})


def test_role_ema_takes_off_what_the_role_earned_lately() -> None:
    # decay 1/2. The first role earns 1, then 0: b = 1/2, A = 1/2; b = 1/4, A = -1/4.
    # The second earns -1, then 3: b = -1/2, A = -1/2; b = 5/4, A = 7/4.
    config = RoleEma(decay=0.5, streams=GENERATOR)
    roles = Protocol(num_agents=2, roles=(AgentRole("pro"), AgentRole("con")))
    debates = [replace(transcript(name), protocol=roles) for name in "de"]
    scores = [
        Score((credit(0, 0, 1.0), credit(1, 0, -1.0))),
        Score((credit(0, 0, 0.0), credit(1, 0, 3.0))),
    ]
    together = config.compute(debates, scores, {})
    assert by_turn(together.turns[0]) == {(0, 0): 0.5, (1, 0): -0.5}
    assert by_turn(together.turns[1]) == {(0, 0): -0.25, (1, 0): 1.75}
    assert together.baselines == {"generator/pro": 0.25, "generator/con": 1.25}
    # In two steps, the second with what the first left, the same comes out.
    first = config.compute(debates[:1], scores[:1], {})
    second = config.compute(debates[1:], scores[1:], first.baselines)
    assert [*first.turns, *second.turns] == list(together.turns)
    assert second.baselines == together.baselines
    # Agents of one role share it: b = 1/2, A = 1/2; b = -1/4, A = -3/4.
    (shared,) = RoleEma(decay=0.5, streams=GENERATOR)([transcript()], scores[:1])
    assert by_turn(shared) == {(0, 0): 0.5, (1, 0): -0.75}
    # The paper's decay, .95, is the default: b = .05, A = .95.
    (default,) = RoleEma(streams=GENERATOR)([transcript()], [Score((credit(0, 0, 1.0),))])
    assert by_turn(default) == pytest.approx({(0, 0): 0.95})


@pytest.mark.parametrize("stop_probability", [0.25, 0.6])
def test_policy_that_chooses_when_to_stop_gets_the_exact_gradient(stop_probability: float) -> None:
    # An agent stops after its first turn with probability p, for a return of 1, or speaks again,
    # for 0 + 2. E[R] = p + 2 (1 - p), so by the logit of p the gradient is p (1 - p) (1 - 2).
    # Two debates of one question, each choice enumerated: their mean takes half off, and the sum of
    # both is exact. Values normalized turn by turn and then summed would give p (1 - p) (1 - 0),
    # the wrong sign: all second turns are worth 2, so none is above their mean, and what stopping
    # loses is not seen.
    p = stop_probability
    returns = {"stop": 1.0, "speak": 2.0}
    first_values = {"stop": 1.0, "speak": 0.0}
    probability = {"stop": p, "speak": 1 - p}
    slope = {"stop": 1 - p, "speak": -p}  # d log probability / d logit
    config = Grouped(streams={"return": Stream(), "generator": Stream()})
    debates = [transcript(name, agents=1) for name in ("a", "b")]
    gradient = {"return": 0.0, "generator": 0.0}
    for choices in product(returns, repeat=2):
        scores = []
        for choice in choices:
            credits = [
                credit(0, 0, returns[choice], stream="return"),
                credit(0, 0, first_values[choice]),
            ]
            if choice == "speak":
                credits.append(credit(0, 1, returns[choice], stream="return"))
                credits.append(credit(0, 1, 2.0))
            scores.append(Score(tuple(credits), (returns[choice],)))
        weight = probability[choices[0]] * probability[choices[1]]
        for choice, turns in zip(choices, config(debates, scores), strict=True):
            for stream in gradient:
                gradient[stream] += weight * by_turn(turns, stream)[0, 0] * slope[choice]
            # Second turns are all worth the same, so none moves.
            assert by_turn(turns).get((0, 1), 0.0) == 0.0
    assert gradient["return"] == pytest.approx(p * (1 - p) * (1 - 2))
    assert gradient["generator"] == pytest.approx(p * (1 - p) * (1 - 0))


VALID = "<solution>7</solution><evaluation>N/A</evaluation><comparison>{}</comparison>"
VOTE_FOR_4 = VALID.format("Agent 4 > Agent 0")
MIXTURE = {
    "peers": {"reward": {"type": "win_rate"}, "weight": 0.5},
    "margin": {"reward": {"type": "win_minus_loss"}, "weight": 0.25},
    "truth": {"reward": {"type": "verifiable"}, "weight": 1.0},
}


def ended_early(*texts: str, agents: int = 3) -> Transcript:
    """A sequential debate that ended with the last of these turns, one an agent."""
    turns = []
    for agent, text in enumerate(texts):
        earlier_turns = tuple(TurnKey(other, 0) for other in range(agent))
        turns.append(Turn(agent, 0, text, shown=earlier_turns))
    rules = Protocol(num_agents=agents, schedule="sequential")
    return Transcript("d", Question("q", "?", "7"), rules, tuple(turns))


@pytest.mark.parametrize("reward", [WinRate(), WinMinusLoss()])
@pytest.mark.parametrize(
    ("debate", "expected"),
    [
        # Returns -1, 0, 0: A = R - mean over all three, of whom two never spoke.
        (ended_early("?"), [-2 / 3]),
        # Returns 0, -1, 0.
        (ended_early(VALID, "?"), [1 / 3, -2 / 3]),
        # Returns 0, 0, 0, -1, 0.
        (ended_early(VALID, VALID, VALID, "?", agents=5), [1 / 5, 1 / 5, 1 / 5, -4 / 5]),
    ],
)
def test_agents_that_never_spoke_count_in_the_mean_of_returns(
    reward: WinRate | WinMinusLoss, debate: Transcript, expected: list[float]
) -> None:
    (turns,) = Grouped()([debate], reward([debate]))
    assert list(by_turn(turns, "return").values()) == pytest.approx(expected)


def test_votes_about_an_agent_that_never_spoke_are_its_return() -> None:
    # Agent 2 votes for agent 4, who never speaks: returns 0, 0, 0, -1, 1, mean 0.
    debate = ended_early(VALID, VALID, VOTE_FOR_4, "?", agents=5)
    (turns,) = Grouped()([debate], WinRate()([debate]))
    assert list(by_turn(turns, "return").values()) == pytest.approx([0, 0, 0, -1])


def by_component(turns: TurnAdvantages, component: str) -> list[float]:
    advantages = [a for of_turn in turns.values() for a in of_turn]
    return [advantage.value for advantage in advantages if advantage.component == component]


def test_components_of_a_mixture_count_agents_that_never_spoke() -> None:
    reward = Mixed.model_validate({"components": MIXTURE})
    failed = ended_early("?")
    (turns,) = Grouped()([failed], reward([failed]))
    # Per turn the failure is alone in its debate, per agent it stands against two zeros.
    assert by_component(turns, "peers") == pytest.approx([-1 / 3])
    assert by_component(turns, "margin") == pytest.approx([-1 / 6])
    assert by_component(turns, "truth") == [0.0]
    voted = ended_early(VALID, VALID, VOTE_FOR_4, "?", agents=5)
    (turns,) = Grouped()([voted], reward([voted]))
    # W/V of the five is 0, 0, 0, 0, 1, with the step reward 0, 0, 0, -1, 1: mean 0, weight 0.5.
    assert by_component(turns, "peers") == pytest.approx([0, 0, 0, -0.5])
    # S/M is -1, 0, 0, 0, 1, with the step reward -1, 0, 0, -1, 1: mean -0.2, weight 0.25.
    assert by_component(turns, "margin") == pytest.approx([-0.2, 0.05, 0.05, -0.2])


def test_turns_that_teach_nothing_are_counted_by_cause() -> None:
    roles = (AgentRole("solver", 2), AgentRole("judge", 1, trains=False))

    def debate(question: str, *agents: int) -> Transcript:
        turns = tuple(Turn(agent, 0, "said") for agent in agents)
        return Transcript("d", Question(question, "?"), Protocol(num_agents=3, roles=roles), turns)

    half = [Advantage("generator", 0.5)]
    zero = [Advantage("generator", 0.0)]
    first, second = TurnKey(0, 0), TurnKey(1, 0)
    # Agent 2 is not trained on. Of q agent 1 is at its baseline; nobody's of p has an advantage.
    debates = [debate("q", 0, 1, 2), debate("q", 0), debate("p", 0, 1)]
    turns = [{first: half, second: zero}, {}, {first: zero, second: zero}]
    assert Advantages(turns, {"x": 2.0}).metrics(debates) == {
        "advantage/baseline/x": 2.0,
        "advantage/zero/share": 4 / 5,
        "advantage/zero/no_value": 1 / 5,
        "advantage/zero/no_contrast": 2 / 5,
        "advantage/zero/at_baseline": 1 / 5,
    }
    assert Advantages([]).metrics([]) == {}


TOKENIZER = word_tokenizer()
UNREADABLE = "no Agent 1 > Agent 2 <comparison> Agent 0 = Agent 2 </comparison> ok"
NUM_WORDS = 14
VERDICT = Contract("verdict", ("answer", "critique", "verdict"), None)
TRIED_CONTRACTS = (
    *(CONTRACTS[name] for name in ("three_section", "five_section", "boxed", "answer_line")),
    Contract("poem", ("poem", "comparison"), None),
    VERDICT,
    Contract("reasons", ("evaluation", "solution"), None),
    Contract("own_box", (), None, "boxed"),
)
TRIED_SECTIONS = (
    None,
    ("solution",),
    ("poem", "answer"),
    {"comparison": 0.5, "solution": 3.0},
)
V2_MIXTURE = {
    "votes": {"reward": {"type": "v2", "consensus": "none"}, "weight": 0.75},
    "truth": {"reward": {"type": "verifiable"}, "weight": 0.25},
}
TRIED_REWARDS: Sequence[Mapping[str, Any]] = (
    {"type": "v2"},
    {"type": "v2", "consensus": "peer_prediction", "judge_credit": "segment"},
    {"type": "win_rate"},
    {"type": "win_minus_loss"},
    {"type": "bradley_terry"},
    {"type": "verifiable"},
    {"type": "partial_trajectory"},
    {"type": "mixed", "components": V2_MIXTURE},
)


def failed_debate(contract: Contract) -> Transcript:
    """One turn that no contract can read, after a prompt of three tokens."""
    ids = tuple(TOKENIZER.encode(UNREADABLE, add_special_tokens=False))
    reply = Reply(TOKENIZER.decode(ids), "stop", (1, 2, 3), ids, (0.0,) * len(ids))
    turn = Turn(1, 0, reply.text, failure="no_solution", reply=reply)
    rules = Protocol(num_agents=3, contract=contract)
    return Transcript("d", Question("q", "?", "7", {"kind": "number"}), rules, (turn,))


@pytest.mark.parametrize("reward", TRIED_REWARDS, ids=lambda reward: str(reward["type"]))
def test_value_of_a_failed_turn_holds_for_all_its_tokens(reward: Mapping[str, Any]) -> None:
    score_debates = TypeAdapter(RewardChoice).validate_python(reward)
    stream = "return" if "win_" in reward["type"] else "generator"
    for contract, sections in product(TRIED_CONTRACTS, TRIED_SECTIONS):
        debate = failed_debate(contract)
        streams = {name: Stream(sections=sections) for name in ("generator", "judge", "return")}
        advantages = Grouped(baseline="none", streams=streams)
        turns = advantages([debate], score_debates([debate]))
        batch = build_batch([debate], turns, streams, TOKENIZER)
        (row,) = batch.rows
        values = [0.0] * 3 + [-1.0] * NUM_WORDS
        assert row.over_tokens("advantages").tolist() == values, (contract, sections)
        # The denominators of the stream that has the value count all of them.
        bit = batch.streams.index(stream)
        assert (row.over_tokens("streams")[3:] >> bit & 1).all(), (contract, sections)
