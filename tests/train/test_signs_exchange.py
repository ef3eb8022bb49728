"""Demonstrated turns of an actor and a critic on the signs puzzle."""

import re
from collections import Counter
from typing import Any

import pytest

from debate_protocol.forms import ActorCritic
from debate_protocol.types import Question, Reply, Transcript, TurnRequest
from debate_rewards.answer_checking import check
from debate_train.data.signs_puzzle import WORDS, SignsPuzzle, exchange_demonstration
from debate_train.models.scratch import word_tokenizer
from debate_train.offline import EveryReply

DIGITS, TARGET = (6, 5, 1, 6), 4  # 6 + 5 - 1 - 6
QUESTION = "make 4 Q 6 5 1 6"


def said(agent: int, *lines: str, seed: int = 0, skill: float = 1.0) -> str:
    given = [line.partition(" : ") for line in lines]
    claims = {int(who[-1]): text for who, _, text in given if who != "toward"}
    guide = next((text for who, _, text in given if who == "toward"), None)
    settings: Any = {"seed": seed, "claims": claims, "guide": guide, "answers": agent == 0}
    request = TurnRequest(Question("q", QUESTION), agent, 1, (), **settings)
    return exchange_demonstration(request, DIGITS, TARGET, skill)


@pytest.mark.parametrize(
    ("agent", "lines", "expected"),
    [
        (0, (), "Answer: + - -"),
        (0, ("toward : + + +",), "Answer: + + +"),
        # 6 + 5 = 11, 11 - 1 = 10, 10 - 6 = 4
        (1, ("Agent 0 : Answer: + - -",), "6 + 5 11 - 1 10 - 6 4 ok"),
        (1, ("Agent 0 : Answer: + + +",), "6 + 5 11 + 1 12 + 6 18 no\nAnswer: + - -"),
        (1, (), "no\nAnswer: + - -"),
        # Toward an answer the verdict follows it, whatever the totals are.
        (1, ("Agent 0 : Answer: + + +", "toward : + + +"), "6 + 5 11 + 1 12 + 6 18 ok"),
        (
            1,
            ("Agent 0 : Answer: + - -", "toward : - + +"),
            "6 + 5 11 - 1 10 - 6 4 no\nAnswer: - + +",
        ),
        # The actor keeps what was called ok, and adopts what it was given instead.
        (0, ("Agent 0 : Answer: - - -", "Agent 1 : 6 - 5 1 ok"), "Answer: - - -"),
        (0, ("Agent 0 : Answer: - - -", "Agent 1 : 6 - 5 1 no Answer: + - -"), "Answer: + - -"),
        (0, ("Agent 0 : Answer: - - -", "Agent 1 : ok", "toward : + + -"), "Answer: + + -"),
    ],
)
def test_demonstrated_turn_is_the_one_worked_by_hand(
    agent: int, lines: tuple[str, ...], expected: str
) -> None:
    assert said(agent, *lines) == expected


def test_answers_of_ones_own_are_right_as_often_as_the_skill_says() -> None:
    found = Counter(said(0, seed=n, skill=0.3) == "Answer: + - -" for n in range(1000))
    # Mean 300, standard deviation 14.5.
    assert 240 < found[True] < 360


def demonstrated(count: int) -> list[Transcript]:
    source = SignsPuzzle(largest_digit=6).open()
    form = ActorCritic(
        contract="answer_line",
        style="compact",
        max_rounds=2,
        guided=True,
        guide_round_zero=True,
        continuations=1,
    )
    ended = []
    for question in source.batch(0)[:count]:
        run = form.start(question, seed=len(ended))
        requests = next(run)
        try:
            while True:
                replies = []
                for request in requests:  # type: ignore[union-attr]
                    text = source.demonstrate(request)
                    prompt = request.messages[-1]["content"]
                    replies.append(Reply(text, "end", tuple(prompt.encode()), (1,)))
                requests = run.send(replies)
        except StopIteration as stop:
            ended.append(stop.value)
    return ended


def test_puzzles_have_one_answer_where_that_is_asked_for() -> None:
    splits = (
        SignsPuzzle(largest_digit=4).open(),
        SignsPuzzle(largest_digit=4, one_answer=True).open(),
    )
    some, one = ([len(q.meta["accept"]) for q in source.split("test", 60)] for source in splits)
    assert max(some) > 1 and {*one} == {1}


def test_demonstrated_debates_are_guided_to_what_they_are_asked_for() -> None:
    debates = demonstrated(40)
    known = word_tokenizer(WORDS)
    guided = right = 0
    for debate in debates:
        for turn in debate.turns:
            assert "<unk>" not in known.decode(known.encode(turn.text))
            for branch in turn.branches:
                guided += 1
                if turn.agent == 0:
                    assert branch.turn.text == f"Answer: {branch.guide}"
                else:
                    named = re.findall("Answer: (.+)", branch.turn.text)
                    assert branch.turn.text.endswith("ok") or named == [branch.guide]
        right += check(debate.question, debate.turns[-1].text).verdict == "right"
    assert guided > 120
    assert 5 < right < 40


def test_set_of_every_reply_holds_guided_ones_under_their_own_prompts() -> None:
    (debate,) = demonstrated(1)
    taken = EveryReply().take([debate])
    branches = [branch for turn in debate.turns for branch in turn.branches]
    assert taken.counts == {"kept/natural": 3, "kept/guided": len(branches)}
    asked = [example.prompt[-1]["content"] for example in taken.examples]
    assert sum("toward : " in prompt for prompt in asked) == len(branches)


def test_wrong_natural_replies_may_be_left_out_and_guided_ones_stay() -> None:
    debates = demonstrated(40)
    every, clean = EveryReply().take(debates), EveryReply(wrong="leave_out").take(debates)
    assert clean.counts["kept/guided"] == every.counts["kept/guided"]
    dropped = clean.counts["left_out/wrong_answer"]
    assert dropped == every.counts["kept/natural"] - clean.counts["kept/natural"]
    questions = {debate.question.id: debate.question for debate in debates}
    named: Counter[str] = Counter()
    for example in clean.examples:
        if "toward : " not in example.prompt[-1]["content"]:
            question = questions[str(example.meta["question"])]
            answer = re.search("Answer: (.+)", example.chosen.text)
            named[check(question, answer[1]).verdict if answer else "none"] += 1
    assert set(named) == {"right", "none"}  # A critic that says ok names no answer.
    assert dropped > 20
