"""The rewards of CoNL, on one conversation that is worked by hand."""

import cProfile
import pstats
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import fmean
from types import MappingProxyType
from typing import Any

import pytest

from debate_protocol.forms import Conl
from debate_protocol.types import Question, Reply, Transcript, TurnRequest
from debate_rewards import ConlReward, Score
from debate_rewards.decisions import bradley_terry
from debate_rewards.metrics import debate_metrics
from debate_rewards.reward import read_debate
from debate_rewards.strengths import log_strengths, wins_of
from debate_rewards.votes import Vote, ballots

BLIND = {0: "1>2 1>3 2>3", 1: "0>2 0>3 2>3", 2: "0>1 0=3 1>3", 3: "0>1 1>2 0>2"}
LAST = {0: "1<2 1>3 2>3", 1: "0>2 0>3 2>3", 2: "0>1 0>3 1=3", 3: "0<2 1<2 0>1"}
# Won of six votes, none by the agent itself: blind 5.5, 4, 2, .5; last 5, 1.5, 5, .5.
CRITIQUES = {0: "Agent 2: no. Agent 1: look again."}


def held(
    blind: Mapping[int, str] = BLIND,
    last: Mapping[int, str] = LAST,
    critiques: Mapping[int, str] = CRITIQUES,
    answers: Mapping[int, str] = MappingProxyType({}),
    **form: Any,
) -> Transcript:
    def speak(request: TurnRequest) -> Reply:
        if request.round in (0, 2):
            said = answers.get(request.agent, "1 1").split()[request.round // 2]
            return Reply(f"<solution>\\boxed{{{said}}}</solution>")
        cast = (blind if request.round == 1 else last)[request.agent].split()
        votes = "\n".join(f"Agent {vote[0]} {vote[1]} Agent {vote[2]}" for vote in cast)
        text = f"<comparison>{votes}</comparison>"
        said = critiques.get(request.agent, "N/A")
        return Reply(text + (f"<evaluation>{said}</evaluation>" if request.round == 1 else ""))

    run = Conl(personas="none", **form).start(Question("q", "?", "1", {"kind": "number"}), seed=0)
    requests: Any = next(run)
    try:
        while True:
            requests = run.send([speak(request) for request in requests])
    except StopIteration as end:
        transcript: Transcript = end.value
        return transcript


def score(transcript: Transcript, **settings: Any) -> Score:
    (found,) = ConlReward(**settings)([transcript])
    return found


def turns(found: Score, stream: str) -> dict[tuple[int, int], float | None]:
    """Return the values of whole turns."""
    whole = [c for c in found.credits if c.stream == stream and c.span is None]
    return {(c.agent, c.round): c.value for c in whole}


def test_solutions_are_paid_by_the_last_ranking() -> None:
    found = turns(score(held(), acceptance=0.5), "generator")
    values = [5 / 6, 1.5 / 6, 5 / 6, 0.5 / 6]
    # Agent 2 alone has risen, from 2 to 5: its first solution earns the acceptance.
    expected = {(a, 0): v + (0.5 if a == 2 else 0) for a, v in enumerate(values)}
    assert found == pytest.approx(expected | {(a, 2): v for a, v in enumerate(values)})


def test_first_solutions_are_paid_by_the_ranking_that_read_them_when_asked_to() -> None:
    found = turns(score(held(), first_solutions="blind", acceptance=0.5), "generator")
    blind, last = [5.5 / 6, 4 / 6, 2 / 6 + 0.5, 0.5 / 6], [5 / 6, 1.5 / 6, 5 / 6, 0.5 / 6]
    expected = {(a, r): v for r, its in ((0, blind), (2, last)) for a, v in enumerate(its)}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "of_2", "of_1"),
    [
        # Without agent 0's own votes: of 2 from 1 to 3 of four, of 1 from 2 to .5.
        ({}, 0.5, 0.0),
        ({"diagnostic": "falls"}, 0.0, 0.375),
        ({"consensus": "inclusive"}, 0.5, 0.0),
        ({"consensus": "inclusive", "diagnostic": "falls"}, 0.0, 2.5 / 6),
    ],
)
def test_critiques_are_paid_by_what_became_of_their_targets(
    settings: dict[str, Any], of_2: float, of_1: float
) -> None:
    transcript = held()
    found = score(transcript, **settings)
    assert turns(found, "critic") == pytest.approx({
        (0, 1): (of_2 + of_1) / 2, (1, 1): None, (2, 1): None, (3, 1): None
    })  # fmt: skip
    text = transcript.turns[4].text
    parts = {
        text[slice(*credit.span)].strip(): credit.value
        for credit in found.credits
        if credit.stream == "critic" and credit.span is not None
    }
    assert parts == pytest.approx({"Agent 2: no.": of_2, "Agent 1: look again.": of_1})


def test_votes_are_paid_with_the_majority_of_the_last_ranking_alone() -> None:
    found = score(held(), judge_credit="line")
    assert {key[1] for key in turns(found, "judge")} == {3}  # The blind ranking earns nothing.
    # Two judges a pair: of 0 and 2 they differ, of 1 and 3 the other one says =.
    lines = [c.value for c in found.credits if c.stream == "judge" and c.span is not None]
    assert lines == [1, None, 1, -1, 1, 1, 1, 1, None, -1, 1, 1]
    alone = score(held(), judge_credit="line", consensus="inclusive")
    inclusive = [c.value for c in alone.credits if c.stream == "judge" and c.span is not None]
    assert inclusive == [1, 1, 1, None, 1, 1, 1, 1, None, None, 1, 1]


def test_strengths_are_scaled_from_the_weakest_to_the_strongest() -> None:
    found = turns(score(held(), values="bradley_terry"), "generator")
    values = [found[agent, 0] for agent in range(4)]
    assert max(v for v in values if v is not None) == 1 and values[3] == 0
    level = {agent: vote.replace(">", "=").replace("<", "=") for agent, vote in LAST.items()}
    equal = turns(score(held(last=level), values="bradley_terry"), "generator")
    assert {*equal.values()} == {0.5}


@pytest.mark.parametrize("values", ["win_fraction", "bradley_terry"])
def test_two_agents_are_valued_by_each_other(values: str) -> None:
    # Each prefers its own solution at first; then agent 0 gives in, and agent 1 does not.
    held_by_two = held(
        blind={0: "0>1", 1: "0<1"},
        last={0: "0<1", 1: "0<1"},
        critiques={0: "Agent 1: no. Agent 0: mine.", 1: "Agent 0: no."},
        num_agents=2,
        ranks_own=True,
    )
    found = score(held_by_two, values=values)
    # Agent 0 alone votes on agent 1: V is 0 and then 1. Agent 1 alone on agent 0: 0 and 0.
    assert turns(found, "generator") == pytest.approx({
        (0, 0): 0.0, (0, 2): 0.0, (1, 0): 1.0, (1, 2): 1.0
    })  # fmt: skip
    # Without a critic's own votes nobody has voted on the other; of itself it criticises nothing.
    assert turns(found, "critic") == {(0, 1): None, (1, 1): None}
    printed = score(held_by_two, values=values, consensus="inclusive")
    assert turns(printed, "critic") == pytest.approx({(0, 1): 1.0, (1, 1): 0.0})
    assert printed.metrics["conl/critiques"] == 2
    # With the other's vote alone both agree; agent 0 and agent 1 said the same in the end.
    assert turns(found, "judge") == pytest.approx({(0, 3): 1.0, (1, 3): 1.0})


def test_own_votes_of_three_agents_count_for_others_alone() -> None:
    own = {0: "0>1 0>2 1>2", 1: "1>0 1>2 0>2", 2: "2>0 2>1 0=1"}
    found = turns(
        score(held(blind=own, last=own, critiques={}, num_agents=3, ranks_own=True)), "generator"
    )
    # On agent 0: 1>0, 0>2 of agent 1; 2>0, 0=1 of agent 2. So 1.5 of 4, and agent 1 the same;
    # on agent 2: 0>2, 1>2 of agent 0; 1>2, 0>2 of agent 1.
    assert found == pytest.approx({
        (a, r): v for a, v in enumerate((1.5 / 4, 1.5 / 4, 0.0)) for r in (0, 2)
    })  # fmt: skip


def test_nothing_is_worth_anything_without_votes() -> None:
    nobody = dict.fromkeys(range(4), "")
    found = score(held(last=nobody), format_penalty=None)
    assert {*turns(found, "generator").values()} == {None}
    assert {*turns(found, "critic").values()} == {None}
    assert {*turns(found, "judge").values()} == {None}
    assert found.metrics["conl/critiques"] == 2 and "conl/diagnostic" not in found.metrics


def test_a_last_ranking_counts_where_nobody_could_rank_blind() -> None:
    # The first solutions of agents 1 and 2 fail, so that the blind round has no two to compare.
    last = {0: "1>2", 1: "0>2", 2: "0>1"}
    transcript = held(blind=dict.fromkeys(range(3), ""), last=last, critiques={}, num_agents=3)
    unreadable = [
        replace(turn, text="nothing") if turn.round == 0 and turn.agent else turn
        for turn in transcript.turns
    ]
    found = score(replace(transcript, turns=tuple(unreadable)), judge_credit="line")
    # Of two votes each, agent 0 wins 2, agent 1 wins 1 and agent 2 none. Failed turns earn -1.
    assert turns(found, "generator") == {
        (0, 0): 1.0, (1, 0): -1.0, (2, 0): -1.0, (0, 2): 1.0, (1, 2): 0.5, (2, 2): 0.0
    }  # fmt: skip
    assert {key[1] for key in turns(found, "judge")} == {3}
    blind = turns(
        score(replace(transcript, turns=tuple(unreadable)), first_solutions="blind"), "generator"
    )
    assert blind[0, 0] is None and blind[0, 2] == 1.0


def slow_value(votes: Sequence[Vote], agent: int, values: str) -> float | None:
    """The value of an agent by its definition, all votes counted again."""
    counted = [v for v in votes if not (v.is_own and v.judge.agent == agent)]
    about = [v for v in counted if agent in (v.left.agent, v.right.agent)]
    if not about:
        return None
    if values == "win_fraction":
        halves = {">": (1.0, 0.0), "=": (0.5, 0.5), "<": (0.0, 1.0)}
        return fmean(halves[v.verdict][agent == v.right.agent] for v in about)
    logs = log_strengths(wins_of(counted, "half", lambda key: key.agent), 1.0)
    low, high = min(logs.values()), max(logs.values())
    return 0.5 if high - low < 1e-8 else (logs[agent] - low) / (high - low)


@pytest.mark.parametrize("values", ["win_fraction", "bradley_terry"])
@pytest.mark.parametrize("consensus", ["leave_one_out", "inclusive"])
@pytest.mark.parametrize("ranks_own", [False, True])
def test_critics_are_paid_as_if_all_votes_were_counted_again_for_each(
    values: str, consensus: str, ranks_own: bool
) -> None:
    draw = random.Random(f"{values} {consensus} {ranks_own}")
    num_checked = 0
    for _ in range(12):
        agents = range(draw.randint(3, 6))

        def ranking(judge: int, agents: range = agents) -> str:
            pairs = combinations([a for a in agents if ranks_own or a != judge], 2)
            return " ".join(f"{a}{draw.choice('>=<')}{b}" for a, b in pairs if draw.random() < 0.8)

        transcript = held(
            blind={a: ranking(a) for a in agents},
            last={a: ranking(a) for a in agents},
            critiques={a: f"Agent {(a + 1) % len(agents)}: no." for a in agents},
            num_agents=len(agents),
            ranks_own=ranks_own,
        )
        debate = read_debate(transcript)
        cast = {
            number: [
                v for key, b in ballots(debate).items() if key.round == number for v in b.votes
            ]
            for number in (1, 3)
        }
        found = score(transcript, values=values, consensus=consensus)
        last_values = {a: slow_value(cast[3], a, values) for a in agents}
        assert {k: v for k, v in turns(found, "generator").items() if k[1] == 2} == pytest.approx(
            {(a, 2): value for a, value in last_values.items()}, abs=1e-8
        )
        for critic in agents:
            counted = {
                number: [v for v in votes if consensus == "inclusive" or v.judge.agent != critic]
                for number, votes in cast.items()
            }
            before, after = (
                slow_value(counted[number], (critic + 1) % len(agents), values) for number in (1, 3)
            )
            known = before is not None and after is not None
            expected = max(0.0, after - before) if known else None
            assert turns(found, "critic")[critic, 1] == pytest.approx(expected, abs=1e-8)
            num_checked += known
    assert num_checked > 12


def num_calls(num_agents: int, values: str) -> int:
    """Function calls that scoring a conversation takes, in which all rank all others."""
    agents = range(num_agents)
    rankings = {
        judge: " ".join(f"{a}>{b}" for a, b in combinations([a for a in agents if a != judge], 2))
        for judge in agents
    }
    critiques = {a: f"Agent {(a + 1) % num_agents}: no." for a in agents}
    transcript = held(rankings, rankings, critiques, num_agents=num_agents)
    with cProfile.Profile() as profile:
        score(transcript, values=values)
    total_calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return total_calls


@pytest.mark.parametrize("values", ["win_fraction", "bradley_terry"])
def test_critics_are_paid_without_counting_all_votes_again_for_each(values: str) -> None:
    num_calls(5, values)  # what is computed once and kept
    # Of 10 agents there are 12 times the votes of 5. Counted again for each critic the votes take
    # 10.2 and 10.6 times the calls; counted once 4.1 and 5.5 times, as some calls serve many votes.
    assert num_calls(10, values) < 8 * num_calls(5, values)


def test_blind_ranking_is_never_the_last() -> None:
    agreed = held(answers={a: f"{a} 1" for a in range(4)}, stop_when_agreed=True)
    found = score(agreed, format_penalty=None)
    assert {turn.round for turn in agreed.turns} == {0, 1, 2}
    assert {c.value for c in found.credits} == {None}
    assert "conl/agreement_after" not in found.metrics


def test_equal_rankings_accept_nothing() -> None:
    # The same votes in another order: a fit of strengths differs in its last digits.
    again = {judge: " ".join(reversed(said.split())) for judge, said in BLIND.items()}
    for values in ("win_fraction", "bradley_terry"):
        found = score(held(last=again), values=values, acceptance=0.5)
        first = turns(found, "generator")
        assert found.metrics["conl/accepted"] == 0
        assert all(first[agent, 0] == first[agent, 2] for agent in range(4))


def test_own_votes_decide_nothing_for_oneself() -> None:
    cast = {0: "0=1 0=2 1=2", 1: "1>0 1>2 0>2", 2: "0=1 0=2 1=2"}
    transcript = held(
        blind=cast, last=cast, critiques={}, answers={a: f"{a} {a}" for a in range(3)},
        num_agents=3, ranks_own=True,
    )  # fmt: skip
    assert bradley_terry(transcript, 0) == "0"
    found = debate_metrics([transcript])
    assert "judge/wins/agent_1" not in found
    assert (found["judge/wins/agent_0"], found["judge/wins/agent_2"]) == (0.5, 0)


def test_minds_change_from_one_solution_to_the_next() -> None:
    found = debate_metrics([held(answers={0: "2 1", 1: "1 3"})])
    assert found["flips/wrong_to_right/round_2"] == found["flips/right_to_wrong/round_2"] == 1 / 4


def test_metrics_say_what_critiques_did() -> None:
    found = score(held()).metrics
    assert found["conl/diagnostic"] == pytest.approx(0.25)
    assert found["conl/accepted"] == pytest.approx(1 / 4)
    assert found["conl/agreement_after"] == pytest.approx((8 - 2) / 10)


def test_critiques_correct_and_harm() -> None:
    # Of 1, right and then wrong, two critiques; of 2, wrong and then right, one; of 3, wrong and
    # still wrong, one. Agent 2 is named by itself, which is no critique.
    critiques = {
        0: "Agent 1: no. Agent 2: no.",
        2: "Agent 1: again. Agent 2: mine.",
        3: "Agent 0: fine.",
        1: "Agent 3: no.",
    }
    found = debate_metrics([held(critiques=critiques, answers={1: "1 7", 2: "8 1", 3: "9 9"})])
    assert found["critique/corrects"] == 1 / 2  # Agent 2 of agents 2 and 3.
    assert found["critique/harms"] == 2 / 3  # Agent 1 twice, and not agent 0.
    assert found["accuracy/round_0"] == found["accuracy/round_2"] == 2 / 4
