"""Kill a run of ACC-Debate in each phase of both alternations, and print how it ended, as JSON.

Run by `test_kill_sets.py` in a process of its own, which forks as `killed_runs.py` does. One run is
killed again and again, each time when it comes to the next of `MOMENTS`, and goes on.
"""

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from debate_protocol.types import Transcript, role_of
from debate_train.checkpoints.policy_files import save_policy
from debate_train.commands.cli import main
from debate_train.evaluation.settings import KeepIf
from debate_train.models import ScratchModel
from debate_train.offline import Completion, Example, ExampleSet, GuidedPairs
from system.killed_runs import Moment, different, kept, launch

PHASES = ("critic", "actor", "critic_again", "actor_again")
STEPS = 2
RECIPE: dict[str, Any] = {
    "name": "tiny",
    "steps": STEPS,
    "data": {"type": "signs_puzzle", "batch_size": 2, "num_digits": 3, "largest_digit": 4},
    "debate": {
        "type": "actor_critic",
        "contract": "answer_line",
        "style": "compact",
        "max_rounds": 2,
        "guided": True,
        "guide_round_zero": True,
        "continuations": 1,
        "roles": {"actor": {"adapter": "actor"}, "critic": {"adapter": "critic"}},
    },
    "rollout": {"max_tokens": 4},
    "reward": {"type": "partial_trajectory"},
    "advantage": {"baseline": "none"},
    "loss": {"type": "dpo", "nll_weight": 1.0},
    "trainer": {"type": "torch", "device": "cpu", "learning_rate": 0.05, "schedule": "linear"},
    "evaluation": {"questions": 2, "direct_samples": 1},
    "checkpoint": {"every": 1, "keep_last": 5},
    "recording": {"debates": 1},
    "tracking": {"wandb": False},
    "phases": {
        name: {
            "debate": {"roles": {frozen: {"train": False}}},
            "offline": {
                "type": "guided_pairs",
                "role": role,
                "questions": 6,
                "held_out": 0.4,
                "batch_size": 3,
            },
        }
        for name in PHASES
        for role, frozen in (("critic", "actor"), ("actor", "critic"))
        if name.startswith(role)
    },
}
RECIPE["phases"]["critic"]["keep_if"] = {"metric": "eval/format"}
RECIPE["phases"]["actor_again"]["keep_if"] = {"metric": "eval/format", "since": "critic_again"}
MOMENTS = [
    (name, what, Moment(operation, of=of.format(start + 1, start + 2)))
    for name, start in zip(PHASES, range(0, 99, STEPS), strict=False)
    for what, operation, of in (
        ("its set is begun", 1, ".unfinished"),
        ("its set is made in part", 2, ".unfinished"),
        ("its set is made and a step", 1, ".writing-{:06d}"),
        ("its last step is being saved", 2, ".writing-{1:06d}"),
    )
]
"""The phase, what of it is there, and when the run is killed, counted from its last start."""


def taken(self: GuidedPairs, transcripts: Sequence[Transcript]) -> ExampleSet:
    """Take all guided replies: those of a model that was never trained are not worth anything."""
    found = ExampleSet()
    for transcript in transcripts:
        for turn in transcript.turns:
            role = role_of(transcript.protocol, turn.agent)
            for branch in turn.branches if role.name == self.role else ():
                asked, said = turn.reply, branch.turn.reply
                if asked is None or said is None or asked.token_ids == said.token_ids:
                    continue
                example = Example(
                    prompt=turn.prompt or (),
                    prompt_ids=asked.prompt_ids,
                    chosen=Completion.of(said),
                    rejected=Completion.of(asked),
                    agent=turn.agent,
                    adapter=role.adapter,
                    weight_version=asked.weight_version,
                    meta={"question": transcript.question.id},
                )
                found.keep(example, "guided")
    return found


def keeps(self: KeepIf, start: Any, end: Any) -> bool:
    """Keep each phase, and take back the second alternation as a whole."""
    return self.since is None


def prepared(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    base = str(folder.parent / "base")
    lora = {"rank": 2, "alpha": 4, "adapters": ["actor", "critic"]}
    model = {"type": "pretrained", "name": base, "dtype": "float32", "lora": lora}
    recipe = {**RECIPE, "model": model, **changes}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder


def killed(folder: Path) -> list[str]:
    """Kill a run at each moment; return those that it did not come to."""
    missed, resume = [], list[str]()
    for name, what, moment in MOMENTS:
        if launch(folder, resume, moment) is not None:
            missed.append(f"{name}: {what}")
        resume = ["--resume"]
    return missed


def sides(checkpoint: Path) -> dict[str, Any]:
    """Return the weights of both sides."""
    found = {side: checkpoint / side / "adapter_model.safetensors" for side in ("actor", "critic")}
    return {side: path.read_bytes() for side, path in found.items()}


def go(root: Path) -> dict[str, Any]:
    torch.set_num_threads(1)  # The threads of OpenMP do not outlive a fork.
    GuidedPairs.take = taken  # type: ignore[method-assign]
    KeepIf.keeps = keeps  # type: ignore[method-assign]
    small = ScratchModel(
        hidden_size=8, layers=1, heads=1, kv_heads=1, head_dim=8, ffn_size=8,
        extra_words=("Answer:", "toward"),
    )  # fmt: skip
    save_policy(root / "base", small.load(0))
    whole = prepared(root / "whole")
    with contextlib.redirect_stdout(sys.stderr):  # Here, so that no child has to import.
        code = main([str(whole / "recipe.yaml"), "--output", str(whole / "run")])
    again = prepared(root / "killed")
    missed = killed(again)
    codes = [code, launch(again, ["--resume"], Moment())]
    expected = kept(whole / "run")
    other = prepared(root / "other", seed=1)
    launch(other, [], Moment())
    return {
        "codes": codes,
        "kept": json.loads((again / "run/results.json").read_text())["kept"],
        "went_back": different(*(sides(whole / f"run/checkpoints/step-{n:06d}") for n in (4, 8))),
        "missed": missed,
        "kills": len(MOMENTS),
        "files": sorted(expected),
        "differences": different(kept(again / "run"), expected),
        "control": different(kept(other / "run"), expected),
        "log": (again / "log.txt").read_text()[-3000:],
    }


if __name__ == "__main__":
    print("\n" + json.dumps(go(Path(sys.argv[1]))))
