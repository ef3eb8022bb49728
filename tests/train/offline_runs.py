"""Small runs of phases that learn from examples, which every debate gives."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.types import Transcript
from debate_train.offline import AnswerPairs, ChosenReplies, Completion, Example, ExampleSet
from debate_train.running import offline_phase
from train.two_adapters import settings

ROLES = {"ours": {"adapter": "first"}, "theirs": {"adapter": "second"}}
DPO = {"type": "dpo", "nll_weight": 1.0}
# With seed 0 three of the eight questions are held out.
PAIRS = {"type": "answer_pairs", "questions": 8, "held_out": 0.4, "batch_size": 3}
REPLIES = {"type": "chosen_replies", "questions": 4, "batch_size": 3}
PHASES = {
    "prefer": {
        "debate": {"roles": {"ours": {"train": False}}},
        "offline": PAIRS,
        "loss": DPO,
        "steps": 4,
    },
    "imitate": {
        "debate": {"roles": {"theirs": {"train": False}}},
        "offline": REPLIES,
        "loss": {"type": "sft"},
        "steps": 2,
    },
    "on_policy": {"steps": 1},
}


def of(transcript: Transcript, first: int, second: int | None) -> Example:
    turns = [transcript.turns[n] for n in (first, second or first)]
    chosen, other = (t.reply for t in turns)
    assert chosen is not None and other is not None
    adapter = ("first", "second")[turns[0].agent]
    rejected = None if second is None else Completion.of(other)
    return Example(
        turns[0].prompt or (),
        chosen.prompt_ids,
        Completion.of(chosen),
        rejected,
        turns[0].agent,
        adapter,
        chosen.weight_version,
        {"debate": transcript.id, "question": transcript.question.id},
    )


def patch_sets(patch: pytest.MonkeyPatch) -> None:
    """Let every debate give an example, as a model that was never trained gives no answers.

    The chunks of a set are kept beside it.
    """

    def pairs(self: AnswerPairs, transcripts: Sequence[Transcript]) -> ExampleSet:
        taken = ExampleSet()
        for transcript in transcripts:
            taken.keep(of(transcript, 1, 0), "majority")
        return taken

    def replies(self: ChosenReplies, transcripts: Sequence[Transcript]) -> ExampleSet:
        taken = ExampleSet()
        for transcript in transcripts:
            taken.keep(of(transcript, 0, None), "answer")
            taken.leave_out("other_answer")
        return taken

    finish = offline_phase._Maker._finish

    def finished(self: Any, chunks: Sequence[Any]) -> None:
        shutil.copy(self._unfinished_path, self._path.with_suffix(".chunks"))
        finish(self, chunks)

    patch.setattr(AnswerPairs, "take", pairs)
    patch.setattr(ChosenReplies, "take", replies)
    patch.setattr(offline_phase._Maker, "_finish", finished)


def write_recipe(base: str, folder: Path, **more: Any) -> str:
    """Write the recipe of a small run with a checkpoint of every step."""
    every = {"every": 1, "keep_last": 99}
    asked = settings(base, ROLES, phases=PHASES, checkpoint=every, recording={"debates": 1})
    file = folder / "recipe.yaml"
    file.write_text(json.dumps(asked | more))
    return str(file)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def back_to(run: Path, step: int) -> None:
    for later in range(step + 1, 8):
        shutil.rmtree(run / f"checkpoints/step-{later:06d}")
    if step == 0:
        shutil.rmtree(run / "offline")
