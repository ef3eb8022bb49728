"""Worked debates of any question with an answer, in every form and contract."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from debate_protocol.contracts import Contract
from debate_protocol.forms import ActorCritic, Checked, Conl, Direct, Judged, Simultaneous
from debate_protocol.forms.settings import OwnContract
from debate_protocol.parsing import parse
from debate_protocol.transcripts.files import write_transcripts
from debate_protocol.types import VERDICT, Question, Reply, TurnRequest, parse_turn
from debate_rewards import debate_metrics
from debate_rewards.answer_checking import check
from debate_rewards.judged import true_decision
from debate_rewards.reward import read_debate
from debate_rewards.votes import checks_by_turn, judgments
from debate_rollout.engines import ScriptedEngine
from debate_train.batches.rows import Step
from debate_train.data.demonstrations import Demonstrations, worked_turn
from debate_train.data.questions import Questions
from debate_train.data.signs_puzzle import demonstration
from debate_train.data.source import QuestionSource
from debate_train.errors import UsageError
from debate_train.recipe import Recipe
from train.contexts import Trainer, context, trained


def make_questions(text, answer, **meta):
    questions = []
    for n in range(12):
        values = {key: value(n) if callable(value) else value for key, value in meta.items()}
        questions.append(Question(f"{n}", text.format(n), answer(n), values))
    return questions


MATH = make_questions("What is {} + 8?", lambda n: str(n + 8), kind="math")
CHOICE = make_questions(
    "Which is {}?", lambda n: "B", kind="choice", choices=lambda n: ["no", f"{n}", "none"]
)
YES_NO = make_questions("Is 2 x {} even?", lambda n: "yes", kind="yes_no")
TEXT = make_questions("Who is {}?", lambda n: "Ada {L}", kind="text", wrong_answers=["Bob"])
CRITIQUE = OwnContract(name="critique", sections=("comparison", "solution"), stop=None)


def play_worked(form, question, seed, say=worked_turn):
    run = form.start(question, seed=seed)
    requests = next(run)
    try:
        while True:
            if isinstance(requests, list):
                requests = run.send(
                    [Reply(say(request), "end", (1,), (1,)) for request in requests]
                )
            else:
                requests = run.send("go_on")
    except StopIteration as stop:
        return stop.value


def is_right(question, answer):
    return check(question, answer).verdict == "right"


def test_turns_are_those_worked_by_hand():
    form = Simultaneous(num_agents=3, max_rounds=2, style="compact", personas="none")
    contract = form.contract_rules()
    # Seed 3 draws .238 and the question's chance to be right is .81: this first answer is right.
    first = TurnRequest(
        Question("m0", "What is 0 + 8?", "8", {"kind": "math"}), 0, 0, (), contract=contract, seed=3
    )
    assert worked_turn(first, errors=False) == (
        "<solution>The answer is \\boxed{8}.</solution>\n"
        "<evaluation>N/A</evaluation>\n<comparison>N/A</comparison>"
    )
    claims = {1: "The answer is \\boxed{9}.", 2: "eight: \\boxed{8}", 0: "\\boxed{7}"}
    second = TurnRequest(MATH[0], 0, 1, (), contract=contract, claims=claims)
    assert worked_turn(second) == (
        "<solution>The answer is \\boxed{8}.</solution>\n<evaluation>Agent 1: 9, it is 8, "
        "wrong. Agent 2: 8, it is 8, right. Agent 0: 7, it is 8, wrong. "
        "Right: 2. Wrong: 1.</evaluation>\n"
        "<comparison>Agent 2 > Agent 1</comparison>"
    )


@pytest.mark.parametrize(
    ("questions", "num_agents", "settings"),
    [
        (MATH, 3, {"style": "compact"}),
        (YES_NO, 3, {"style": "full", "conversation": "append"}),
        (MATH, 4, {"style": "compact", "contract": CRITIQUE, "conversation": "rebuild"}),
        (CHOICE, 3, {"style": "full", "contract": "boxed"}),
        (TEXT, 4, {"style": "full", "topology": "ring"}),
    ],
    ids=["compact", "append", "critique", "boxed", "ring"],
)
def test_worked_debates_are_true_and_parse(questions, num_agents, settings):
    form = Simultaneous(num_agents=num_agents, max_rounds=3, personas="none", **settings)
    first_verdicts = []
    num_votes = 0
    for seed, question in enumerate(questions):
        debate = play_worked(form, question, seed)
        right = {}
        for turn in debate.turns:
            parsed = parse_turn(debate, turn)
            assert turn.failure is None
            assert parsed.problems == () or settings.get("contract") == CRITIQUE
            right[turn.key] = is_right(question, parsed.answer)
            assert turn.round == 0 or right[turn.key]
            peers = {key.agent: key for key in turn.shown if key.round == turn.round - 1}
            for vote in parsed.comparisons:
                left = right[peers[vote.left]]
                assert (vote.op == "=") == (left == right[peers[vote.right]])
                assert vote.op == "=" or left
            if turn.round and debate.protocol.contract != "boxed":
                assert len(parsed.comparisons) == len(peers) * (len(peers) - 1) // 2
                num_votes += len(parsed.comparisons)
        first_verdicts += [right[0, 0], right[1, 0]]
    assert 0 < sum(first_verdicts) < len(first_verdicts)
    assert num_votes > 0 or settings.get("contract") == "boxed"


def test_conversations_rank_and_criticize_by_the_truth():
    form = Conl(personas="none")
    debates = [play_worked(form, question, seed) for seed, question in enumerate(MATH)]
    for debate in debates:
        for key, turn in read_debate(debate).judges.items():
            assert not turn.failed and turn.parsed.problems == ()
            assert key.round not in (1, 3) or len(turn.parsed.comparisons) == 3
    metrics = debate_metrics(debates)
    assert metrics["judge/accuracy"] == metrics["accuracy/round_2"] == 1.0
    assert metrics["critique/harms"] == 0.0


@pytest.mark.parametrize(
    ("opponent", "contract", "decisions"),
    [
        ("rival", "boxed", {None, 1}),  # A rival reads, and corrects.
        ("critic", {"name": "speech", "sections": ["solution"]}, {0, 1}),
        ("none", "boxed", {0, 1}),
    ],
)
def test_judges_decide_for_who_is_right(opponent, contract, decisions):
    max_rounds = 2 if opponent == "none" else 3
    form = Judged(opponent=opponent, contract=contract, judges=2, max_rounds=max_rounds)
    true_decisions = set()
    for seed, question in enumerate(MATH + CHOICE):
        debate = play_worked(form, question, seed)
        assert all(turn.failure is None for turn in debate.turns)
        read = read_debate(debate)
        right = {k: is_right(question, turn.parsed.answer) for k, turn in read.turns.items()}
        expected = true_decision(read, right)
        for judgment in judgments(read):
            assert judgment.decision == (0 if expected is None else expected)
        true_decisions.add(expected)
    assert true_decisions == decisions


@pytest.mark.parametrize("style", ["compact", "full"])
def test_exchanges_are_guided_to_what_they_are_asked_for(style):
    form = ActorCritic(
        contract="answer_line",
        style=style,
        max_rounds=2,
        guided=True,
        guide_round_zero=True,
        continuations=1,
    )
    num_branches = 0
    for seed, question in enumerate(MATH + CHOICE):
        debate = play_worked(form, question, seed)
        for turn in debate.turns:
            num_branches += len(turn.branches)
            for branch in turn.branches:
                text = branch.turn.text
                if turn.agent == 0:
                    assert text == f"Answer: {branch.guide}"
                else:
                    assert "right." in text or text.endswith(f"\nAnswer: {branch.guide}")
        assert is_right(question, debate.turns[-1].text)
    assert num_branches > 100


def test_critics_say_what_follows_from_their_answer():
    form = ActorCritic(contract="answer_line", style="compact", max_rounds=3)
    questions = []
    for n in range(80):
        questions.append(Question(f"s{n}", f"Find {n} + 8 =", str(n + 8), {"kind": "number"}))
    debates = [play_worked(form, question, seed) for seed, question in enumerate(questions)]
    for debate in debates:
        for turn in debate.turns:
            if turn.agent == 1:
                line, _, objection = turn.text.partition("\n")
                _, claim, answer, verdict = re.split(r": |, it is |, ", line)
                assert (verdict == "right.") == (claim == answer)
                assert objection == ("" if claim == answer else f"Answer: {answer}")
    metrics = debate_metrics(debates)
    assert metrics["critic/no_when_wrong"] > 0.9
    assert 0.3 < metrics["critic/ok_when_right"] < 0.9
    assert debates[0].turns[0].text.startswith("Find 0 + 8 = ")


def test_solutions_are_those_of_the_rows_and_end_in_the_answer(tmp_path):
    rows = [{"question": f"{n} + 1?", "answer": n + 1, "solution": "Add one."} for n in range(40)]
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    source = Questions(path=str(path)).open()
    question = source.batch(0)[0]
    debate = play_worked(Direct(), question, 0, lambda r: source.demonstrate(r, errors=False))
    answer = parse(debate.turns[0].text, "three_section").answer
    assert answer == f"Add one.\nThe answer is \\boxed{{{question.answer}}}."


def test_checks_are_those_of_the_rows_where_they_have_one(tmp_path):
    row = {
        "question": "Sort 3 1 2",
        "answer": "1 2 3",
        "kind": "text",
        "wrong_answers": ["1 3 2"],
        "worked_checks": {"1 3 2": "1 3 up 2 down", "1 2 3": "all up"},
    }
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps({**row, "id": n}) + "\n" for n in range(40)))
    (question,) = Questions(path=str(path), holdout=0.01).open().batch(0)[:1]
    contract = Contract("check", ("evaluation", VERDICT), answers=False)
    texts = []
    for claim in ("1 2 3", "1 3 2", "2 1 3"):
        claims = {0: f"\\boxed{{{claim}}}"}
        request = TurnRequest(question, 1, 1, (), contract=contract, claims=claims, answers=False)
        texts.append(worked_turn(request))
    assert texts == [
        "<evaluation>Agent 0: all up, right.</evaluation>\n<verdict>right</verdict>",
        "<evaluation>Agent 0: 1 3 up 2 down, wrong.</evaluation>\n<verdict>wrong</verdict>",
        "<evaluation>Agent 0: 2 1 3, it is 1 2 3, wrong.\nThe answer is \\boxed{1 2 3}."
        "</evaluation>\n<verdict>wrong</verdict>",
    ]


def test_accepted_replies_of_the_model_are_what_is_demonstrated(tmp_path):
    replies = ["Eight and none: \\boxed{8}", "\\boxed{9} and \\boxed{10}"]
    path = tmp_path / "accepted.jsonl"
    debates = []
    for question, reply in zip(MATH, replies, strict=False):
        debates.append(play_worked(Direct(contract="boxed"), question, 0, lambda _, r=reply: r))
    write_transcripts(path, debates)
    say = Demonstrations(errors=False, accepted=str(path)).script(worked_turn)
    worked = [play_worked(Direct(), question, 0, say) for question in MATH[:2]]
    answers = [parse(debate.turns[0].text, "three_section").answer for debate in worked]
    assert answers == [replies[0], "The answer is \\boxed{9}."]


DEMONSTRATED = {"type": "demonstrations", "errors": False}
BOXED = {"type": "direct", "contract": "boxed", "style": "compact", "personas": "none"}


TOO_LONG = "so " * 40
"""A solution that `max_tokens` cuts before its answer."""
TEMPLATE = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=257, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([""], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=TEMPLATE
    )


TOKENIZER = byte_tokenizer()


def supervised(path: Path, solutions: Sequence[str], **changes: Any) -> Recipe:
    rows = [
        {"question": f"make {i}", "answer": "42", "solution": solution, "kind": "number"}
        for i, solution in enumerate(solutions)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    settings: dict[str, Any] = {
        "name": "t",
        "steps": 4,
        "model": {"type": "scratch"},
        "data": {"path": str(path), "batch_size": 8},
        "debate": BOXED,
        "rollout": {"engine": DEMONSTRATED, "max_tokens": 100},
        "reward": {"type": "verifiable"},
        "advantage": {"baseline": "none"},
        "loss": {"type": "sft"},
    }
    return Recipe.model_validate(settings | changes)


def steps_of(recipe: Recipe, steps: int = 2) -> list[Step]:
    source = recipe.data.open()
    folder = Path(recipe.data.model_dump()["path"]).with_name("run")
    recipe = recipe.model_copy(update={"steps": steps})
    run = context(recipe, folder, ScriptedEngine(replies=("no",)).open(), source, TOKENIZER)
    try:
        return trained(run, Trainer())[1].steps
    finally:
        shutil.rmtree(folder)


def test_demonstrations_that_fail_or_are_wrong_weigh_nothing(tmp_path: Path) -> None:
    # A half is too long; of the others some are wrong, so that there is something to find.
    said = ["Six sevens.", TOO_LONG] * 30
    wrong = readable = 0
    rollout = {"engine": DEMONSTRATED | {"errors": True}, "max_tokens": 100}
    for step in steps_of(supervised(tmp_path / "q.jsonl", said, rollout=rollout)):
        texts = [t.turns[0].text for t in step.transcripts]
        weights = [row.over_tokens("advantages")[row.mask > 0] for row in step.batch.rows]
        assert [set(w) for w in weights] == [{float("42}" in text)} for text in texts]
        credits = np.concatenate([row.over_tokens("credits") for row in step.batch.rows], axis=1)
        assert credits.min() == 0.0
        failed = sum("boxed" not in text for text in texts)
        assert step.metrics["imitation/failed_turns"] == failed
        against = sum("{42}" not in text for text in texts)
        assert step.metrics["imitation/turns_against"] == against
        wrong += against - failed
        readable += len(texts) - failed
    assert 0 < wrong < readable


def test_no_stream_weight_trains_against_a_demonstration(tmp_path: Path) -> None:
    streams = {"generator": {"weight": -1.0}}
    recipe = supervised(
        tmp_path / "q.jsonl",
        ["\\boxed{42}"] * 20,
        advantage={"baseline": "none", "streams": streams},
    )
    (step,) = steps_of(recipe, 1)
    assert all(not row.advantages.any() for row in step.batch.rows)
    assert step.metrics["imitation/turns_against"] == 8


def test_demonstrations_without_the_comparisons_that_are_asked_for_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = "<solution>42</solution><evaluation>N/A</evaluation><comparison>N/A</comparison>"
    monkeypatch.setattr(QuestionSource, "demonstrate", lambda *_, **__: silent)
    debate = {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"}
    recipe = supervised(tmp_path / "q.jsonl", ["42"] * 60, debate=debate)
    with pytest.raises(UsageError, match="asked to compare others and do not"):
        steps_of(recipe)
    (step,) = steps_of(
        recipe.model_copy(update={"debate": recipe.debate.model_copy(update={"max_rounds": 1})}), 1
    )
    assert all(row.advantages.any() for row in step.batch.rows)


PUZZLES = [
    Question(f"{n}", "make 4 Q 6 5 1 6", "+ - -", {"kind": "text", "accept": ["+ - -"]})
    for n in range(12)
]


@pytest.mark.parametrize(
    ("questions", "say", "style"),
    [(MATH, worked_turn, "full"), (PUZZLES, demonstration, "compact")],
    ids=["math", "signs_puzzle"],
)
def test_worked_checks_of_single_answers_and_of_pairs_are_right(questions, say, style):
    settings = {"judges": 6, "style": style, "contract": {"name": "a", "sections": ["solution"]}}
    rightness = []
    for number, question in enumerate(questions):
        alone = Checked.model_validate({**settings, "judges_see": "answer"})
        debate = read_debate(play_worked(alone, question, number, say))
        for turn, checks in checks_by_turn(debate).items():
            expected = is_right(question, debate.turns[turn].parsed.answer)
            assert [check.is_right for check in checks] == [expected] * len(checks)
            rightness += [expected] * len(checks)
        pairs = Checked.model_validate({**settings, "judges_see": "pair"})
        figures = debate_metrics([play_worked(pairs, question, number, say)])
        assert figures.get("judge/accuracy", 1.0) == 1.0
    assert {True, False} == set(rightness) and len(rightness) == 6 * len(questions)
