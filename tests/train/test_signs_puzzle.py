"""Demonstrated turns of an actor and a critic on the signs puzzle."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain, combinations
from typing import Any

import pytest

from debate_protocol.forms import ActorCritic, Judged, Simultaneous
from debate_protocol.parsing import Parsed, parse
from debate_protocol.types import Question, Reply, Transcript, TurnRequest
from debate_rewards.answer_checking import check
from debate_rollout.drivers import play
from debate_rollout.engines import ScriptedEngine
from debate_train.data.signs_puzzle import WORDS, SignsPuzzle, exchange_demonstration, read_puzzle
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
        # 6 + 5 = 11, 11 - 1 = 10, 10 - 6 = 4
        (CRITIC, {0: "Answer: + - -"}, None, "6 + 5 11 - 1 10 - 6 4 ok"),
        (CRITIC, {0: "Answer: + + +"}, None, "6 + 5 11 + 1 12 + 6 18 no\nAnswer: + - -"),
        # Toward an answer the verdict follows it, whatever the totals are.
        (CRITIC, {0: "Answer: + + +"}, "+ + +", "6 + 5 11 + 1 12 + 6 18 ok"),
        (CRITIC, {0: "Answer: + - -"}, "- + +", "6 + 5 11 - 1 10 - 6 4 no\nAnswer: - + +"),
        # The actor keeps what was called ok, and adopts what the critic answers instead.
        (ACTOR, {0: "Answer: - - -", 1: "6 - 5 1 ok"}, None, "Answer: - - -"),
        (ACTOR, {0: "Answer: - - -", 1: "6 - 5 1 no Answer: + - -"}, None, "Answer: + - -"),
    ],
)
def test_demonstrated_turn_is_the_one_worked_by_hand(agent, claims, guide, expected):
    assert demonstrate(agent, claims, guide) == expected


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


PUZZLES = SignsPuzzle(batch_size=48).open()
# Puzzles of three small digits: few enough to draw a whole split.
SMALL = SignsPuzzle(num_digits=3)


def total(digits: Sequence[int], signs: str) -> int:
    """Add and subtract from the left, by Python itself."""
    terms = [f"{sign} {digit}" for sign, digit in zip(signs.split(), digits[1:], strict=True)]
    result: int = eval(f"{digits[0]} {' '.join(terms)}")
    return result


def texts(questions: Sequence[Question]) -> set[str]:
    return {question.text for question in questions}


def test_splits_never_meet_and_are_always_the_same() -> None:
    splits = {name: PUZZLES.split(name, 300) for name in ("train", "dev", "test")}
    assert all(len(texts(questions)) == 300 for questions in splits.values())
    for first, second in combinations(splits.values(), 2):
        assert not texts(first) & texts(second)
    held_out = texts(splits["dev"]) | texts(splits["test"])
    for step in range(10):
        batch = texts(PUZZLES.batch(step))
        assert len(batch) == 48
        assert not batch & held_out
    assert PUZZLES.split("test", 20) == splits["test"][:20]


def test_split_ends_when_it_holds_no_more_and_has_the_same_questions_under_every_seed() -> None:
    # 2,058 different puzzles of three digits, of which 196 fall into the test split.
    every_question = texts(SMALL.open().split("test", 1000))
    assert len(every_question) == 196
    other_seed = SMALL.model_copy(update={"seed": 3})
    assert texts(other_seed.open().split("test", 50)) <= every_question


def test_every_right_choice_of_signs_is_accepted_and_no_other() -> None:
    for question in PUZZLES.split("dev", 40):
        digits, target = read_puzzle(question)
        assert question.text == f"make {target} Q {' '.join(map(str, digits))}"
        right_signs, wrong_signs = [], []
        for bits in range(8):
            signs = " ".join("+-"[bits >> place & 1] for place in range(3))
            is_right = total(digits, signs) == target
            (right_signs if is_right else wrong_signs).append(signs)
            verdict = "right" if is_right else "wrong"
            assert check(question, signs).verdict == verdict, (question.text, signs)
        assert check(question, "+ +").verdict == "wrong"
        assert sorted(question.meta["accept"]) == sorted(right_signs)
        assert sorted(question.meta["wrong_answers"]) == sorted(wrong_signs)


def demonstrated(form: Any, num_steps: int = 3, words: Sequence[str] = ()) -> list[Transcript]:
    """Debates of this form in which every reply is demonstrated."""
    tokenizer = word_tokenizer(list(words))
    engine = ScriptedEngine().open(None, tokenizer, script=PUZZLES.demonstrate)
    questions = [question for step in range(num_steps) for question in PUZZLES.batch(step)]
    runs = [form.start(question, seed=seed) for seed, question in enumerate(questions)]
    return play(runs, engine, max_tokens=200)


def simultaneous(**settings: Any) -> Simultaneous:
    return Simultaneous(num_agents=3, max_rounds=2, style="compact", personas="none", **settings)


def first_answers(debate: Transcript, contract: Any) -> dict[int, str]:
    first_turns = [turn for turn in debate.turns if turn.round == 0]
    return {turn.agent: parse(turn.text, contract).answer or "" for turn in first_turns}


def checked_line(agent: int, digits: Sequence[int], signs: str, is_right: bool) -> str:
    """The totals of an answer, step by step: `Agent 1 6 + 5 11 - 1 10 ok`."""
    steps = []
    for number, (sign, digit) in enumerate(zip(signs.split(), digits[1:], strict=True)):
        so_far = " ".join(signs.split()[: number + 1])
        steps.append(f"{sign} {digit} {total(digits[: number + 2], so_far)}")
    return f"Agent {agent} {digits[0]} {' '.join(steps)} {'ok' if is_right else 'no'}"


def assert_judges_by_the_truth(judge: Parsed, peers: list[int], is_right: dict[int, bool]) -> None:
    (vote,) = judge.comparisons
    assert {vote.left, vote.right} == set(peers)
    if is_right[peers[0]] == is_right[peers[1]]:
        assert vote.op == "="
    else:
        assert vote.op == ">"
        assert is_right[vote.left]


def test_demonstrations_check_and_vote_by_the_truth() -> None:
    shares_right = []
    for debate in demonstrated(simultaneous()):
        digits, target = read_puzzle(debate.question)
        answers = first_answers(debate, "three_section")
        is_right = {agent: total(digits, signs) == target for agent, signs in answers.items()}
        shares_right.append(sum(is_right.values()) / 3)
        for turn in debate.turns:
            parsed = parse(turn.text, "three_section", author=turn.agent, num_agents=3)
            assert parsed.problems == ()
            evaluation = parsed.sections["evaluation"].text
            if turn.round == 0:
                assert evaluation == "N/A"
                assert parsed.comparisons == ()
                continue
            peers = [agent for agent in range(3) if agent != turn.agent]
            lines = [checked_line(peer, digits, answers[peer], is_right[peer]) for peer in peers]
            assert evaluation == " ".join(lines)
            assert_judges_by_the_truth(parsed, peers, is_right)
            assert total(digits, parsed.answer or "") == target
    # Candidates are right and wrong in every mixture: chances are even from 0 to 1.
    assert {0.0, 1.0} < set(shares_right)
    assert 0.4 < sum(shares_right) / len(shares_right) < 0.6


def test_demonstrations_fit_the_words_of_the_tokenizer() -> None:
    unknown = word_tokenizer().unk_token_id
    judge_lengths = set()
    for debate in demonstrated(simultaneous()):
        for turn in debate.turns:
            assert turn.reply is not None
            assert unknown not in turn.reply.prompt_ids
            assert unknown not in turn.reply.token_ids
            assert turn.reply.finish == "stop"
            if turn.round:
                judge_lengths.add(len(turn.reply.token_ids))
    (length,) = judge_lengths
    assert length <= 48  # what a recipe for three agents must let a reply have


def before_a_judge(**settings: Any) -> list[Transcript]:
    contract = {"name": "worked", "sections": ["evaluation", "solution"]}
    form = Judged(style="compact", reasons=False, contract=contract, **settings)  # type: ignore[arg-type]
    words = ["<decision>", "</decision>", "right", "wrong"]
    return demonstrated(form, num_steps=5, words=words)


def false_steps(digits: Sequence[int], signs: Sequence[str], totals: Sequence[int]) -> list[int]:
    """Number the steps of a work whose total does not follow from the one before."""
    numbers = []
    for number, (sign, digit) in enumerate(zip(signs, digits[1:], strict=True)):
        if total((totals[number], digit), sign) != totals[number + 1]:
            numbers.append(number)
    return numbers


def test_a_weak_judge_checks_the_last_total_and_the_step_that_a_critic_names() -> None:
    outcomes = set()
    for debate in before_a_judge(opponent="critic"):
        digits, target = read_puzzle(debate.question)
        proposal, critique, judgment = (
            parse(turn.text, debate.protocol.contract_of(turn.round)) for turn in debate.turns
        )
        # The work is total, sign, digit, total, sign, digit, total and so on.
        work = proposal.sections["evaluation"].text.split()
        signs = (proposal.answer or "").split()
        totals = [int(word) for word in work[::3]]
        assert work[1::3] == signs
        assert work[2::3] == [str(digit) for digit in digits[1:]]
        steps = [work[3 * number : 3 * number + 4] for number in range(len(signs))]
        accused_step = steps.index(critique.sections["evaluation"].text.split())

        false = false_steps(digits, signs, totals)
        assert len(false) <= 1
        reaches_target = totals[-1] == target
        is_right = total(digits, proposal.answer or "") == target
        assert is_right == (not false and reaches_target)
        decision = judgment.sections["decision"].text
        is_believed = reaches_target and accused_step not in false
        assert decision == ("right" if is_believed else "wrong")
        outcomes.add((is_right, decision))
    assert outcomes == {(True, "right"), (False, "right"), (False, "wrong")}
