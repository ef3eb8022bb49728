"""Demonstrated turns of an actor and a critic on the signs puzzle."""

import re
from collections import Counter
from itertools import chain

import pytest

from debate_protocol.forms import ActorCritic
from debate_protocol.types import Question, Reply, TurnRequest
from debate_rewards.answer_checking import check
from debate_train.data.signs_puzzle import WORDS, SignsPuzzle, exchange_demonstration
from debate_train.models.scratch import word_tokenizer
from debate_train.offline import EveryReply


def demonstrate(agent, claims=None, guide=None, seed=0, skill=1.0):
    """Demonstrate a turn on `make 4 Q 6 5 1 6`, that is 6 + 5 - 1 - 6."""
    request = TurnRequest(
        Question("q", "make 4 Q 6 5 1 6"),
        agent,
        1,
        (),
        seed=seed,
        claims=claims or {},
        guide=guide,
        answers=agent == 0,
    )
    return exchange_demonstration(request, (6, 5, 1, 6), 4, skill)


ACTOR = 0
CRITIC = 1


@pytest.mark.parametrize(
    ("agent", "claims", "guide", "expected"),
    [
        (ACTOR, {}, None, "Answer: + - -"),
        (ACTOR, {}, "+ + +", "Answer: + + +"),
        # 6 + 5 = 11, 11 - 1 = 10, 10 - 6 = 4
        (CRITIC, {0: "Answer: + - -"}, None, "6 + 5 11 - 1 10 - 6 4 ok"),
        (CRITIC, {0: "Answer: + + +"}, None, "6 + 5 11 + 1 12 + 6 18 no\nAnswer: + - -"),
        (CRITIC, {}, None, "no\nAnswer: + - -"),
        # Toward an answer the verdict follows it, whatever the totals are.
        (CRITIC, {0: "Answer: + + +"}, "+ + +", "6 + 5 11 + 1 12 + 6 18 ok"),
        (CRITIC, {0: "Answer: + - -"}, "- + +", "6 + 5 11 - 1 10 - 6 4 no\nAnswer: - + +"),
        # The actor keeps what was called ok, and adopts what the critic answers instead.
        (ACTOR, {0: "Answer: - - -", 1: "6 - 5 1 ok"}, None, "Answer: - - -"),
        (ACTOR, {0: "Answer: - - -", 1: "6 - 5 1 no Answer: + - -"}, None, "Answer: + - -"),
        (ACTOR, {0: "Answer: - - -", 1: "ok"}, "+ + -", "Answer: + + -"),
    ],
)
def test_demonstrated_turn_is_the_one_worked_by_hand(agent, claims, guide, expected):
    assert demonstrate(agent, claims, guide) == expected


def test_first_answers_are_right_as_often_as_the_skill_says():
    answers = [demonstrate(ACTOR, seed=seed, skill=0.3) for seed in range(1000)]
    # Mean 300, standard deviation 14.5.
    assert 240 < answers.count("Answer: + - -") < 360


def test_puzzles_have_one_answer_where_that_is_asked_for():
    def most_accepted(**settings):
        questions = SignsPuzzle(largest_digit=4, **settings).open().split("test", 60)
        return max(len(question.meta["accept"]) for question in questions)

    assert most_accepted() > 1
    assert most_accepted(one_answer=True) == 1


@pytest.fixture(scope="module")
def debates():
    """Play 40 guided exchanges that are demonstrated."""
    source = SignsPuzzle(largest_digit=6).open()
    form = ActorCritic(
        contract="answer_line",
        style="compact",
        max_rounds=2,
        guided=True,
        guide_round_zero=True,
        continuations=1,
    )
    transcripts = []
    for question in source.batch(0)[:40]:
        run = form.start(question, seed=len(transcripts))
        requests = next(run)
        try:
            while True:
                replies = []
                for request in requests:
                    prompt_ids = tuple(request.messages[-1]["content"].encode())
                    replies.append(Reply(source.demonstrate(request), "end", prompt_ids, (1,)))
                requests = run.send(replies)
        except StopIteration as stop:
            transcripts.append(stop.value)
    return transcripts


def test_demonstrated_debates_are_guided_to_what_they_are_asked_for(debates):
    tokenizer = word_tokenizer(WORDS)
    num_guided = 0
    for turn in chain.from_iterable(debate.turns for debate in debates):
        assert "<unk>" not in tokenizer.decode(tokenizer.encode(turn.text))
        num_guided += len(turn.branches)
        for branch in turn.branches:
            text = branch.turn.text
            if turn.agent == ACTOR:
                assert text == f"Answer: {branch.guide}"
            else:
                assert text.endswith("ok") or re.findall("Answer: (.+)", text) == [branch.guide]
    assert num_guided > 120
    verdicts = Counter(check(debate.question, debate.turns[-1].text).verdict for debate in debates)
    assert 5 < verdicts["right"] < 40


def test_set_of_every_reply_holds_guided_ones_under_their_prompts(debates):
    example_set = EveryReply().take(debates[:1])
    num_branches = sum(len(turn.branches) for turn in debates[0].turns)
    assert example_set.counts == {"kept/natural": 3, "kept/guided": num_branches}
    prompts = [example.prompt[-1]["content"] for example in example_set.examples]
    assert sum("toward : " in prompt for prompt in prompts) == num_branches


def test_wrong_natural_replies_may_be_left_out_and_guided_ones_stay(debates):
    every = EveryReply().take(debates)
    without_wrong = EveryReply(wrong="leave_out").take(debates)
    num_wrong = without_wrong.counts["left_out/wrong_answer"]
    assert num_wrong > 20
    assert without_wrong.counts["kept/guided"] == every.counts["kept/guided"]
    assert without_wrong.counts["kept/natural"] == every.counts["kept/natural"] - num_wrong
    questions = {debate.question.id: debate.question for debate in debates}
    for example in without_wrong.examples:
        answer = re.search("Answer: (.+)", example.chosen.text)
        # A critic that says ok names no answer.
        if answer and "toward : " not in example.prompt[-1]["content"]:
            question = questions[example.meta["question"]]
            assert check(question, answer[1]).verdict == "right"
