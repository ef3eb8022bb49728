"""The rewards of CoNL, on one conversation that is worked by hand."""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from statistics import fmean
from typing import Any

import pytest
from tests.counted_calls import num_calls
from tests.rewards.debates import (
    numbers,
    play_out,
    round_values,
    score_of,
    span_values,
    turn_values,
)

from debate_protocol.forms import Conl
from debate_protocol.types import Question, Reply, Transcript, TurnRequest
from debate_rewards import ConlReward
from debate_rewards.decisions import bradley_terry
from debate_rewards.metrics import debate_metrics
from debate_rewards.reward import read_debate
from debate_rewards.strengths import log_strengths, wins_of
from debate_rewards.votes import Vote, ballots

# By judge. Won of six votes, none by the agent itself: blind 5.5, 4, 2, .5; last 5, 1.5, 5, .5.
BLIND = ("1>2 1>3 2>3", "0>2 0>3 2>3", "0>1 0=3 1>3", "0>1 1>2 0>2")
LAST = ("1<2 1>3 2>3", "0>2 0>3 2>3", "0>1 0>3 1=3", "0<2 1<2 0>1")
CRITIQUES = {0: "Agent 2: no. Agent 1: look again."}
QUESTION = Question("q", "?", "1", {"kind": "number"})
VALUES: Any = ["win_fraction", "bradley_terry"]


def conversation(
    blind: Sequence[str] = BLIND,
    last: Sequence[str] = LAST,
    critiques: Mapping[int, str] = CRITIQUES,
    solutions: Sequence[str] = ("1111", "1111"),
    **settings: Any,
) -> Transcript:
    """Play CoNL with these rankings by judge, and first and revised solutions by agent."""

    def speak(request: TurnRequest) -> Reply:
        if request.round in (0, 2):
            solution = solutions[request.round // 2][request.agent]
            return Reply(f"<solution>\\boxed{{{solution}}}</solution>")
        ranking = (blind if request.round == 1 else last)[request.agent]
        votes = [f"Agent {vote[0]} {vote[1]} Agent {vote[2]}" for vote in ranking.split()]
        text = "<comparison>" + "\n".join(votes) + "</comparison>"
        if request.round == 1:
            text += f"<evaluation>{critiques.get(request.agent, 'N/A')}</evaluation>"
        return Reply(text)

    form = Conl(personas="none", num_agents=len(blind), **settings)
    return play_out(form.start(QUESTION, seed=0), speak)


def conl_score(transcript: Transcript, **settings: Any) -> Any:
    return score_of(ConlReward(**settings), transcript)


@pytest.mark.parametrize(
    ("settings", "first_values"),
    [
        # Agent 2 alone has risen, from 2 to 5: its first solution earns the acceptance.
        ({}, [5 / 6, 1.5 / 6, 5 / 6 + 0.5, 0.5 / 6]),
        ({"first_solutions": "blind"}, [5.5 / 6, 4 / 6, 2 / 6 + 0.5, 0.5 / 6]),
    ],
)
def test_solutions_are_paid_by_a_ranking(
    settings: dict[str, Any], first_values: list[float]
) -> None:
    score = conl_score(conversation(), acceptance=0.5, **settings)
    assert round_values(score, 0) == pytest.approx(first_values)
    assert round_values(score, 2) == pytest.approx([5 / 6, 1.5 / 6, 5 / 6, 0.5 / 6])


@pytest.mark.parametrize(
    ("settings", "about_2", "about_1"),
    [
        # Without agent 0's own votes: of 2 from 1 to 3 of four, of 1 from 2 to .5.
        ({}, 0.5, 0.0),
        ({"diagnostic": "falls"}, 0.0, 0.375),
        ({"consensus": "inclusive"}, 0.5, 0.0),
        ({"consensus": "inclusive", "diagnostic": "falls"}, 0.0, 2.5 / 6),
    ],
)
def test_critiques_are_paid_by_what_became_of_their_targets(
    settings: dict[str, Any], about_2: float, about_1: float
) -> None:
    transcript = conversation()
    score = conl_score(transcript, **settings)
    mean = pytest.approx((about_2 + about_1) / 2)
    assert round_values(score, 1, "critic") == [mean, None, None, None]
    sentences = span_values(score, transcript, 0, 1, "critic")
    assert [text.strip() for text, _ in sentences] == ["Agent 2: no.", "Agent 1: look again."]
    assert [value for _, value in sentences] == pytest.approx([about_2, about_1])


@pytest.mark.parametrize(
    ("consensus", "line_values"),
    [
        # Two judges a pair: of 0 and 2 they differ, of 1 and 3 one of them says =.
        ("leave_one_out", "1 none 1 -1 1 1 1 1 none -1 1 1"),
        ("inclusive", "1 1 1 none 1 1 1 1 none none 1 1"),
    ],
)
def test_votes_are_paid_with_the_majority_of_the_last_ranking_alone(
    consensus: Any, line_values: str
) -> None:
    score = conl_score(conversation(), judge_credit="line", consensus=consensus)
    # The blind ranking earns nothing.
    assert {round_number for _, round_number in turn_values(score, "judge")} == {3}
    judge_credits = [credit for credit in score.credits if credit.stream == "judge"]
    values = [credit.value for credit in judge_credits if credit.span is not None]
    assert values == numbers(line_values)


@pytest.mark.parametrize("values", VALUES)
def test_two_agents_are_valued_by_each_other(values: Any) -> None:
    # Each prefers its own solution at first; then agent 0 gives in, and agent 1 does not.
    transcript = conversation(
        blind=("0>1", "0<1"),
        last=("0<1", "0<1"),
        critiques={0: "Agent 1: no. Agent 0: mine.", 1: "Agent 0: no."},
        ranks_own=True,
    )
    score = conl_score(transcript, values=values)
    # Agent 0 alone votes on agent 1: V is 0 and then 1. Agent 1 alone on agent 0: 0 and 0.
    for round_number in (0, 2):
        assert round_values(score, round_number) == numbers("0 1")
    # Without a critic's own votes nobody has voted on the other; of itself it criticizes nothing.
    assert round_values(score, 1, "critic") == [None, None]
    inclusive = conl_score(transcript, values=values, consensus="inclusive")
    assert round_values(inclusive, 1, "critic") == numbers("1 0")
    assert inclusive.metrics["conl/critiques"] == 2
    # With the other's vote alone both agree: both said the same in the end.
    assert round_values(score, 3, "judge") == numbers("1 1")


def test_a_blind_ranking_is_never_the_last() -> None:
    agreed = conversation(solutions=("0123", "1111"), stop_when_agreed=True)
    assert {turn.round for turn in agreed.turns} == {0, 1, 2}
    score = conl_score(agreed, format_penalty=None)
    assert {credit.value for credit in score.credits} == {None}
    assert "conl/agreement_after" not in score.metrics


# ---- any conversation -----------------------------------------------------------------------


def value_by_definition(votes: Sequence[Vote], agent: int, values: str) -> float | None:
    """Value an agent by all votes but its own on itself, counted again."""
    counted = [vote for vote in votes if not (vote.is_own and vote.judge.agent == agent)]
    about = [vote for vote in counted if agent in (vote.left.agent, vote.right.agent)]
    if not about:
        return None
    if values == "win_fraction":
        points_of_left = {">": 1.0, "=": 0.5, "<": 0.0}
        points = []
        for vote in about:
            left_points = points_of_left[vote.verdict]
            points.append(left_points if agent == vote.left.agent else 1 - left_points)
        return fmean(points)
    strengths = log_strengths(wins_of(counted, "half", lambda key: key.agent), 1.0)
    low = min(strengths.values())
    high = max(strengths.values())
    return 0.5 if high - low < 1e-8 else (strengths[agent] - low) / (high - low)


def drawn_rankings(rng: random.Random, num_agents: int, ranks_own: bool) -> list[str]:
    rankings = []
    for judge in range(num_agents):
        ranked = [agent for agent in range(num_agents) if ranks_own or agent != judge]
        votes = []
        for first, second in combinations(ranked, 2):
            if rng.random() < 0.8:
                votes.append(f"{first}{rng.choice('>=<')}{second}")
        rankings.append(" ".join(votes))
    return rankings


def critique_of_next(num_agents: int) -> dict[int, str]:
    return {agent: f"Agent {(agent + 1) % num_agents}: no." for agent in range(num_agents)}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("ranks_own", [False, True])
def test_critics_are_paid_as_if_all_votes_were_counted_again_for_each(
    values: Any, ranks_own: bool
) -> None:
    rng = random.Random(f"{values} {ranks_own}")
    consensus_rules: Any = ["leave_one_out", "inclusive"]
    for _, consensus in product(range(8), consensus_rules):
        num_agents = rng.randint(3, 6)
        transcript = conversation(
            blind=drawn_rankings(rng, num_agents, ranks_own),
            last=drawn_rankings(rng, num_agents, ranks_own),
            critiques=critique_of_next(num_agents),
            solutions=["1" * num_agents] * 2,
            ranks_own=ranks_own,
        )
        votes_by_round: dict[int, list[Vote]] = {}
        for key, ballot in ballots(read_debate(transcript)).items():
            votes_by_round.setdefault(key.round, []).extend(ballot.votes)
        score = conl_score(transcript, values=values, consensus=consensus)
        expected = []
        for agent in range(num_agents):
            expected.append(value_by_definition(votes_by_round[3], agent, values))
        assert round_values(score, 2) == pytest.approx(expected, abs=1e-8)

        for critic, critic_value in enumerate(round_values(score, 1, "critic")):
            target_values = []
            for round_number in (1, 3):
                votes = votes_by_round[round_number]
                if consensus == "leave_one_out":
                    votes = [vote for vote in votes if vote.judge.agent != critic]
                target = (critic + 1) % num_agents
                target_values.append(value_by_definition(votes, target, values))
            before, after = target_values
            rise = None if before is None or after is None else max(0.0, after - before)
            assert critic_value == pytest.approx(rise, abs=1e-8)


@pytest.mark.parametrize("values", VALUES)
def test_votes_are_not_counted_again_for_each_critic(values: Any) -> None:
    def calls_for(num_agents: int) -> int:
        rankings = []
        for judge in range(num_agents):
            ranked = [agent for agent in range(num_agents) if agent != judge]
            rankings.append(" ".join(f"{a}>{b}" for a, b in combinations(ranked, 2)))
        solutions = ["1" * num_agents] * 2
        transcript = conversation(rankings, rankings, critique_of_next(num_agents), solutions)
        return num_calls(lambda: conl_score(transcript, values=values))

    calls_for(5)  # What is computed once and cached.
    # Of 10 agents there are 12 times the votes of 5. Counted again for each critic the votes take
    # 10.2 and 10.6 times the calls; counted once 4.1 and 5.5 times, as some calls serve many votes.
    assert calls_for(10) < 8 * calls_for(5)


# ---- figures --------------------------------------------------------------------------------


def test_critiques_correct_and_harm() -> None:
    # Of 1, right and then wrong, two critiques; of 2, wrong and then right, one; of 3, wrong and
    # still wrong, one. Agent 2 is named by itself, which is no critique.
    critiques = {
        0: "Agent 1: no. Agent 2: no.",
        2: "Agent 1: again. Agent 2: mine.",
        3: "Agent 0: fine.",
        1: "Agent 3: no.",
    }
    metrics = debate_metrics([conversation(critiques=critiques, solutions=("1189", "1719"))])
    assert metrics["critique/corrects"] == 1 / 2  # Agent 2 of agents 2 and 3.
    assert metrics["critique/harms"] == 2 / 3  # Agent 1 twice, and not agent 0.
    assert metrics["accuracy/round_0"] == metrics["accuracy/round_2"] == 2 / 4
    # Minds change from one solution to the next.
    assert metrics["flips/wrong_to_right/round_2"] == 1 / 4
    assert metrics["flips/right_to_wrong/round_2"] == 1 / 4


def test_votes_for_oneself_count_for_others_alone() -> None:
    rankings = ("0>1 0>2 1>2", "1>0 1>2 0>2", "2>0 2>1 0=1")
    score = conl_score(conversation(rankings, rankings, {}, ranks_own=True))
    # On agent 0: 1>0, 0>2 of agent 1; 2>0, 0=1 of agent 2. So 1.5 of 4, and agent 1 the same; on
    # agent 2: 0>2, 1>2 of agent 0; 1>2, 0>2 of agent 1.
    for round_number in (0, 2):
        assert round_values(score, round_number) == numbers("3/8 3/8 0")
    rankings = ("0=1 0=2 1=2", "1>0 1>2 0>2", "0=1 0=2 1=2")
    decided = conversation(rankings, rankings, {}, ("012", "012"), ranks_own=True)
    assert bradley_terry(decided, 0) == "0"
    metrics = debate_metrics([decided])
    assert "judge/wins/agent_1" not in metrics
    assert (metrics["judge/wins/agent_0"], metrics["judge/wins/agent_2"]) == (0.5, 0)
