"""Files of examples as other trainers read them: a step of TRL's, also on the pairs of a run."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from debate_protocol.types import Transcript
from debate_train.commands.cli import main
from debate_train.offline import Completion, Example, ExampleSet, GuidedPairs

RECIPE = Path(__file__).resolve().parents[2] / "recipes/acc_debate_llama3_8b_boolq.yaml"
ROWS = [
    {
        "question": f"is the number {n} even",
        "title": f"{n}",
        "answer": n % 2 == 0,
        "passage": f"{n} -- The number {n} follows {n - 1} and leaves {n % 2} when it is halved.",
    }
    for n in range(2, 10)
]
"""Made up, with BoolQ's columns: its own rows are under CC BY-SA 3.0."""
PROMPT = ({"role": "user", "content": "make 4 Q 6 5 1 6"},)


def examples(pairs: bool) -> list[Example]:
    return [
        Example(
            PROMPT,  # type: ignore[arg-type]
            (5, 6, 7),
            Completion("+ - -", (8, 9)),
            Completion("- - +", (9, 9)) if pairs else None,
            meta={"question": f"q{n}", "chosen_value": 0.5, "chosen_standard_error": None},
        )
        for n in range(4)
    ]


def written(folder: Path, pairs: bool) -> str:
    path = folder / "examples.jsonl"
    rows = [{**example.to_json(), "made_from": "0"} for example in examples(pairs)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def train_a_step(base: str, file: str, folder: Path, *, pairs: bool) -> tuple[float, bool]:
    """Let TRL train on pairs, or on replies, for a step; return its loss, and if weights moved."""
    data = load_dataset("json", data_files=file, split="train")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = {
        "output_dir": str(folder / "out"),
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "report_to": [],
        "use_cpu": True,
        "learning_rate": 0.1,
        "save_strategy": "no",
        "bf16": False,
    }
    tokenizer = AutoTokenizer.from_pretrained(base)
    if pairs:
        trainer = DPOTrainer(
            model, args=DPOConfig(**settings), train_dataset=data, processing_class=tokenizer
        )
    else:
        trainer = SFTTrainer(
            model, args=SFTConfig(**settings), train_dataset=data, processing_class=tokenizer
        )
    loss = trainer.train().training_loss
    after = trainer.model.state_dict()
    return loss, any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("pairs", [True, False])
def test_trl_trains_a_step_on_the_file(base: str, tmp_path: Path, pairs: bool) -> None:
    loss, moved = train_a_step(base, written(tmp_path, pairs), tmp_path, pairs=pairs)
    assert loss > 0
    assert moved


WHERE = {"question": "q"}


def guided(self: GuidedPairs, transcripts: Sequence[Transcript]) -> ExampleSet:
    """Prefer each guided reply: those of a model that was never trained are not worth anything."""
    taken, agent = ExampleSet(), ("actor", "critic").index(self.role)
    for transcript in transcripts:
        for turn in transcript.turns:
            for branch in turn.branches if turn.agent == agent else ():
                asked, said = turn.reply, branch.turn.reply
                if asked and said and asked.token_ids != said.token_ids:
                    replies = Completion.of(said), Completion.of(asked)
                    found = Example(
                        turn.prompt or (), asked.prompt_ids, *replies, agent, self.role, meta=WHERE
                    )
                    taken.keep(found, "guided")
    return taken


def test_trl_trains_a_step_on_the_pairs_of_a_run(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuidedPairs, "take", guided)
    rows, test_rows = tmp_path / "rows.jsonl", tmp_path / "test.jsonl"
    for path, part in ((rows, ROWS[:6]), (test_rows, ROWS[6:])):
        path.write_text("".join(json.dumps(row) + "\n" for row in part))
    changes = [
        f"model.name={base}",
        "model.dtype=float32",
        "model.lora.rank=2",
        "rollout.engine={type: transformers, device: cpu}",
        "rollout.max_tokens=4",
        f"data.path={rows}",
        f"data.test_path={test_rows}",
        "data.batch_size=2",
        "debate.max_rounds=2",
        "debate.style=compact",
        "debate.contract=answer_line",
        "debate.continuations=1",
        "debate.guide_round_zero=true",
        "trainer.device=cpu",
        "trainer.gradient_checkpointing=false",
        *("evaluation.questions=0", "phases.critic.keep_if=null", "phases.actor.keep_if=null"),
        *(
            f"phases.{side}.offline.{key}=2"
            for side in ("critic", "actor")
            for key in ("questions", "batch_size")
        ),
        "tracking.wandb=false",
        "steps=1",
    ]
    assert main([str(RECIPE), *changes, "--output", str(tmp_path / "run")]) == 0
    (file,) = (tmp_path / "run/offline").glob("critic-000000.jsonl")
    pairs = [json.loads(line) for line in file.read_text().splitlines()]
    # The natural prompt of the critic: the passage, the question, and nobody's guidance.
    prompts = [" ".join(m["content"] for m in pair["prompt"]) for pair in pairs]
    assert prompts and all(
        "when it is halved" in text and "is the number" in text for text in prompts
    )
    assert not any("Let your" in text for text in prompts)
    loss, moved = train_a_step(base, str(file), tmp_path, pairs=True)
    assert loss > 0
    assert moved
