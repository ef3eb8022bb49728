"""From credits to advantages: every number here is worked by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from debate_protocol.types import AgentRole, Protocol, Question, Reply, Transcript, Turn, TurnKey
from debate_rewards.reward import Credit, Score
from debate_train.advantages import Baseline, Grouped, RoleEma, Stream

pytestmark = pytest.mark.numeric

GENERATOR = {"generator": Stream()}


def transcript(name: str, question: str = "q", agents: int = 3) -> Transcript:
    return Transcript(name, Question(question, "?"), Protocol(num_agents=agents), ())


def gen(agent: int, round: int, value: float | None, **more: object) -> Credit:
    return Credit(agent, round, "generator", value, **more)  # type: ignore[arg-type]


def values(
    config: Grouped, credits: Sequence[Sequence[Credit]], questions: Sequence[str] = ()
) -> list[dict[tuple[int, int], float]]:
    """The one advantage of each turn, per debate."""
    names = questions or [f"q{i}" for i in range(len(credits))]
    found = config(
        [transcript(f"d{i}", name) for i, name in enumerate(names)],
        [Score(tuple(own)) for own in credits],
    )
    return [{tuple(k): only.value for k, (only,) in turns.items()} for turns in found]


def test_shares_of_streams_are_refused_when_they_exceed_the_whole() -> None:
    streams = {"generator": Stream(share=0.7), "judge": Stream(share=0.3)}
    assert Grouped(streams=streams).shares == {"generator": 0.7, "judge": 0.3}
    with pytest.raises(ValueError, match=r"found shares generator 0\.7, judge 0\.4; expected"):
        Grouped(streams=streams | {"judge": Stream(share=0.4)})
    # A stream of weight 0 is left out, so its share is nobody's.
    assert Grouped(streams={"judge": Stream(weight=0, share=0.4)}).shares == {}


TWO_DEBATES = (
    (gen(0, 0, 1.0), gen(1, 0, 0.0), gen(0, 1, 0.5), gen(1, 1, -0.5)),
    (gen(0, 0, -1.0), gen(1, 0, 3.0)),
)


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        # Means: debate 0 (1+0+.5-.5)/4 = .25; debate 1 (-1+3)/2 = 1.
        (
            "debate",
            [{(0, 0): 0.75, (1, 0): -0.25, (0, 1): 0.25, (1, 1): -0.75}, {(0, 0): -2, (1, 0): 2}],
        ),
        # Debate 0: round 0 mean .5, round 1 mean 0; debate 1 asks another question: mean 1.
        (
            "question_round",
            [{(0, 0): 0.5, (1, 0): -0.5, (0, 1): 0.5, (1, 1): -0.5}, {(0, 0): -2, (1, 0): 2}],
        ),
        # All six: (1+0+.5-.5-1+3)/6 = .5
        (
            "batch",
            [
                {(0, 0): 0.5, (1, 0): -0.5, (0, 1): 0.0, (1, 1): -1.0},
                {(0, 0): -1.5, (1, 0): 2.5},
            ],
        ),
        (
            "none",
            [{(0, 0): 1, (1, 0): 0, (0, 1): 0.5, (1, 1): -0.5}, {(0, 0): -1, (1, 0): 3}],
        ),
    ],
)
def test_advantages_compare_within_the_group(
    baseline: Baseline, expected: list[dict[tuple[int, int], float]]
) -> None:
    found = values(Grouped(baseline=baseline, streams=GENERATOR), TWO_DEBATES)
    assert found == [pytest.approx(own) for own in expected]


def test_round_joins_debates_of_one_question() -> None:
    # Round 0 of both debates: (1+0-1+3)/4 = .75; round 1: (.5-.5)/2 = 0.
    config = Grouped(baseline="question_round", streams=GENERATOR)
    first, second = values(config, TWO_DEBATES, ("q", "q"))
    assert first == pytest.approx({(0, 0): 0.25, (1, 0): -0.75, (0, 1): 0.5, (1, 1): -0.5})
    assert second == pytest.approx({(0, 0): -1.75, (1, 0): 2.25})


def test_std_divides_by_the_sample_deviation() -> None:
    # 0, 0, 3: mean 1, squares 1+1+4 = 6, over n-1 = 2: variance 3, deviation √3.
    credits = [(gen(0, 0, 0.0), gen(1, 0, 0.0), gen(2, 0, 3.0))]
    (found,) = values(Grouped(scale="std", streams=GENERATOR), credits)
    scale = 1 / (math.sqrt(3) + 1e-6)
    assert found == pytest.approx({(0, 0): -scale, (1, 0): -scale, (2, 0): 2 * scale}, rel=1e-12)


def test_std_keeps_its_epsilon_when_spread_is_tiny() -> None:
    # ±1e-6: mean 0, deviation √2·1e-6; 1e-6 / (√2·1e-6 + 1e-6) = 1/(√2 + 1)
    (found,) = values(
        Grouped(scale="std", streams=GENERATOR), [(gen(0, 0, 1e-6), gen(1, 0, -1e-6))]
    )
    assert found[0, 0] == pytest.approx(1 / (math.sqrt(2) + 1))


@pytest.mark.parametrize("scale", ["none", "std"])
@pytest.mark.parametrize("value", [0.1, 1 / 3])
def test_advantages_are_exactly_0_when_there_is_no_spread(scale: str, value: float) -> None:
    config = Grouped.model_validate({"scale": scale, "streams": GENERATOR})
    (found,) = values(config, [[gen(agent, 0, value) for agent in range(3)]])
    assert set(found.values()) == {0.0}


@pytest.mark.parametrize("scale", ["none", "std"])
def test_single_member_gets_0(scale: str) -> None:
    config = Grouped.model_validate({"scale": scale, "streams": GENERATOR})
    (found,) = values(config, [(gen(0, 0, -0.5), gen(1, 0, None), gen(2, 0, None))])
    assert found == {(0, 0): 0.0}


def test_turns_without_value_join_the_mean_as_0_when_a_member_has_a_penalty() -> None:
    # -0.5 and two zeros: mean -1/6. The penalty keeps -1/2 + 1/6 = -1/3; the others no gradient.
    credits = [
        (
            gen(0, 0, -0.5, penalty=True),
            gen(1, 0, None),
            gen(2, 0, None),
            gen(3, 0, None, expected=False),
        )
    ]
    (found,) = values(Grouped(streams=GENERATOR), credits)
    assert found == pytest.approx({(0, 0): -1 / 3})


def test_joined_zeros_count_in_the_deviation() -> None:
    # -1, 0, 0: mean -1/3; squares 4/9+1/9+1/9 = 2/3; over 2: 1/3. (-1+1/3)/√(1/3) = -2/√3
    credits = [(gen(0, 0, -1.0, penalty=True), gen(1, 0, None), gen(2, 0, None))]
    (found,) = values(Grouped(scale="std", streams=GENERATOR), credits)
    assert found == pytest.approx({(0, 0): -2 / math.sqrt(3)}, rel=1e-5)


def test_turns_without_value_stay_out_when_nobody_has_a_penalty() -> None:
    credits = [(gen(0, 0, 1.0), gen(1, 0, 0.0), gen(2, 0, None))]
    (found,) = values(Grouped(streams=GENERATOR), credits)
    assert found == pytest.approx({(0, 0): 0.5, (1, 0): -0.5})  # mean over two, not three


def test_penalty_reaches_only_its_own_group_and_stream() -> None:
    penalty = Credit(0, 0, "judge", -0.5, penalty=True)
    credits = [(penalty, gen(0, 0, 1.0), gen(1, 0, 0.0), gen(2, 0, None)), (gen(0, 0, 2.0),)]
    streams = {"generator": Stream(), "judge": Stream()}
    found = Grouped(baseline="debate", streams=streams)(
        [transcript("d0"), transcript("d1")], [Score(tuple(own)) for own in credits]
    )
    first = {key: {a.stream: a.value for a in own} for key, own in found[0].items()}
    assert first[TurnKey(0, 0)] == {"judge": 0.0, "generator": 0.5}
    assert first[TurnKey(1, 0)] == {"generator": -0.5}


def mixed(value: float | None, component: str, agent: int) -> Credit:
    weight = 0.7 if component == "peers" else 0.3
    return gen(agent, 0, value, component=component, weight=weight)


def added(found: dict[TurnKey, list]) -> dict[int, float]:  # type: ignore[type-arg]
    return {key.agent: sum(a.value for a in own) for key, own in found.items()}


def test_components_are_centred_apart_then_added() -> None:
    # peers 1, 0, None: mean .5; truth 1, 1, -1: mean 1/3; agent 3 has None in both: masked.
    peers = (1.0, 0.0, None, None)
    truth = (1.0, 1.0, -1.0, None)
    credits = [mixed(v, "peers", a) for a, v in enumerate(peers)]
    credits += [mixed(v, "truth", a) for a, v in enumerate(truth)]
    (found,) = Grouped(streams=GENERATOR)([transcript("d")], [Score(tuple(credits))])
    # .7·.5 + .3·2/3 = .55; .7·(-.5) + .3·2/3 = -.15; 0 + .3·(-4/3) = -.4
    assert added(found) == pytest.approx({0: 0.55, 1: -0.15, 2: -0.4})


def test_return_is_one_member_per_agent_and_reaches_all_its_turns() -> None:
    # Agent 0 spoke three times, agent 1 once: mean (1 + 0)/2 = .5, not (3·1 + 0)/4.
    credits = [[Credit(0, r, "return", 1.0) for r in range(3)] + [Credit(1, 0, "return", 0.0)]]
    config = Grouped(streams={"return": Stream()})
    (found,) = config([transcript("d", agents=2)], [Score(tuple(credits[0]))])
    by_turn = {tuple(key): only.value for key, (only,) in found.items()}
    assert by_turn == pytest.approx({(0, 0): 0.5, (0, 1): 0.5, (0, 2): 0.5, (1, 0): -0.5})


def test_prompt_compares_answers_to_one_prompt() -> None:
    def told(agent: int, round: int, content: str) -> Turn:
        return Turn(agent, round, "", prompt=({"role": "user", "content": content},))

    # Two debates of one question: four first turns share prompt q, each pair has its own q_d.
    rules = Protocol(num_agents=4, max_rounds=2)
    debates = [
        Transcript(
            f"d{i}",
            Question("q", "?"),
            rules,
            (told(0, 0, "q"), told(1, 0, "q"), told(2, 1, f"q_d{i}"), told(3, 1, f"q_d{i}")),
        )
        for i in range(2)
    ]
    right = [(1, -1, 1, 1), (-1, -1, 1, -1)]
    scores = [
        Score(tuple(gen(a, int(a > 1), float(v)) for a, v in enumerate(own))) for own in right
    ]
    found = Grouped(baseline="prompt", streams=GENERATOR)(debates, scores)
    # q: (1 - 1 - 1 - 1)/4 = -1/2; q_d of debate 0: 1, of debate 1: 0.
    by_debate = [[only.value for _, (only,) in sorted(turns.items())] for turns in found]
    assert by_debate == [pytest.approx([1.5, -0.5, 0, 0]), pytest.approx([-0.5, -0.5, 1, -1])]
    rounds = Grouped(baseline="question_round", streams=GENERATOR)(debates, scores)
    assert rounds[0][TurnKey(2, 1)][0].value == 0.5  # (1 + 1 + 1 - 1)/4: the q_d together


def test_prompt_of_turns_without_messages_is_told_by_its_tokens() -> None:
    replies = [Reply("", prompt_ids=ids) for ids in ((1, 2), (1, 2), (1, 3))]
    turns = tuple(Turn(agent, 0, "", reply=reply) for agent, reply in enumerate(replies))
    debate = Transcript("d", Question("q", "?"), Protocol(num_agents=3), turns)
    score = Score(tuple(gen(agent, 0, value) for agent, value in enumerate((1.0, 0.0, 9.0))))
    (found,) = Grouped(baseline="prompt", streams=GENERATOR)([debate], [score])
    assert [only.value for _, (only,) in sorted(found.items())] == [0.5, -0.5, 0.0]


def test_stream_has_the_baseline_it_says_itself() -> None:
    streams = {"generator": Stream(baseline="none"), "judge": Stream()}
    judge = [Credit(0, 0, "judge", 3.0), Credit(1, 0, "judge", 1.0)]
    score = Score((gen(0, 0, 3.0), gen(1, 0, 1.0), *judge))
    (found,) = Grouped(baseline="batch", streams=streams)([transcript("d")], [score])
    assert [a.value for a in found[TurnKey(0, 0)]] == [3.0, 1.0]
    assert [a.value for a in found[TurnKey(1, 0)]] == [1.0, -1.0]


@pytest.mark.parametrize(("baseline", "expected"), [(None, [0.6, 0.2]), ("batch", [0.2, -0.2])])
def test_centred_credits_keep_their_values_unless_the_stream_says_otherwise(
    baseline: Baseline | None, expected: list[float]
) -> None:
    judge = [Credit(a, 0, "judge", v, centred=True) for a, v in enumerate((0.6, 0.2))]
    (found,) = values(Grouped(streams={"judge": Stream(baseline=baseline)}), [judge])
    assert list(found.values()) == pytest.approx(expected)


@pytest.mark.parametrize("streams", [{"generator": Stream(weight=0)}, {"judge": Stream()}])
def test_streams_without_weight_or_name_are_left_out(streams: dict[str, Stream]) -> None:
    assert values(Grouped(baseline="none", streams=streams), [[gen(0, 0, 1.0)]]) == [{}]


def test_lines_take_the_baseline_of_their_turn_and_none_is_0() -> None:
    # Turn values 1/2 and -1/2: mean 0... with lines 1 and 0 of the first, and one without a value.
    lines = [
        Credit(0, 0, "judge", 0.5),
        Credit(0, 0, "judge", 1.0, span=(0, 5)),
        Credit(0, 0, "judge", 0.0, span=(5, 9)),
        Credit(0, 0, "judge", None, span=(9, 12)),
        Credit(1, 0, "judge", 0.1),
    ]
    (found,) = Grouped(streams={"judge": Stream()})([transcript("d")], [Score(tuple(lines))])
    # Mean of the turns: (.5 + .1)/2 = .3; the lines are no members of their own.
    by_span = {a.span: a.value for a in found[TurnKey(0, 0)]}
    assert by_span == pytest.approx({None: 0.2, (0, 5): 0.7, (5, 9): -0.3, (9, 12): 0.0})


def test_role_ema_takes_off_what_the_role_earned_lately() -> None:
    # decay 1/2. The first role earns 1, then 0: b = 1/2, A = 1/2; b = 1/4, A = -1/4.
    # The second earns -1, then 3: b = -1/2, A = -1/2; b = 5/4, A = 7/4.
    config = RoleEma(decay=0.5, streams=GENERATOR)
    rules = Protocol(num_agents=2, roles=(AgentRole("pro"), AgentRole("con")))
    debates = [replace(transcript(name), protocol=rules) for name in "de"]
    scores = [Score((gen(0, 0, 1.0), gen(1, 0, -1.0))), Score((gen(0, 0, 0.0), gen(1, 0, 3.0)))]
    both = config.compute(debates, scores, {})
    found = [{tuple(k): a.value for k, (a,) in one.items()} for one in both.turns]
    assert found == [{(0, 0): 0.5, (1, 0): -0.5}, {(0, 0): -0.25, (1, 0): 1.75}]
    assert both.baselines == {"generator/pro": 0.25, "generator/con": 1.25}
    # In two steps, the second with what the first left, the same comes out.
    first = config.compute(debates[:1], scores[:1], {})
    second = config.compute(debates[1:], scores[1:], first.baselines)
    assert [*first.turns, *second.turns] == list(both.turns)
    assert second.baselines == both.baselines
    # Agents of one role share it: b = 1/2, A = 1/2; b = -1/4, A = -3/4.
    (shared,) = RoleEma(decay=0.5, streams=GENERATOR)([transcript("d")], scores[:1])
    assert [a.value for found in shared.values() for a in found] == [0.5, -0.75]


@pytest.mark.parametrize("stops", [0.25, 0.6])
def test_policy_that_chooses_when_to_stop_gets_the_exact_gradient(stops: float) -> None:
    # An agent stops after its first turn with probability p, for a return of 1, or speaks again,
    # for 0 + 2. E[R] = p + 2 (1 - p), so by the logit of p the gradient is p (1 - p) (1 - 2).
    # Two debates of one question, each choice enumerated: their mean takes half off, and the sum of
    # both is exact. Values normalized turn by turn and then summed would give p (1 - p) (1 - 0),
    # the wrong sign: all second turns are worth 2, so none is above their mean, and what stopping
    # loses is not seen.
    returns = {"stop": 1.0, "speak": 2.0}
    first_values = {"stop": 1.0, "speak": 0.0}
    probability = {"stop": stops, "speak": 1 - stops}
    score = {"stop": 1 - stops, "speak": -stops}  # d log probability / d logit
    config = Grouped(streams={"return": Stream(), "generator": Stream()})
    of_return = of_first_turn = 0.0
    for choices in product(returns, repeat=2):
        credits = []
        for choice in choices:
            last_round = 0 if choice == "stop" else 1
            own = [Credit(0, r, "return", returns[choice]) for r in range(last_round + 1)]
            own += [gen(0, 0, first_values[choice])] + [gen(0, 1, 2.0)] * last_round
            credits.append(Score(tuple(own), (returns[choice],)))
        debates = [transcript(name, "q", agents=1) for name in ("a", "b")]
        weight = probability[choices[0]] * probability[choices[1]]
        for choice, turns in zip(choices, config(debates, credits), strict=True):
            by_stream = {one.stream: one.value for one in turns[TurnKey(0, 0)]}
            of_return += weight * by_stream["return"] * score[choice]
            of_first_turn += weight * by_stream["generator"] * score[choice]
            # A later turn's advantage is its own: all are worth the same, so none moves.
            assert [a.value for a in turns.get(TurnKey(0, 1), ()) if a.stream == "generator"] in (
                [],
                [0.0],
            )
    assert of_return == pytest.approx(stops * (1 - stops) * (1 - 2))
    assert of_first_turn == pytest.approx(stops * (1 - stops) * (1 - 0))
