"""Sets of examples as rows, and what a phase comes to prefer on held-out pairs."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from debate_protocol.types import Message
from debate_train.commands.cli import main
from debate_train.offline import Completion, Example, read_examples
from debate_train.offline.example_set import example_batch, held_out_accuracies, lengths
from train.offline_runs import PHASES, lines, patch_sets, write_recipe

PROMPT: Message = {"role": "user", "content": "?"}


def test_rows_of_examples_have_the_prompt_and_the_reply() -> None:
    chosen, rejected = Completion("a", (1, 2)), Completion("b", (3,))
    pair = Example((PROMPT,), (7, 8), chosen, rejected, 1, "critic", 5)
    imitated = Example((PROMPT,), (7,), Completion("c", (4,)))
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
