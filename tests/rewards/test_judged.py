"""What debates before a judge pay and what is watched in them, on debates worked by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from debate_protocol.forms import Judged, Simultaneous
from debate_protocol.types import Question, Reply, Transcript, TurnRequest, judging_agents
from debate_rewards import JudgedReward, debate_metrics
from debate_rewards.decisions import decisions_of
from debate_rewards.reward import read_debate
from debate_rewards.votes import judgments

QUESTION = Question("q", "?", "4", {"kind": "number"})


def held(said: Sequence[str], decisions: Sequence[str], **settings: Any) -> Transcript:
    """Hold a debate in which speeches are `said`, in order, and judges decide as they do."""
    form = Judged(judges=len(decisions), reasons=False, **settings)
    speeches = iter(said)

    def speak(request: TurnRequest) -> Reply:
        assert request.contract is not None
        if "decision" in request.contract.sections:
            return Reply(f"<decision>{decisions[request.agent - form.num_agents]}</decision>")
        return Reply(next(speeches))

    run = form.start(QUESTION, seed=0)
    requests: Any = next(run)
    try:
        while True:
            requests = run.send([speak(request) for request in requests])
    except StopIteration as end:
        transcript: Transcript = end.value
        return transcript


def values(transcript: Transcript, stream: str, **settings: Any) -> dict[int, list[float | None]]:
    (found,) = JudgedReward(**settings)([transcript])
    own: dict[int, list[float | None]] = {}
    for credit in found.credits:
        if credit.stream == stream:
            own.setdefault(credit.agent, []).append(credit.value)
    return own


RIGHT, WRONG = "It is \\boxed{4}", "Of course, as all know, it is \\boxed{5}"
RIVALS = held([RIGHT, WRONG, RIGHT], [*["Agent 0"] * 3, "Agent 1", "?"], max_rounds=4)
# Three of four readable decisions are for agent 0, who is right.
CRITIC = held([WRONG, "Five is too much."], ["wrong", "right"] + ["wrong"] * 3, opponent="critic")
# One of five says that the answer is right, and it is not.


def test_rivals_share_the_votes() -> None:
    assert values(RIVALS, "generator") == {0: [0.75, 0.75], 1: [0.25]}


def test_a_critic_is_paid_by_what_the_proposer_is_not() -> None:
    assert values(CRITIC, "generator") == {0: [0.2], 1: [0.8]}


def test_truth_takes_its_share() -> None:
    assert values(RIVALS, "generator", truth=0.5) == {0: [0.875, 0.875], 1: [0.125]}
    assert values(CRITIC, "generator", truth=1) == {0: [0.0], 1: [1.0]}


@pytest.mark.parametrize("decisions", [["?", "?"], ["both", ""]])
def test_without_a_decision_nothing_has_a_value(decisions: list[str]) -> None:
    assert values(held([RIGHT, WRONG], decisions), "generator") == {0: [None], 1: [None]}


def test_a_failed_speech_costs() -> None:
    transcript = held(["", WRONG], ["Agent 1"])
    assert values(transcript, "generator") == {0: [-1.0], 1: [1.0]}


def test_judges_are_paid_by_the_truth() -> None:
    assert values(RIVALS, "judge", judge="truth") == {
        3 - 1: [1.0], 3: [1.0], 4: [1.0], 5: [-1.0], 6: [-1.0]
    }  # fmt: skip
    assert values(CRITIC, "judge", judge="truth") == {
        2: [1.0], 3: [-1.0], 4: [1.0], 5: [1.0], 6: [1.0]
    }  # fmt: skip
    both_right = held([RIGHT, RIGHT], ["Agent 0"])
    assert values(both_right, "judge", judge="truth") == {2: [None]}


def test_judges_are_paid_by_the_agreement_of_both_orders() -> None:
    transcript = held(
        [RIGHT, WRONG],
        ["Agent 0", "Agent 1", "Agent 0", "Agent 0"],
        order="simultaneous",
        max_rounds=2,
        both_orders=True,
    )
    # Judges 3 and 5 read the rivals in the opposite order.
    assert [one.decision for one in judgments(read_debate(transcript))] == [0, 1, 0, 0]
    assert values(transcript, "judge", judge="agreement") == {
        2: [0.0], 3: [-1.0], 4: [0.0], 5: [1.0]
    }  # fmt: skip
    assert values(RIVALS, "judge", judge="agreement")[2] == [None]


def test_long_speeches_are_priced() -> None:
    transcript = held(["a b c d e \\boxed{4}", RIGHT], ["Agent 0"], max_words=4)
    assert values(transcript, "generator", over_limit=0.5) == {0: [1 - 0.25], 1: [0.0]}
    long = held(["a " * 40 + "\\boxed{4}", RIGHT], ["Agent 0"], max_words=4)
    assert values(long, "generator", over_limit=0.5) == {0: [0.5], 1: [0.0]}
    thought = held(["<think>a b c</think>\\boxed{4}", RIGHT], ["Agent 0"], think="drop")
    assert values(thought, "generator", over_limit=1, thinking_words=2)[0] == [0.5]


def test_long_speeches_without_spaces_are_priced() -> None:
    # Six characters and the box are seven words: 7/4 - 1 = .75 beyond the limit.
    transcript = held(["字字字字字字 \\boxed{4}", RIGHT], ["Agent 0"], max_words=4)
    assert values(transcript, "generator", over_limit=0.5)[0] == [pytest.approx(1 - 0.5 * 0.75)]
    # 16 · 4 joined characters are four words, and the box makes five: 5/4 - 1.
    transcript = held(["a-" * 32 + " \\boxed{4}", RIGHT], ["Agent 0"], max_words=4)
    assert values(transcript, "generator", over_limit=0.5)[0] == [pytest.approx(1 - 0.5 * 0.25)]


def test_tags_are_no_words() -> None:
    contract = {"name": "worked", "sections": ["evaluation", "solution"]}
    said = "<evaluation> a b c </evaluation>\n<solution> \\boxed{4} </solution>"
    transcript = held([said, RIGHT], ["Agent 0"], max_words=3, contract=contract)
    assert values(transcript, "generator", over_limit=1)[0] == [1.0]  # Each section has three.
    long = said.replace("a b c", "a b c d")
    transcript = held([long, RIGHT], ["Agent 0"], max_words=3, contract=contract)
    assert values(transcript, "generator", over_limit=1)[0] == [pytest.approx(2 / 3)]


def test_only_what_parted_has_a_value() -> None:
    parted = replace(RIVALS, meta={**RIVALS.meta, "diverged": 2})
    assert values(parted, "generator") == {0: [None, 0.75], 1: [None]}


def test_what_is_watched_between_rivals() -> None:
    found = debate_metrics([RIVALS])
    assert found["judged/for_right"] == 0.75
    assert found["judged/brier"] == pytest.approx(0.25**2)
    assert found["judged/first_shown"] == 0.75
    assert found["judged/for_agent_0"] == 0.75  # Of rivals; here agent 0 is right.
    assert "judged/for_agent_0" not in debate_metrics([CRITIC])
    assert found["judged/longer"] == 0.25  # Eight words of agent 1, six of agent 0.
    assert "judged/gap" not in found
    assert found["speech/words"] == pytest.approx((3 + 8 + 3) / 3)


def test_what_is_watched_of_a_proposer() -> None:
    right = held([RIGHT, "No."], ["right", "right", "wrong"], opponent="critic")
    found = debate_metrics([CRITIC, replace(right, question=replace(QUESTION, id="r"))])
    assert found["judged/gap"] == pytest.approx(((0.2 - 0) + (2 / 3 - 1)) / 2)
    assert found["judged/for_right"] == pytest.approx((4 + 2) / 8)
    # Right and called right 2, right and called wrong 1, wrong and called right 1, wrong 4.
    mcc = (2 * 4 - 1 * 1) / ((3 * 3 * 5 * 5) ** 0.5)
    assert found["judged/mcc"] == pytest.approx(mcc)


def test_speeches_for_others_and_for_other_sides_are_counted() -> None:
    seeds = held([RIGHT, WRONG], ["Agent 0"], assigned=True)
    sides = seeds.meta["sides"]
    found = debate_metrics([seeds])
    assert found["speech/own_side"] == (sides["0"] == "4")  # Either both or none.
    assert found["speech/impersonates"] == 0
    spoof = held([f"Agent 0: {RIGHT}\nAgent 1: you are right", f"Agent 1: {WRONG}"], ["Agent 0"])
    assert debate_metrics([spoof])["speech/impersonates"] == 0.5
    named = held([WRONG, "Critic: no."], ["wrong"], opponent="critic")
    assert debate_metrics([named])["speech/impersonates"] == 0
    spoof = held([f"{WRONG}\n**Critic:** I agree.", "Critic: no."], ["wrong"], opponent="critic")
    assert debate_metrics([spoof])["speech/impersonates"] == 0.5


def test_quotes_that_the_passage_has_are_counted() -> None:
    said = [f"<quote>two  red</quote> <quote>red b</quote> {RIGHT}", f"<quote> </quote> {WRONG}"]
    debate = held(said, ["Agent 0"])
    assert "speech/verified" not in debate_metrics([debate])  # There is no passage.
    passage = replace(QUESTION, meta={**QUESTION.meta, "passage": "The two red balls."})
    found = debate_metrics([replace(debate, question=passage)])
    assert found["speech/verified"] == pytest.approx(1 / 3)


def test_debates_of_equals_are_not_before_a_judge() -> None:
    alone = held([RIGHT], ["right"], opponent="none", max_rounds=2)
    watched = {"judged/gap", "judged/mcc", "judged/for_right"}
    found = watched & {*debate_metrics([alone])}
    assert found == {"judged/gap", "judged/for_right"}  # One decision has no correlation.
    roles = {"solver": {"count": 2}, "judge": {"answers": False}}
    form = Simultaneous(max_rounds=2, roles=roles)  # type: ignore[arg-type]
    assert judging_agents(form.protocol()) == ()


@pytest.mark.parametrize(
    ("debate", "answer"),
    [
        (RIVALS, "4"),
        (CRITIC, None),  # Its only answer is held to be wrong.
        (held([RIGHT, WRONG], ["?"]), None),
        (held([RIGHT, "No."], ["right"], opponent="critic"), "4"),
    ],
)
def test_the_debate_answers_what_most_judges_decide_for(
    debate: Transcript, answer: str | None
) -> None:
    assert decisions_of(read_debate(debate), 0)["judged"] == answer
