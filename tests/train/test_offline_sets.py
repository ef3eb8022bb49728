"""Sets of examples: which pairs and replies debates give, against tables worked by hand."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Branch, Message, Reply
from debate_train.commands.cli import main
from debate_train.offline import (
    AnswerPairs,
    ChosenReplies,
    Completion,
    Example,
    ExampleSet,
    GuidedPairs,
    read_examples,
)
from debate_train.offline.example_set import example_batch, held_out_accuracies, lengths
from debate_train.offline.offline_set import counted, summed
from train.offline_runs import PHASES, lines, patch_sets, write_recipe

TOKEN_IDS = itertools.count(100)
PROMPT = {"role": "user", "content": "natural"}
GUIDED_PROMPT = {"role": "user", "content": "natural, and support yes"}


def make_turn(agent, round, text, **more):
    return {"agent": agent, "round": round, "text": text, "prompt": [PROMPT], **more}


def with_replies(transcript):
    """Give every turn, and every branch, tokens that no other has."""

    def with_reply(turn):
        reply = Reply(turn.text, "end", (1, turn.agent, turn.round), (next(TOKEN_IDS), 9))
        branches = tuple(Branch(branch.guide, with_reply(branch.turn)) for branch in turn.branches)
        return replace(turn, reply=reply, branches=branches)

    return replace(transcript, turns=tuple(map(with_reply, transcript.turns)))


def texts_of(example_set):
    """List chosen and rejected replies without their boxes."""
    pairs = []
    for example in example_set.examples:
        texts = (example.chosen.text, example.rejected.text)
        pairs.append(tuple(text.replace("\\boxed{", "").replace("}", "") for text in texts))
    return pairs


# Guided exchanges of an actor and a critic


def answers(round, num_right, num_rollouts):
    """Roll out a critic's state: the actor's next answers, this many of them right."""
    texts = ["\\boxed{yes}"] * num_right + ["\\boxed{no}"] * (num_rollouts - num_right)
    return [make_turn(0, round + 1, text) for text in texts]


def feedbacks(round, num_right, num_rollouts):
    """Roll out an actor's state: feedback, then an answer."""
    next_answers = answers(round, num_right, num_rollouts)
    return [make_turn(1, round, "well", continuations=[answer]) for answer in next_answers]


def branch(guide, turn):
    return {"guide": guide, "turn": {**turn, "prompt": [GUIDED_PROMPT]}}


def exchange(*turns):
    protocol = {
        "num_agents": 2,
        "max_rounds": 3,
        "schedule": "sequential",
        "contract": "boxed",
        "topology": "actor_critic",
        "history_rounds": 1,
    }
    question = {"id": "q", "text": "?", "answer": "yes", "meta": {"kind": "yes_no"}}
    debate = {"id": "d", "question": question, "protocol": protocol, "turns": list(turns)}
    return with_replies(from_json(debate))


# Values, natural / guided right / guided wrong, of ten roll-outs each:
# actor 1: .4 / .6 / .1   critic 1: .7 / .8 / .5   actor 2 (the end): wrong 0 / right 1 / wrong 0
DEBATE = exchange(
    make_turn(0, 0, "\\boxed{no}"),
    make_turn(1, 0, "look"),
    make_turn(
        0,
        1,
        "\\boxed{no}",
        continuations=feedbacks(1, 4, 10),
        branches=[
            branch("yes", make_turn(0, 1, "so \\boxed{yes}", continuations=feedbacks(1, 6, 10))),
            branch("no", make_turn(0, 1, "so \\boxed{no}", continuations=feedbacks(1, 1, 10))),
        ],
    ),
    make_turn(
        1,
        1,
        "look again",
        continuations=answers(1, 7, 10),
        branches=[
            branch("yes", make_turn(1, 1, "it is yes", continuations=answers(1, 8, 10))),
            branch("no", make_turn(1, 1, "it is no", continuations=answers(1, 5, 10))),
        ],
    ),
    make_turn(
        0,
        2,
        "\\boxed{no}",
        branches=[
            branch("yes", make_turn(0, 2, "now \\boxed{yes}")),
            branch("no", make_turn(0, 2, "now \\boxed{no}")),
        ],
    ),
)


@pytest.mark.parametrize(
    ("settings", "pairs"),
    [
        # Gains of the actor: round 1 +.2 and +.3, round 2 +1 and 0.
        ({"role": "actor", "threshold": 0.2}, [("so yes", "no"), ("now yes", "no")]),
        (
            {"role": "actor", "threshold": 0.2, "pairs_per_state": "both"},
            [("so yes", "no"), ("no", "so no"), ("now yes", "no")],
        ),
        ({"role": "actor", "threshold": 0.5}, [("now yes", "no")]),
        # Gains of the critic: +.1 and +.2.
        ({"role": "critic", "threshold": 0.1}, [("it is yes", "look again")]),
        ({"role": "critic", "threshold": 0.25}, []),
        ({"role": "actor", "threshold": 0.6, "compare": "guided"}, [("now yes", "now no")]),
    ],
)
def test_guided_pairs_are_those_of_equation_4(settings, pairs):
    example_set = GuidedPairs(**settings).take([DEBATE])
    assert texts_of(example_set) == pairs
    for example in example_set.examples:
        # The natural prompt, and nothing of the guidance.
        assert example.prompt == (PROMPT,)
        assert example.prompt_ids == (1, example.agent, example.meta["round"])
        assert "support" not in json.dumps(example.to_json())
    num_states = 2 if settings["role"] == "actor" else 1
    states_with_pair = {example.meta["round"] for example in example_set.examples}
    counts = example_set.counts.items()
    num_left_out = sum(count for name, count in counts if name.startswith("left_out/"))
    assert num_left_out == num_states - len(states_with_pair)


@pytest.mark.parametrize("change", [{"failure": "no_answer"}, {"text": "well"}])
def test_failed_reply_is_never_chosen(change):
    # Transcripts of others may have no `failure`: what a turn lacks says it, too.
    *turns, last = DEBATE.turns
    right, wrong = last.branches
    failed = replace(right, turn=replace(right.turn, **change))
    debate = replace(DEBATE, turns=(*turns, replace(last, branches=(failed, wrong))))
    example_set = GuidedPairs(role="actor", threshold=0.9).take([debate])
    assert example_set.examples == []
    assert example_set.counts == {"left_out/below_threshold": 2}


def test_debate_that_was_guided_one_way_is_left_out_whole():
    turns = tuple(replace(turn, branches=turn.branches[:1]) for turn in DEBATE.turns)
    half = replace(DEBATE, turns=turns)
    open_ended = replace(DEBATE, question=replace(DEBATE.question, answer=None))
    example_set = GuidedPairs(role="actor", threshold=0.1).take([half, open_ended, DEBATE])
    assert len(example_set.examples) == 2
    assert example_set.counts["left_out/no_wrong_answer"] == 1
    assert example_set.counts["left_out/no_right_answer"] == 1
    # All three values are those of the same states.
    assert {len(values) for values in example_set.measures.values()} == {2}


def checked(answer, natural, right, wrong):
    """Make a debate whose critic's replies are these, worth .5, .9 and .1."""
    branches = [
        branch("yes", make_turn(1, 1, right, continuations=answers(1, 9, 10))),
        branch("no", make_turn(1, 1, wrong, continuations=answers(1, 1, 10))),
    ]
    return exchange(
        make_turn(0, 1, f"\\boxed{{{answer}}}"),
        make_turn(1, 1, natural, continuations=answers(1, 5, 10), branches=branches),
    )


def test_pairs_say_how_they_split_into_right_and_wrong():
    for_no = "no: \\boxed{no}"
    for_yes = "no: \\boxed{yes}"
    debates = [
        checked("no", "ok", for_yes, "ok"),  # names the right answer, where ok meant a wrong one
        checked("yes", for_no, "ok", for_no),  # ok means the actor's right answer
        checked("yes", for_no, "still \\boxed{yes}", for_no),
        checked("no", "hm", "well", "so"),  # prose: nobody knows what it means
    ]
    example_set = GuidedPairs(role="critic").take(debates)
    keys = ("chosen_right", "rejected_right", "chosen_ok", "actor_right")
    assert [tuple(example.meta[key] for key in keys) for example in example_set.examples] == [
        (True, False, False, False),
        (True, False, True, True),
        (True, False, True, True),
        (None, None, None, False),
    ]
    rows = [example.to_json() for example in example_set.examples]
    metrics = summed([{**counted(example_set, ExampleSet(), debates), "examples": rows}])
    expected = {
        "offline/chosen_right_share": 1.0,
        "offline/rejected_right_share": 0.0,
        "offline/chosen_ok_share": 2 / 3,
        "offline/actor_right_share": 1 / 2,
        "offline/margin": 0.4,
        "offline/margin_actor_right": 0.4,
        "offline/margin_actor_wrong": 0.4,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


# Debates of equals


def debate(*rounds, answer="4"):
    """Make a debate whose agents give these answers; None is a reply without one."""
    turns = []
    for round, texts in enumerate(rounds):
        for agent, text in enumerate(texts):
            reply = "so"
            if text is not None:
                reply = (
                    f"<solution>a{round}{agent} \\boxed{{{text}}}</solution>"
                    f"<evaluation>e{round}</evaluation><comparison>N/A</comparison>"
                )
            turns.append(make_turn(agent, round, reply))
    protocol = {
        "num_agents": len(rounds[0]),
        "max_rounds": len(rounds),
        "schedule": "parallel",
        "contract": "three_section",
        "topology": "all",
        "history_rounds": -1,
    }
    question = {"id": "q", "text": "2 + 2?", "answer": answer, "meta": {"kind": "number"}}
    transcript = {"id": "d", "question": question, "protocol": protocol, "turns": turns}
    return with_replies(from_json(transcript))


def name_of(completion):
    """Read the name of a reply: `a10` is that of agent 0 in round 1."""
    return completion.text.removeprefix("<solution>").split()[0]


def pairs_of(example_set):
    return [(name_of(pair.chosen), name_of(pair.rejected)) for pair in example_set.examples]


def chosen_by(example_set):
    return [name_of(example.chosen) for example in example_set.examples]


MAJORITY_WRONG = debate(["4", "5", "5"], ["5", "4", "5"])


@pytest.mark.parametrize(
    ("settings", "transcript", "pairs"),
    [
        ({}, MAJORITY_WRONG, [("a10", "a11")]),
        # By the question's answer, which is not the majority's, and in the first round.
        ({"by": "answer", "round": "first"}, MAJORITY_WRONG, [("a00", "a01"), ("a00", "a02")]),
        # Equal answers in other words are one side.
        ({}, debate(["4.0", "4", "5"]), [("a00", "a02")]),
    ],
)
def test_answer_pairs_set_one_answer_over_the_others(settings, transcript, pairs):
    assert pairs_of(AnswerPairs(**settings).take([transcript])) == pairs


def test_chosen_replies_are_imitated_in_their_prompts():
    transcript = debate(["4", "5", "5"], ["5", "4", "4"])
    example_set = ChosenReplies(round="last").take([transcript])
    assert chosen_by(example_set) == ["a11", "a12"]
    assert [example.prompt_ids for example in example_set.examples] == [(1, 1, 1), (1, 2, 1)]
    assert example_set.counts == {"kept/answer": 2, "left_out/other_answer": 1}
    first_only = ChosenReplies(replies_per_debate=1).take([debate(["4", "4", "5"])])
    assert chosen_by(first_only) == ["a00"]


@pytest.mark.parametrize("by", ["any", "answer", "majority", "votes"])
def test_debate_without_a_readable_reply_is_counted(by):
    example_set = ChosenReplies(by=by).take([debate([None, None])])
    assert example_set.counts == {"left_out/no_readable_reply": 1}


def votes(*lines):
    """Let three agents answer 4, 5 and 5, and then compare each other in these lines."""
    transcript = debate(["4", "5", "5"], ["4", "4", "5"], answer=None)
    first_turns = transcript.turns[:3]
    second_turns = []
    for turn, line in zip(transcript.turns[3:], lines, strict=True):
        shown = tuple(other.key for other in first_turns if other.agent != turn.agent)
        second_turns.append(replace(turn, text=turn.text.replace("N/A", line), shown=shown))
    return replace(transcript, turns=(*first_turns, *second_turns))


# Agent 0 wins 2 votes, agents 1 and 2 lose one each, and half of a tie.
FOR_FOUR = votes("Agent 1 = Agent 2", "Agent 0 > Agent 2", "Agent 0 > Agent 1")
FOR_FIVE = votes("Agent 1 = Agent 2", "Agent 2 > Agent 0", "Agent 1 > Agent 0")


@pytest.mark.parametrize(
    ("transcript", "round", "chosen"),
    [
        (FOR_FOUR, "first", ["a00"]),
        (FOR_FIVE, "first", ["a01", "a02"]),  # Two agents first with one answer are a decision.
        (debate(["4", "5"], answer=None), "first", []),
    ],
    ids=["4", "5", "no votes"],
)
def test_replies_are_chosen_by_what_agents_voted_for(transcript, round, chosen):
    example_set = ChosenReplies(by="votes", round=round).take([transcript])
    assert chosen_by(example_set) == chosen
    assert example_set.counts["left_out/no_decision"] == (not chosen)


def test_replies_weigh_as_much_as_the_votes_that_they_won():
    transcript = votes("Agent 1 > Agent 2", "Agent 0 > Agent 2", "Agent 0 = Agent 1")
    example_set = ChosenReplies(by="any", round="every", weight="votes").take([transcript])
    # Of two votes each: agent 0 won 1 + 1/2, agent 1 1 + 1/2, agent 2 none.
    assert chosen_by(example_set) == ["a00", "a01"]
    assert [example.weight for example in example_set.examples] == [0.75, 0.75]
    expected = {"kept/any": 2, "left_out/no_vote_won": 1, "left_out/no_votes": 3}
    assert +example_set.counts == expected


def test_examples_are_read_as_they_were_written(tmp_path):
    pairs = GuidedPairs(role="actor", threshold=0.1, pairs_per_state="both").take([DEBATE])
    replies = ChosenReplies().take([debate(["4", "5"])])
    examples = pairs.examples + replies.examples
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps(example.to_json()) + "\n" for example in examples))
    assert read_examples(path) == examples
    path.write_text('{"prompt": []}\n')
    with pytest.raises(ValueError, match=r"examples.jsonl:1: no example \(KeyError: 'sampled'\)"):
        read_examples(path)


# A difference is clear beyond two standard errors: 2 · √(.03² + .04²) = .1.
@pytest.mark.parametrize(
    ("values", "is_doubted"),
    [
        ((0.72, 0.61, 0.5), False),
        ((0.7, 0.61, 0.5), True),
        ((0.72, 0.61, 0.52), True),
        ((0.5, 0.61, 0.72), True),
    ],
    ids=["clear", "right unclear", "wrong unclear", "turned round"],
)
def test_guidance_is_doubted_unless_values_clearly_fall(values, is_doubted):
    metrics = {}
    errors = (0.03, 0.04, 0.03)
    names = ("guided_right", "natural", "guided_wrong")
    for name, value, error in zip(names, values, errors, strict=True):
        metrics[f"offline/value_{name}"] = value
        metrics[f"offline/value_{name}_standard_error"] = error
    doubt = GuidedPairs(role="critic").doubt(metrics)
    assert (doubt is not None) == is_doubted
    assert doubt is None or f"natural {values[1]:.3f} (0.040)" in doubt


PROMPT_IDS: Message = {"role": "user", "content": "?"}


def test_rows_of_examples_have_the_prompt_and_the_reply() -> None:
    chosen, rejected = Completion("a", (1, 2)), Completion("b", (3,))
    pair = Example((PROMPT_IDS,), (7, 8), chosen, rejected, 1, "critic", 5)
    imitated = Example((PROMPT_IDS,), (7,), Completion("c", (4,)))
    batch = example_batch([pair, imitated], seed=3)
    assert [row.tokens.tolist() for row in batch.rows] == [[7, 8, 1, 2], [7, 8, 3], [7, 4]]
    assert [row.mask.tolist() for row in batch.rows] == [[0, 0, 1, 1], [0, 0, 1], [0, 1]]
    assert [row.advantages.sum() for row in batch.rows] == [2, -1, 1]
    assert [row.pair for row in batch.rows] == [0, 0, -1]
    assert [row.adapter for row in batch.rows] == ["critic", "critic", None]
    assert batch.rows[0].over_tokens("versions").tolist() == [-1, -1, 5, 5]
    assert (batch.sampled_tokens, batch.turns) == (4, 3)
    mean_lengths = {"offline/chosen_tokens": 1.5, "offline/rejected_tokens": 1.0}
    assert lengths([pair, imitated]) == mean_lengths
    assert all(np.isfinite(row.over_tokens("sampler_logps")).all() for row in batch.rows)


def accuracy(logps: Sequence[float]) -> float:
    """The share of pairs whose chosen reply, the first of each two, has the larger number."""
    pairs = list(zip(logps[::2], logps[1::2], strict=True))
    return sum(chosen > rejected for chosen, rejected in pairs) / len(pairs)


def pair_logps(base: str, adapter: Path | None, pairs: Sequence[Example]) -> list[float]:
    """Compute log p of each chosen and rejected reply by a plain forward pass."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).eval()
    reply_logps = []
    for pair in pairs:
        assert pair.rejected is not None
        for completion in (pair.chosen, pair.rejected):
            ids = torch.tensor([[*pair.prompt_ids, *completion.token_ids]])
            with torch.no_grad():
                logps_TV = model(ids).logits[0, :-1].log_softmax(-1)
            logps_T = logps_TV.gather(1, ids[0, 1:, None])[:, 0]
            reply_logps.append(float(logps_T[len(pair.prompt_ids) - 1 :].sum()))
    return reply_logps


def test_pairs_of_held_out_questions_are_measured_and_never_learned_from(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_sets(monkeypatch)
    run = tmp_path / "run"
    recipe = write_recipe(base, tmp_path, phases={"prefer": PHASES["prefer"]})
    assert main([recipe, "--output", str(run)]) == 0
    learned_file = run / "offline/prefer-000000.jsonl"
    held_out_file = run / "offline/prefer-000000.held_out.jsonl"
    learned = {row["meta"]["question"] for row in lines(learned_file)}
    held_out = {row["meta"]["question"] for row in lines(held_out_file)}
    assert (len(learned), len(held_out)) == (5, 3)
    assert not learned & held_out
    # Rebuilt from what the checkpoints hold: log p of the replies before the phase and after it.
    pairs = read_examples(held_out_file)
    before = pair_logps(base, None, pairs)
    after = pair_logps(base, run / "checkpoints/step-000004/second", pairs)
    gains = [now - then for now, then in zip(after, before, strict=True)]
    (row,) = [row for row in lines(run / "metrics.jsonl") if "held_out/pairs" in row]
    assert row["held_out/preference_accuracy"] == pytest.approx(accuracy(gains))
    assert row["held_out/likelihood_accuracy"] == pytest.approx(accuracy(after))
    assert row["held_out/likelihood_accuracy_before"] == pytest.approx(accuracy(before))
    low, high = (row[f"held_out/preference_accuracy_{end}"] for end in ("low", "high"))
    assert 0 <= low < high
    last_state = json.loads((run / "checkpoints/step-000004/state.json").read_text())
    assert last_state["held_out"]["prefer"]["held_out/pairs"] == 3
    state = json.loads((run / "checkpoints/step-000003/state.json").read_text())
    assert state["held_out_start"] == pytest.approx(before, abs=1e-4)


def test_held_out_accuracies_are_means_over_questions() -> None:
    pairs = [Example((), (), Completion("", ()), meta={"question": name}) for name in "aab"]
    before = [-1.0, -2.0, -2.0, -1.0, -3.0, -2.0]
    after = [-1.0, -1.5, -1.5, -1.0, -1.0, -2.0]
    accuracies = held_out_accuracies(pairs, before, after)
    # Gains, chosen and rejected: 0 and .5, .5 and 0, 2 and 0: a has one of two, b its only one.
    assert accuracies["held_out/preference_accuracy"] == 0.75
    # Likelier after: a 1 of 2, b 1 of 1; before: a 1 of 2, b 0 of 1.
    assert accuracies["held_out/likelihood_accuracy"] == 0.75
    assert accuracies["held_out/likelihood_accuracy_before"] == 0.25
    assert (accuracies["held_out/pairs"], accuracies["held_out/questions"]) == (3, 2)
    # Resampled questions are aa, ab, ba or bb.
    assert accuracies["held_out/preference_accuracy_low"] == 0.5
    assert accuracies["held_out/preference_accuracy_high"] == 1.0
