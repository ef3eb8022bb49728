"""Sets of examples: which pairs and replies debates give, against tables worked by hand."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from debate_protocol.forms import ActorCritic, Simultaneous
from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Branch, Reply, Transcript, Turn
from debate_train.offline import (
    AnswerPairs,
    ChosenReplies,
    Completion,
    EveryReply,
    ExampleSet,
    GuidedPairs,
    read_examples,
)
from debate_train.offline.offline_set import counted, summed

Json = dict[str, Any]
NUMBERS = itertools.count(100)
PROMPT = {"role": "user", "content": "natural"}
GUIDED = {"role": "user", "content": "natural, and support yes"}


def said(agent: int, round: int, text: str, **more: Any) -> Json:
    return {"agent": agent, "round": round, "text": text, "prompt": [PROMPT], **more}


def answers(round: int, right: int, of: int) -> list[Json]:
    """Roll-outs of a critic's state: the actor's next answers, this many of them right."""
    texts = ["\\boxed{yes}"] * right + ["\\boxed{no}"] * (of - right)
    return [said(0, round + 1, text) for text in texts]


def replies(round: int, right: int, of: int) -> list[Json]:
    """Roll-outs of an actor's state: feedback, then an answer."""
    return [said(1, round, "well", continuations=[one]) for one in answers(round, right, of)]


def guided(guide: str, turn: Json) -> Json:
    return {"guide": guide, "turn": {**turn, "prompt": [GUIDED]}}


def with_replies(transcript: Transcript) -> Transcript:
    """Give every turn, and every branch, tokens of its own."""

    def heard(turn: Turn) -> Turn:
        reply = Reply(turn.text, "end", (1, turn.agent, turn.round), (next(NUMBERS), 9))
        branches = tuple(Branch(b.guide, heard(b.turn)) for b in turn.branches)
        return replace(turn, reply=reply, branches=branches)

    return replace(transcript, turns=tuple(map(heard, transcript.turns)))


def exchange(*turns: Json) -> Transcript:
    rules = {**ACTOR_CRITIC, "max_rounds": 3}
    question = {"id": "q", "text": "?", "answer": "yes", "meta": {"kind": "yes_no"}}
    found = {"id": "d", "question": question, "protocol": rules, "turns": list(turns)}
    return with_replies(from_json(found))


ACTOR_CRITIC: Json = {
    "num_agents": 2,
    "schedule": "sequential",
    "contract": "boxed",
    "topology": "actor_critic",
    "history_rounds": 1,
}

# Values, natural / guided right / guided wrong, of ten roll-outs each:
# actor 1: .4 / .6 / .1   critic 1: .7 / .8 / .5   actor 2 (the end): wrong 0 / right 1 / wrong 0
DEBATE = exchange(
    said(0, 0, "\\boxed{no}"),
    said(1, 0, "look"),
    said(
        0,
        1,
        "\\boxed{no}",
        continuations=replies(1, 4, 10),
        branches=[
            guided("yes", said(0, 1, "so \\boxed{yes}", continuations=replies(1, 6, 10))),
            guided("no", said(0, 1, "so \\boxed{no}", continuations=replies(1, 1, 10))),
        ],
    ),
    said(
        1,
        1,
        "look again",
        continuations=answers(1, 7, 10),
        branches=[
            guided("yes", said(1, 1, "it is yes", continuations=answers(1, 8, 10))),
            guided("no", said(1, 1, "it is no", continuations=answers(1, 5, 10))),
        ],
    ),
    said(
        0,
        2,
        "\\boxed{no}",
        branches=[
            guided("yes", said(0, 2, "now \\boxed{yes}")),
            guided("no", said(0, 2, "now \\boxed{no}")),
        ],
    ),
)


@pytest.mark.parametrize(
    ("role", "threshold", "both", "pairs"),
    [
        # Gains of the actor: round 1 +.2 and +.3, round 2 +1 and 0.
        ("actor", 0.2, False, [("so yes", "no"), ("now yes", "no")]),
        ("actor", 0.2, True, [("so yes", "no"), ("no", "so no"), ("now yes", "no")]),
        # Eq. 4: the second case counts where the first does not.
        ("actor", 0.25, False, [("no", "so no"), ("now yes", "no")]),
        ("actor", 0.5, False, [("now yes", "no")]),
        # Gains of the critic: +.1 and +.2.
        ("critic", 0.1, False, [("it is yes", "look again")]),
        ("critic", 0.15, False, [("look again", "it is no")]),
        ("critic", 0.1, True, [("it is yes", "look again"), ("look again", "it is no")]),
        ("critic", 0.25, False, []),
    ],
)
def test_guided_pairs_are_those_of_equation_4(
    role: str, threshold: float, both: bool, pairs: list[tuple[str, str]]
) -> None:
    wanted = GuidedPairs(
        role=role, threshold=threshold, pairs_per_state="both" if both else "first"
    )
    taken = wanted.take([DEBATE])
    found = [(e.chosen.text, e.rejected.text) for e in taken.examples if e.rejected]

    def plain(text: str) -> str:
        return text.replace("\\boxed{", "").replace("}", "")

    assert [(plain(a), plain(b)) for a, b in found] == pairs
    states = 2 if role == "actor" else 1
    left_out = sum(n for name, n in taken.counts.items() if name.startswith("left_out/"))
    with_pair = len({example.meta["round"] for example in taken.examples})
    assert left_out == states - with_pair


def test_pair_has_the_natural_prompt_and_nothing_of_its_guidance() -> None:
    for role in ("actor", "critic"):
        taken = GuidedPairs(role=role, threshold=0.1, pairs_per_state="both").take([DEBATE])
        for example in taken.examples:
            assert example.prompt == (PROMPT,)
            assert example.prompt_ids == (1, example.agent, example.meta["round"])
            assert "support" not in json.dumps(example.to_json())


def test_pair_keeps_what_its_replies_are_worth() -> None:
    first = GuidedPairs(role="actor", threshold=0.2).take([DEBATE]).examples[0]
    meta = dict(first.meta)
    assert meta["gain"] == pytest.approx(0.2)
    assert (meta["chosen_value"], meta["rejected_value"]) == (0.6, 0.4)
    # √(p(1 − p)/(n − 1)) of six and of four right of ten
    assert meta["chosen_standard_error"] == pytest.approx((0.6 * 0.4 / 9) ** 0.5)
    assert (meta["chosen_rollouts"], meta["guided"], meta["round"]) == (10, "chosen", 1)


def test_values_of_guided_and_natural_states_are_measured() -> None:
    measures = GuidedPairs(role="actor").take([DEBATE]).measures
    assert measures == {
        "value_natural": [0.4, 0.0],
        "value_guided_right": [0.6, 1.0],
        "value_guided_wrong": [0.1, 0.0],
    }


def test_failed_reply_is_never_chosen() -> None:
    turns = list(DEBATE.turns)
    last = turns[-1]
    # Transcripts of others may have no `failure`: what a turn lacks says it, too.
    for broken in ({"failure": "no_answer"}, {"text": "well"}):
        right = replace(last.branches[0], turn=replace(last.branches[0].turn, **broken))  # type: ignore[arg-type]
        said = replace(last, branches=(right, last.branches[1]))
        taken = GuidedPairs(role="actor", threshold=0.9).take(
            [replace(DEBATE, turns=(*turns[:-1], said))]
        )
        assert taken.examples == []
        assert taken.counts == {"left_out/below_threshold": 2}


def test_reply_that_says_nothing_is_not_imitated() -> None:
    taken = EveryReply().take([exchange(said(0, 0, "\\boxed{no}"), said(1, 0, " "))])
    assert [e.agent for e in taken.examples] == [0]
    assert taken.counts == {"kept/natural": 1, "left_out/no_tokens": 1}


def test_critic_that_says_nothing_is_never_chosen() -> None:
    turns = list(DEBATE.turns)
    right, wrong = turns[3].branches
    empty = replace(right, turn=replace(right.turn, text=" "))
    turns[3] = replace(turns[3], branches=(empty, wrong))
    taken = GuidedPairs(role="critic", threshold=0.1).take([replace(DEBATE, turns=tuple(turns))])
    assert [(e.chosen.text, e.meta["guided"]) for e in taken.examples] == [
        ("look again", "rejected")
    ]


@pytest.mark.parametrize(
    ("threshold", "pairs"),
    # The actor's values guided right over guided wrong: .6 over .1, then 1 over 0.
    [
        (0.5, [("so yes", "so no"), ("now yes", "now no")]),
        (0.6, [("now yes", "now no")]),
    ],
)
def test_guided_replies_are_compared_with_each_other_when_asked_to(
    threshold: float, pairs: list[tuple[str, str]]
) -> None:
    taken = GuidedPairs(role="actor", threshold=threshold, compare="guided").take([DEBATE])
    found = [(e.chosen.text, e.rejected.text) for e in taken.examples if e.rejected]
    assert [
        (a.replace("\\boxed{", "")[:-1], b.replace("\\boxed{", "")[:-1]) for a, b in found
    ] == pairs
    assert [e.prompt for e in taken.examples] == [(PROMPT,)] * len(pairs)
    assert taken.counts["kept/right_over_wrong"] == len(pairs)
    with pytest.raises(ValidationError, match="found both with compare: guided"):
        GuidedPairs(role="actor", compare="guided", pairs_per_state="both")


def test_debate_that_was_guided_one_way_is_left_out_whole() -> None:
    def one_way(turn: Turn) -> Turn:
        return replace(turn, branches=turn.branches[:1])

    half = replace(DEBATE, turns=tuple(map(one_way, DEBATE.turns)))
    open_ended = replace(DEBATE, question=replace(DEBATE.question, answer=None))
    taken = GuidedPairs(role="actor", threshold=0.1).take([half, open_ended, DEBATE])
    assert len(taken.examples) == 2
    assert taken.counts["left_out/no_wrong_answer"] == taken.counts["left_out/no_right_answer"] == 1
    # All three values are those of the same states.
    assert {len(values) for values in taken.measures.values()} == {2}


def checked(answer: str, natural: str, right: str, wrong: str) -> Transcript:
    """A debate whose critic's replies are these, worth .5, .9 and .1."""
    branches = [
        guided(guide, said(1, 1, text, continuations=answers(1, count, 10)))
        for guide, text, count in (("yes", right, 9), ("no", wrong, 1))
    ]
    states = answers(1, 5, 10)
    return exchange(
        said(0, 1, f"\\boxed{{{answer}}}"),
        said(1, 1, natural, continuations=states, branches=branches),
    )


def test_pairs_say_how_they_split_into_right_and_wrong() -> None:
    no, yes = "no: \\boxed{no}", "no: \\boxed{yes}"
    debates = [
        checked("no", "ok", yes, "ok"),  # names the right answer, where ok stood for a wrong one
        checked("yes", no, "ok", no),  # ok stands for the actor's right answer
        checked("yes", no, "still \\boxed{yes}", no),
        checked("no", "hm", "well", "so"),  # prose: nobody knows what it stands for
    ]
    taken = GuidedPairs(role="critic").take(debates)
    keys = ("chosen_right", "rejected_right", "chosen_ok", "actor_right")
    assert [tuple(e.meta[key] for key in keys) for e in taken.examples] == [
        (True, False, False, False),
        (True, False, True, True),
        (True, False, True, True),
        (None, None, None, False),
    ]
    found = summed([{**counted(taken, ExampleSet(), debates), "examples": _rows(taken)}])
    assert {k: v for k, v in found.items() if "share" in k or "margin" in k} == pytest.approx(
        {
            "offline/chosen_right_share": 1.0,
            "offline/rejected_right_share": 0.0,
            "offline/chosen_ok_share": 2 / 3,
            "offline/actor_right_share": 1 / 2,
            "offline/margin": 0.4,
            "offline/margin_actor_right": 0.4,
            "offline/margin_actor_wrong": 0.4,
        }
    )


def test_pairs_of_an_actor_are_about_its_last_answer() -> None:
    taken = GuidedPairs(role="actor", threshold=0.2).take([DEBATE])
    assert [(e.meta["chosen_right"], e.meta["actor_right"]) for e in taken.examples] == [
        (True, False),
        (True, False),
    ]
    assert all(e.meta["chosen_ok"] is None for e in taken.examples)
    pairs = AnswerPairs().take([debate(["4", "5", "5"], ["5", "4", "5"])])
    (pair,) = pairs.examples  # The majority is wrong.
    assert (pair.meta["chosen_right"], pair.meta["rejected_right"]) == (False, True)


def _rows(taken: ExampleSet) -> list[Json]:
    return [example.to_json() for example in taken.examples]


def debate(*rounds: list[str | None], answer: str | None = "4") -> Transcript:
    """A debate whose agents give these answers; None is a reply without one."""
    form = Simultaneous(num_agents=len(rounds[0]), max_rounds=len(rounds), personas="none")
    turns = [
        said(
            agent,
            number,
            f"<solution>a{number}{agent} \\boxed{{{text}}}</solution><evaluation>e{number}"
            "</evaluation><comparison>N/A</comparison>"
            if text is not None
            else "so",
        )
        for number, texts in enumerate(rounds)
        for agent, text in enumerate(texts)
    ]
    protocol = form.protocol()
    rules = {
        "num_agents": protocol.num_agents,
        "max_rounds": protocol.max_rounds,
        "schedule": "parallel",
        "contract": "three_section",
        "topology": "all",
        "history_rounds": -1,
    }
    question = {"id": "q", "text": "2 + 2?", "answer": answer, "meta": {"kind": "number"}}
    found = {"id": "d", "question": question, "protocol": rules, "turns": turns}
    return with_replies(from_json(found))


def who(found: Completion | None) -> str:
    assert found is not None
    return found.text[len("<solution>") :].split()[0]


def test_answer_pairs_set_the_majority_over_the_others() -> None:
    one = debate(["4", "5", "5"], ["5", "4", "5"])
    taken = AnswerPairs().take([one])
    assert [(who(e.chosen), who(e.rejected)) for e in taken.examples] == [("a10", "a11")]
    # By the question's own answer, which is not the majority's, and in the first round.
    taken = AnswerPairs(by="answer", round="first").take([one])
    assert [(who(e.chosen), who(e.rejected)) for e in taken.examples] == [
        ("a00", "a01"),
        ("a00", "a02"),
    ]


def test_debates_without_two_sides_have_no_pair() -> None:
    tie, alike, none = debate(["4", "5"]), debate(["5", "5"]), debate([None, None])
    taken = AnswerPairs().take([tie, alike, none, debate(["5", None])])
    assert taken.examples == []
    assert taken.counts == {"left_out/no_decision": 2, "left_out/all_agree": 2}
    without = AnswerPairs(by="answer").take([debate(["4", "5"], answer=None), alike])
    assert without.counts == {"left_out/no_decision": 1, "left_out/none_chosen": 1}


def test_equal_answers_in_other_words_are_one_side() -> None:
    taken = AnswerPairs().take([debate(["4.0", "4", "5"])])
    assert [(who(e.chosen), who(e.rejected)) for e in taken.examples] == [("a00", "a02")]


def test_chosen_replies_are_imitated_in_their_prompts() -> None:
    taken = ChosenReplies(round="last").take([debate(["4", "5", "5"], ["5", "4", "4"])])
    assert [who(e.chosen) for e in taken.examples] == ["a11", "a12"]
    assert [e.prompt_ids for e in taken.examples] == [(1, 1, 1), (1, 2, 1)]
    assert taken.counts == {"kept/answer": 2, "left_out/other_answer": 1}
    one = ChosenReplies(replies_per_debate=1).take([debate(["4", "4", "5"])])
    assert [who(e.chosen) for e in one.examples] == ["a00"]


def test_answer_of_a_debate_is_learned_as_a_first_turn() -> None:
    one = debate(["5", "5", None], ["4", "5", "4"])
    taken = ChosenReplies(learned_as="first_turn").take([one])
    # Agent 2 has no first turn of its own to put the answer into.
    (example,) = taken.examples
    assert example.chosen.text == (
        "<solution>a10 \\boxed{4}</solution><evaluation>e0</evaluation><comparison>N/A</comparison>"
    )
    assert example.prompt_ids == (1, 0, 0)
    assert example.chosen.token_ids == ()
    assert taken.counts["left_out/no_first_turn"] == 1


def test_examples_are_read_as_they_were_written(tmp_path: Path) -> None:
    examples = [
        *GuidedPairs(role="actor", threshold=0.1, pairs_per_state="both").take([DEBATE]).examples,
        *ChosenReplies().take([debate(["4", "5"])]).examples,
    ]
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps(example.to_json()) + "\n" for example in examples))
    assert read_examples(path) == examples
    path.write_text('{"prompt": []}\n')
    with pytest.raises(ValueError, match=r"examples.jsonl:1: no example \(KeyError: 'sampled'\)"):
        read_examples(path)


def test_sets_say_which_debates_they_need() -> None:
    pairs = GuidedPairs(role="critic")
    assert pairs.problem(ActorCritic(guided=True, continuations=2)) is None
    assert "expected debate.type: actor_critic" in str(pairs.problem(ActorCritic()))
    assert "expected one of debater" in str(pairs.problem(Simultaneous()))
    distilled = ChosenReplies(learned_as="first_turn")
    assert distilled.problem(Simultaneous()) is None
    assert "sequential" in str(distilled.problem(ActorCritic()))
