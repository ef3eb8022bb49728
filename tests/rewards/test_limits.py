"""What hostile answers and transcripts cost, and what is refused."""

import json
import time
from dataclasses import replace

import pytest

from debate_protocol.transcripts.files import write_transcripts
from debate_protocol.types import Question
from debate_rewards import answer_checking as answers
from debate_rewards.answer_checking import MAX_COMPARED, answer_classes, check
from debate_rewards.answers.folding import text_form
from debate_rewards.answers.questions import read_answer
from debate_rewards.answers.reply import KINDS
from debate_rewards.cli import main
from debate_rewards.math_pool import AnswerComparison
from debate_rewards.metrics import debate_metrics
from debate_rewards.turn_rewards import Persuasion
from debate_rewards.vote_metrics import intraclass_moments

# Two combining marks in descending class: the worst that sorting by class can meet.
MARKS = "\u0315\u0300"


def growth(run, small, large):
    """How many times longer the large one takes, the best of three, with 5 ms set aside."""

    def seconds(size):
        started = time.process_time()
        run(size)
        return time.process_time() - started

    at_least = max(min(seconds(small) for _ in range(2)), 1e-3)
    return min(max(0.0, seconds(large) - 0.005) / at_least for _ in range(3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["{}", "Answer: a{}", "\\boxed{{a{}}}", "a\n#### {}"])
def test_reading_an_answer_takes_linear_time_when_it_is_of_combining_marks(kind, place):
    question = Question("q", "?", "1", {"kind": kind, "choices": ["a", "b"]})

    def read(size):
        read_answer(question, place.format(MARKS * (size // 2)))

    # 16 times the text takes 16 times as long if linear, 256 times if quadratic.
    assert growth(read, 4_000, 64_000) < 64


def test_text_form_folds_compatible_characters_up_to_its_limit():
    assert text_form("Ｏﬃce № 5.") == text_form("office no 5")
    long = "ﬁ" * 4097
    assert text_form(f"{long} ") == long.casefold()
    assert text_form(long) != text_form(long + "x")


@pytest.mark.parametrize(
    "accept", ["17", 17, {"a": "17"}, [["17"]], [None], [True], [float("inf")]]
)
def test_check_refuses_accepted_answers_that_are_no_list_of_texts(accept):
    question = Question("q7", "?", "42", {"accept": accept})
    with pytest.raises(ValueError, match=r"question 'q7', meta.accept: found .*, expected a list"):
        check(question, "1")


def test_check_takes_accepted_answers_that_are_numbers():
    question = Question("q", "?", "42", {"accept": [17, "18"]})
    assert [check(question, said).verdict for said in ("17", "18", "1")] == ["right"] * 2 + [
        "wrong"
    ]


@pytest.mark.parametrize("accept", ["17", 17])
def test_commands_refuse_accepted_answers_that_are_no_list(accept, tmp_path, capsys, hold):
    debates, pairs = tmp_path / "debates.jsonl", tmp_path / "pairs.jsonl"
    write_transcripts(debates, [hold([""] * 3, answer="s1", meta={"accept": accept})])
    pairs.write_text(json.dumps({"id": "d", "gold": "1", "prediction": "2", "accept": accept}))
    for command in (
        ["stats", str(debates)],
        ["score", str(debates), "--reward", "verifiable"],
        ["score", str(debates), "--reward", "truth_judge"],
        ["score", str(debates), "--reward", "partial_trajectory"],
        ["verify", str(pairs)],
    ):
        assert main(command) == 2
        out, err = capsys.readouterr()
        assert not out
        assert f"accept: found {accept!r}, expected a list of texts" in err


@pytest.mark.parametrize("kind", ["math", "number", "text"])
def test_classes_of_many_answers_ask_no_worker_where_text_decides(kind, monkeypatch):
    monkeypatch.setattr(answers, "_compare_formulas", None)
    said = [str(k) for k in range(300)] * 2
    classes = answer_classes(Question("q", "?", None, {"kind": kind}), said)
    assert classes == [*range(300)] * 2


def test_classes_compare_a_limited_number_of_pairs(monkeypatch):
    asked = []

    def compare(gold, given, limit_s):
        asked.append({gold, given})
        return AnswerComparison("different", 0.0)

    monkeypatch.setattr(answers, "_compare_formulas", compare)
    said = [rf"\sqrt{{x+{k}}}" for k in range(60)]
    assert answer_classes(Question("q", "?"), said + said) == [*range(60)] * 2
    # Of the 60·59/2 = 1770 pairs.
    assert len(asked) == 2 * MAX_COMPARED


def test_an_answer_that_takes_too_long_is_waited_for_twice_at_most(monkeypatch):
    bad, asked = "x^{9^{9^9}}", []

    class Pool:
        def compare(self, gold, given, limit_s):
            asked.append((gold, given))
            outcome = {gold: "gold_timeout", given: "timeout"}.get(bad, "different")
            return AnswerComparison(outcome, limit_s if bad in (gold, given) else 0.0)

    cache = type(answers._cache)()
    monkeypatch.setattr(answers, "_cache", cache)
    monkeypatch.setattr(answers, "shared_pool", Pool)
    said = [*(rf"\sqrt{{y+{k}}}" for k in range(9)), bad]
    assert answer_classes(Question("q", "?"), said) == [*range(10)]
    assert len([pair for pair in asked if bad in pair]) == 2


def test_intraclass_moments_are_those_of_all_pairs():
    groups = [[1.0, 0.0, 1.0], [0.5, 0.25], [1.0]]
    pairs = [a * b for own in groups for i, a in enumerate(own) for b in own[i + 1 :]]
    apart = [a * b for i, own in enumerate(groups) for o in groups[i + 1 :] for a in own for b in o]
    values = [value for own in groups for value in own]
    within, between = sum(pairs) / len(pairs), sum(apart) / len(apart)
    mean_square = sum(value * value for value in values) / len(values)
    expected = (within - between, mean_square - between)
    assert intraclass_moments(groups) == pytest.approx(expected, rel=1e-12)


def long_debate(hold, rounds, n=2):
    """One turn a round, of agents in turn; only the round before is shown."""
    spoken = [{number % 2: ""} for number in range(rounds)]
    return hold(*spoken, n=n, answer="s1", history_rounds=1)


def test_metrics_of_many_rounds_take_linear_time(hold):
    debates = {rounds: long_debate(hold, rounds) for rounds in (60, 960)}
    # 16 times the rounds: 16 times as long if linear, 256 times if quadratic.
    assert growth(lambda rounds: debate_metrics([debates[rounds]]), 60, 960) < 64


def test_persuasion_asks_only_agents_who_spoke(hold):
    spoken = [dict.fromkeys(range(12), "A0>A1") for _ in range(3)]
    few = hold(*spoken, n=12, evaluation="Agent 3 is wrong. Agent 4 too.")
    many = replace(few, protocol=replace(few.protocol, num_agents=1000))
    own, padded = Persuasion()([few, many])
    assert padded.credits == own.credits
    debates = {1: [few], 2: [many]}
    assert growth(lambda which: Persuasion()(debates[which]), 1, 2) < 10


@pytest.mark.parametrize("reward", ["verifiable", "partial_trajectory", "v2", "win_rate"])
def test_score_and_stats_refuse_turns_that_cannot_be(reward, tmp_path, capsys, hold):
    debate = hold([""] * 3, answer="s1", max_rounds=2)
    file = tmp_path / "debates.jsonl"
    for (agent, round_), expected in {
        (7, 0): "agents 0 to 2",
        (-1, 0): "agents 0 to 2",
        (0, 5): "rounds 0 to 1",
        (0, -1): "rounds 0 to 1",
        (0, 0): "found twice",
    }.items():
        odd = replace(debate.turns[0], agent=agent, round=round_)
        write_transcripts(file, [replace(debate, turns=(*debate.turns, odd))])
        for command in (["stats", str(file)], ["score", str(file), "--reward", reward]):
            assert main(command) == 2
            assert expected in capsys.readouterr().err
