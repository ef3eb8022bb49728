"""Worked debates of any question with an answer, in every form and contract."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.forms import (
    ActorCritic,
    Conl,
    DebateForm,
    Direct,
    Judged,
    SelfDebate,
    Simultaneous,
)
from debate_protocol.forms.settings import OwnContract
from debate_protocol.parsing import parse
from debate_protocol.types import Question, Reply, Transcript, TurnRequest, parse_turn
from debate_rewards import debate_metrics
from debate_rewards.answer_checking import check
from debate_rewards.judged import true_decision
from debate_rewards.reward import read_debate
from debate_rewards.votes import judgments
from debate_train.data import ReasoningGym
from debate_train.data.demonstrations import Demonstrations, worked_turn
from debate_train.data.questions import Questions

MATH = [Question(f"m{i}", f"What is {i} + 8?", str(i + 8), {"kind": "math"}) for i in range(12)]
CHOICE = [
    Question(f"c{i}", f"Which is {i}?", "B", {"kind": "choice", "choices": ["no", f"{i}", "none"]})
    for i in range(12)
]
YES_NO = [Question(f"y{i}", f"Is {i} even?", "yes", {"kind": "yes_no"}) for i in range(0, 24, 2)]
TEXT = [
    Question(f"t{i}", "Who?", "Ada {L}", {"kind": "text", "wrong_answers": ["Bob"]})
    for i in range(12)
]
CRITIQUE = OwnContract(name="critique", sections=("comparison", "solution"), stop=None)


def held(
    form: DebateForm, question: Question, say: Callable[[TurnRequest], str], seed: int
) -> Transcript:
    run = form.start(question, seed=seed)
    requests = next(run)
    try:
        while True:
            said = (
                [Reply(say(request), "end", (1,), (1,)) for request in requests]
                if isinstance(requests, list)
                else "go_on"
            )
            requests = run.send(said)  # type: ignore[arg-type]
    except StopIteration as ended:
        return ended.value


def test_turns_are_those_worked_by_hand() -> None:
    form = Simultaneous(num_agents=3, max_rounds=2, style="compact", personas="none")
    contract = form.contract_rules()
    # Seed 3 draws .238 and the question's chance to be right is .81: this first answer is right.
    first = TurnRequest(MATH[0], 0, 0, (), contract=contract, seed=3)
    assert worked_turn(first, errors=False) == (
        "<solution>The answer is \\boxed{8}.</solution>\n"
        "<evaluation>N/A</evaluation>\n<comparison>N/A</comparison>"
    )
    claims = {1: "The answer is \\boxed{9}.", 2: "eight: \\boxed{8}", 0: "\\boxed{7}"}
    later = TurnRequest(MATH[0], 0, 1, (), contract=contract, claims=claims)
    assert worked_turn(later) == (
        "<solution>The answer is \\boxed{8}.</solution>\n<evaluation>Agent 1: 9, it is 8, "
        "wrong. Agent 2: 8, it is 8, right. Agent 0: 7, it is 8, wrong. "
        "Right: 2. Wrong: 1.</evaluation>\n"
        "<comparison>Agent 2 > Agent 1</comparison>"
    )


@pytest.mark.parametrize(
    "questions", [MATH, CHOICE, YES_NO, TEXT], ids=["math", "choice", "yes_no", "text"]
)
@pytest.mark.parametrize("num_agents", [3, 4, 7])
@pytest.mark.parametrize(
    "settings",
    [
        {"style": "compact"},
        {"style": "full"},
        {"style": "full", "conversation": "append"},
        {"style": "compact", "contract": "five_section"},
        {"style": "compact", "contract": CRITIQUE, "conversation": "rebuild"},
        {"style": "full", "contract": "boxed"},
        {"style": "full", "topology": "ring"},
    ],
    ids=lambda settings: "-".join(str(getattr(v, "name", v)) for v in settings.values()),
)
def test_worked_debates_are_true_and_parse(
    questions: list[Question], num_agents: int, settings: dict[str, Any]
) -> None:
    form = Simultaneous(num_agents=num_agents, max_rounds=3, personas="none", **settings)
    shares, compared = [], 0
    for seed, question in enumerate(questions):
        debate = held(form, question, worked_turn, seed)
        right: dict[tuple[int, int], bool] = {}
        for turn in debate.turns:
            parsed = parse_turn(debate, turn)
            assert turn.failure is None and (parsed.problems == () or "critique" in str(settings))
            right[turn.key] = check(question, parsed.answer).verdict == "right"
            assert turn.round == 0 or right[turn.key]
            last = {key.agent: key for key in turn.shown if key.round == turn.round - 1}
            for vote in parsed.comparisons:
                left, other = right[last[vote.left]], right[last[vote.right]]
                assert (vote.op == "=") == (left == other) and (vote.op == "=" or left)
            if turn.round and debate.protocol.contract != "boxed":
                peers = len(last)
                assert len(parsed.comparisons) == peers * (peers - 1) // 2
                compared += len(parsed.comparisons)
        shares += [right[0, 0], right[1, 0]]
    assert 0 < sum(shares) < len(shares)
    assert compared > 0 or settings.get("contract") == "boxed"


@pytest.mark.parametrize("prompt", ["message", "conversation"])
def test_second_turns_of_a_self_debate_check_the_pair(prompt: Any) -> None:
    contract: Any = "three_section" if prompt == "message" else "boxed"
    form = SelfDebate(first_turns=4, second_turns=2, debate_prompt=prompt, contract=contract)
    for seed, question in enumerate(MATH):
        debate = held(form, question, worked_turn, seed)
        for turn in debate.turns[4:]:
            assert check(question, parse_turn(debate, turn).answer).verdict == "right"
            assert "Agent 0: " in turn.text and "Agent 1: " in turn.text


def test_conversations_rank_and_criticize_by_the_truth() -> None:
    debates = []
    for seed, question in enumerate(MATH):
        debate = held(Conl(personas="none"), question, worked_turn, seed)
        read = read_debate(debate)
        for key, turn in read.judges.items():
            assert not turn.failed and turn.parsed.problems == ()
            if key.round in (1, 3):
                assert len(turn.parsed.comparisons) == 3
        debates.append(debate)
    figures = debate_metrics(debates)
    assert figures["judge/accuracy"] == figures["accuracy/round_2"] == 1.0
    assert figures["critique/harms"] == 0.0


@pytest.mark.parametrize("opponent", ["rival", "critic", "none"])
@pytest.mark.parametrize("contract", ["boxed", {"name": "speech", "sections": ["solution"]}])
def test_judges_decide_for_who_is_right(opponent: Any, contract: Any) -> None:
    rounds = 2 if opponent == "none" else 3
    form = Judged(opponent=opponent, contract=contract, judges=2, max_rounds=rounds)
    said = set()
    for seed, question in enumerate([*MATH, *CHOICE]):
        debate = held(form, question, worked_turn, seed)
        assert all(turn.failure is None for turn in debate.turns)
        read = read_debate(debate)
        right = {
            k: check(question, t.parsed.answer).verdict == "right" for k, t in read.turns.items()
        }
        due = true_decision(read, right)
        for one in judgments(read):
            assert one.decision == due or (due is None and one.decision == 0)
        said.add(due)
    assert said == ({None, 1} if opponent == "rival" else {0, 1})  # A rival reads, and corrects.


@pytest.mark.parametrize("style", ["compact", "full"])
def test_exchanges_are_guided_to_what_they_are_asked_for(style: Any) -> None:
    form = ActorCritic(
        contract="answer_line",
        style=style,
        max_rounds=2,
        guided=True,
        guide_round_zero=True,
        continuations=1,
    )
    said, corrected = 0, 0
    for seed, question in enumerate([*MATH, *CHOICE]):
        debate = held(form, question, worked_turn, seed)
        for turn in debate.turns:
            for branch in turn.branches:
                said += 1
                if turn.agent == 0:
                    assert branch.turn.text == f"Answer: {branch.guide}"
                else:
                    is_right = "right." in branch.turn.text
                    assert is_right or branch.turn.text.endswith(f"\nAnswer: {branch.guide}")
            corrected += turn.agent == 1 and "wrong." in turn.text
        assert check(question, debate.turns[-1].text).verdict == "right"
    assert said > 100 and corrected > 3


def test_critics_say_what_follows_from_their_own_answer() -> None:
    form = ActorCritic(contract="answer_line", style="compact", max_rounds=3)
    sums = [Question(f"s{i}", f"Find {i} + 8 =", str(i + 8), {"kind": "number"}) for i in range(80)]
    debates = [held(form, question, worked_turn, n) for n, question in enumerate(sums)]
    for turn in (turn for debate in debates for turn in debate.turns if turn.agent == 1):
        line, _, objection = turn.text.partition("\n")
        _, claim, own, said = re.split(r": |, it is |, ", line)
        assert (said == "right.") == (claim == own)
        assert objection == ("" if claim == own else f"Answer: {own}")
    metrics = debate_metrics(debates)
    assert metrics["critic/no_when_wrong"] > 0.9 and 0.3 < metrics["critic/ok_when_right"] < 0.9
    assert debates[0].turns[0].text.startswith("Find 0 + 8 = ")


def test_solutions_are_the_rows_own_and_end_in_the_answer(tmp_path: Path) -> None:
    rows = [{"question": f"{i} + 1?", "answer": i + 1, "solution": "Add one."} for i in range(40)]
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    source = Questions(path=str(path)).open()
    (question, *_) = source.batch(0)
    debate = held(Direct(), question, lambda request: source.demonstrate(request, errors=False), 0)
    text = parse(debate.turns[0].text, "three_section").answer
    assert text == f"Add one.\nThe answer is \\boxed{{{question.answer}}}."


def test_accepted_replies_of_the_model_are_what_is_demonstrated(tmp_path: Path) -> None:
    from debate_protocol.transcripts.files import write_transcripts

    texts = {0: "Eight and none: \\boxed{8}", 1: "\\boxed{9} and \\boxed{10}"}
    own = [
        held(Direct(contract="boxed"), MATH[i], lambda request, i=i: texts[i], i)  # type: ignore[misc]
        for i in texts
    ]
    write_transcripts(tmp_path / "own.jsonl", own)
    engine = Demonstrations(errors=False, accepted=str(tmp_path / "own.jsonl"))
    say = engine.script(worked_turn)
    assert say is not None
    said = [held(Direct(), question, say, 0).turns[0].text for question in MATH[:2]]
    solutions = [parse(text, "three_section").answer for text in said]
    assert solutions == [texts[0], "The answer is \\boxed{9}."]


def test_tasks_of_reasoning_gym_are_demonstrated() -> None:
    pytest.importorskip("reasoning_gym")
    tasks: Any = {"chain_sum": {"min_terms": 2, "max_terms": 2}, "spell_backward": {}}
    source = ReasoningGym(tasks=tasks, batch_size=16).open()
    assert source.can_demonstrate
    form = Simultaneous(num_agents=3, max_rounds=2, style="compact", personas="none")
    right = []
    for seed, question in enumerate(source.batch(0)):
        debate = held(form, question, source.demonstrate, seed)
        answers = [parse_turn(debate, turn).answer for turn in debate.turns]
        right += [check(question, answer).verdict == "right" for answer in answers]
    assert 48 < sum(right) < 96  # All second answers, and some of the first.
