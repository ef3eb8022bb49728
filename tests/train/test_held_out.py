"""What phases come to prefer on pairs they never learned from; guidance that did not work."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from debate_train.commands.cli import main
from debate_train.offline import Completion, Example, GuidedPairs, read_examples
from debate_train.offline.example_set import held_out_accuracies
from train.offline_runs import PHASES, lines, patch_sets, write_recipe


def test_pairs_of_held_out_questions_are_measured_and_never_learned_from(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_sets(monkeypatch)
    whole = tmp_path / "run"
    phases = {"prefer": PHASES["prefer"]}
    assert main([write_recipe(base, tmp_path, phases=phases), "--output", str(whole)]) == 0
    files = [whole / f"offline/prefer-000000{end}.jsonl" for end in ("", ".held_out")]
    learned, held_out = ({row["meta"]["question"] for row in lines(file)} for file in files)
    assert (len(learned), len(held_out)) == (5, 3)
    assert not learned & held_out
    # Rebuilt from what the checkpoints hold: log p of the replies before the phase and after it.
    before, after = (
        pair_logps(base, adapter, read_examples(files[1])) for adapter in (None, whole)
    )
    gains = [now - then for now, then in zip(after, before, strict=True)]
    (row,) = [row for row in lines(whole / "metrics.jsonl") if "held_out/pairs" in row]
    for name, values in (
        ("preference_accuracy", gains),
        ("likelihood_accuracy", after),
        ("likelihood_accuracy_before", before),
    ):
        hits = [chosen > rejected for chosen, rejected in batched(values)]
        assert row[f"held_out/{name}"] == pytest.approx(sum(hits) / 3), name
    assert 0 <= row["held_out/preference_accuracy_low"] < row["held_out/preference_accuracy_high"]
    state = json.loads((whole / "checkpoints/step-000004/state.json").read_text())
    assert state["held_out"]["prefer"]["held_out/pairs"] == 3
    before_end = json.loads((whole / "checkpoints/step-000003/state.json").read_text())
    assert before_end["held_out_start"] == pytest.approx(before, abs=1e-4)


def batched(values: list[float]) -> list[tuple[float, float]]:
    return list(zip(values[::2], values[1::2], strict=True))


def pair_logps(base: str, run: Path | None, pairs: list[Example]) -> list[float]:
    """Return log p of each chosen and rejected reply by a plain forward pass."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    if run is not None:
        model = PeftModel.from_pretrained(model, run / "checkpoints/step-000004/second").eval()
    found = []
    for pair in pairs:
        assert pair.rejected is not None
        for said in (pair.chosen, pair.rejected):
            ids = torch.tensor([[*pair.prompt_ids, *said.token_ids]])
            with torch.no_grad():
                logps = model(ids).logits[0, :-1].log_softmax(-1)
            picked = logps.gather(1, ids[0, 1:, None])[:, 0]
            found.append(float(picked[len(pair.prompt_ids) - 1 :].sum()))
    return found


@pytest.mark.parametrize(
    ("right", "natural", "wrong", "doubt"),
    [
        # Two standard errors of a difference are 2 * sqrt(.03^2 + .04^2) = .1.
        (0.7, 0.5, 0.3, None),
        (0.7, 0.5, 0.45, "natural 0.500 (0.040), guided to a wrong answer 0.450"),
        (0.5, 0.5, 0.3, "guided to the right answer 0.500 (0.030), natural 0.5"),
        (0.4, 0.5, 0.6, "does not clearly fall in this order: guided to the r"),
    ],
)
def test_run_says_in_words_where_guidance_did_not_work(
    right: float, natural: float, wrong: float, doubt: str | None
) -> None:
    values = {
        "guided_right": (right, 0.03),
        "natural": (natural, 0.04),
        "guided_wrong": (wrong, 0.03),
    }
    metrics = {
        f"offline/value_{name}{end}": number
        for name, both in values.items()
        for end, number in zip(("", "_standard_error"), both, strict=True)
    }
    found = GuidedPairs(role="actor").doubt(metrics)
    assert found is None if doubt is None else doubt in str(found)
    assert GuidedPairs(role="actor").doubt({}) is None


def test_held_out_accuracies_are_means_over_questions() -> None:
    pairs = [Example((), (), Completion("", ()), meta={"question": name}) for name in "aab"]
    before = [-1.0, -2.0, -2.0, -1.0, -3.0, -2.0]
    after = [-1.0, -1.5, -1.5, -1.0, -1.0, -2.0]
    found = held_out_accuracies(pairs, before, after)
    # Gains, chosen and rejected: 0 and .5, .5 and 0, 2 and 0: a has one of two, b its only one.
    assert found["held_out/preference_accuracy"] == 0.75
    # Likelier after: a 1 of 2, b 1 of 1; before: a 1 of 2, b 0 of 1.
    assert found["held_out/likelihood_accuracy"] == 0.75
    assert found["held_out/likelihood_accuracy_before"] == 0.25
    assert (found["held_out/pairs"], found["held_out/questions"]) == (3, 2)
    ends = [found[f"held_out/preference_accuracy_{end}"] for end in ("low", "high")]
    assert ends == [0.5, 1.0]  # Resampled questions are aa, ab, ba or bb.
