"""Rewards that need no labels, or those of some questions: certainty, and labels on a share."""

import math
from dataclasses import replace

import pytest

from debate_protocol.types import Reply, Transcript
from debate_rewards import V2, Certainty, Labelled, Overlong, RewardContext, Score, Verifiable

VOTES = ["A1=A2", "A0=A2", "A0=A1"]


def generator(score: Score) -> dict[tuple[int, int], float | None]:
    return {(c.agent, c.round): c.value for c in score.credits if c.stream == "generator"}


def on(question: str, debate: Transcript) -> Transcript:
    named = replace(debate.question, id=question)
    return replace(debate, id=f"debate on {question}", question=named)


def test_certainty_is_the_geometric_mean_of_probabilities(hold) -> None:
    debate = hold(["", "", None])
    logps = [(math.log(0.5), math.log(0.125)), (), (math.log(0.9),)]
    said = zip(debate.turns, logps, strict=True)
    turns = tuple(replace(turn, reply=Reply(turn.text, logps=its)) for turn, its in said)
    (score,) = Certainty()([replace(debate, turns=turns)])
    # √(1/2 · 1/8) = 1/4; no log-probabilities: no signal; a failed turn: −1.
    assert generator(score) == {(0, 0): pytest.approx(0.25, rel=1e-12), (1, 0): None, (2, 0): -1.0}
    assert [c.penalty for c in score.credits] == [False, False, True]
    assert score.metrics == {"certainty/mean": pytest.approx(0.25, rel=1e-12)}


def test_labelled_values_chosen_questions_by_the_truth_and_others_by_votes(hold) -> None:
    # Agent 0 says the right answer; both judges prefer agent 1 to agent 0.
    lines = [["", "", ""], ["", "A0<A2", "A0<A1"]]
    batch = [on(str(n), hold(*lines, answer="s0")) for n in range(40)]
    reward = Labelled(share=0.5, rest=V2(consensus="peer_prediction"))
    chosen = reward.labelled(batch)
    assert 5 < len(chosen) < 35 and reward.labelled(batch[:7]) == chosen & {
        str(n) for n in range(7)
    }
    assert reward.model_copy(update={"seed": 1}).labelled(batch) != chosen
    truth, votes = Verifiable()(batch), reward.rest(batch)
    for one, score, by_truth, by_votes in zip(batch, reward(batch), truth, votes, strict=True):
        is_labelled = one.question.id in chosen
        assert generator(score) == generator(by_truth if is_labelled else by_votes)
        assert generator(score)[0, 0] == (1.0 if is_labelled else -1.0)
        judged = [c for c in score.credits if c.stream == "judge"]
        assert judged == [c for c in by_votes.credits if c.stream == "judge"]
        assert score.metrics["labelled/share"] == float(is_labelled)


def test_labels_go_where_judges_disagree(hold) -> None:
    def debate(name: str, third: str) -> Transcript:
        # Agents 2, 3 and 4 judge the pair 0, 1; two say `>`.
        lines = {2: "A0>A1", 3: "A0>A1", 4: third}
        return on(name, hold([""] * 5, lines, n=5, answer="s0"))

    batch = [debate("one voice", "A0>A1"), debate("one is against", "A0<A1")]
    # 1 − (2/3)² − (1/3)² = 4/9 against 0.
    reward = Labelled(share=0.5, by="votes", rest=V2())
    assert reward.labelled(batch) == reward.labelled(batch[::-1]) == {"one is against"}
    assert Labelled(share=0, by="votes", rest=V2()).labelled(batch) == set()
    assert len(Labelled(share=1, by="votes", rest=V2()).labelled(batch)) == 2


def test_labels_go_where_first_answers_disagree(hold) -> None:
    # In the second round those disagree who agreed in the first.
    said = {"two": ("aab", "zzy"), "one": ("aaa", "xyz"), "three": ("abc", "zzz")}
    answers = {
        name: {(agent, r): by[r][agent] for agent in range(3) for r in range(2)}
        for name, by in said.items()
    }
    lines = ["A1=A2", "A0=A2", "A0=A1"]
    batch = [on(name, hold([""] * 3, lines, answers=its)) for name, its in answers.items()]
    # 1 − Σ f²: 4/9, 0 and 2/3 of first answers.
    third, two_thirds = (Labelled(share=s, by="answers", rest=V2()) for s in (1 / 3, 2 / 3))
    assert third.labelled(batch) == {"three"} and two_thirds.labelled(batch) == {"three", "two"}


def test_answers_of_other_questions_are_not_looked_at(hold, caplog) -> None:
    batch = [on(str(n), hold([""] * 3, VOTES)) for n in range(4)]  # No question has an answer.
    Labelled(share=0, rest=V2())(batch)
    assert "left out" not in caplog.text
    Labelled(share=1, rest=V2())(batch)
    assert "left out" in caplog.text


def test_what_is_silent_on_the_rest_alone_is_no_silence(hold) -> None:
    context = RewardContext(hold([""] * 3, VOTES).protocol, max_tokens=8)
    rest = Overlong(max_tokens=10, buffer=1)  # No reply is long enough.
    assert not list(Labelled(share=0.1, rest=rest).notes(context))
    (note,) = Labelled(share=0, rest=rest).notes(context)
    assert (note.kind, note.stream) == ("no_signal", "generator")
    assert "overlong" in note.text
