"""The five calls of a step: what goes in, what comes out, and that no seed is used twice."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.parsing import Scan, ThinkMode, scan
from debate_protocol.types import Gate, TurnRequest
from debate_rollout.engines import ScriptedEngine
from debate_rollout.rendering import TokenText, token_text
from debate_train.batches.row_types import Batch
from debate_train.data import SignsPuzzle
from debate_train.evaluation.measuring import Measure, Measures
from debate_train.evaluation.modes import CurvePoint
from debate_train.models.scratch import word_tokenizer
from debate_train.playing import start_debates
from debate_train.recipe import Recipe
from debate_train.running import loop
from debate_train.running.run_context import RunContext
from train.contexts import Trainer, context, trained

SOURCE = SignsPuzzle(batch_size=3).open()
CRITERION = {"metric": "eval/format", "at_least": 0.5, "every": 2, "max_steps": 5}
ALSO = {"also_at_least": {"eval/judge/accuracy": 0.5}}
NEVER = {"also_at_least": {"eval/judge/accuracy": 0.6}}


def recipe(**changes: object) -> Recipe:
    settings: dict[str, object] = {
        "name": "t",
        "steps": 2,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 3},
        "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"},
        "reward": {"type": "verifiable"},
        "advantage": {"baseline": "question_round"},
    }
    return Recipe.model_validate(settings | changes)


def first_asks(form: Recipe, step: int) -> list[TurnRequest]:
    requests: list[TurnRequest] = []
    for run in start_debates(form, SOURCE.batch(0), f"train/{step}"):
        yielded = next(run)
        assert not isinstance(yielded, Gate)
        requests += yielded
    return requests


def test_no_two_turns_share_a_seed() -> None:
    form = recipe(rollout={"debates_per_question": 2, "direct_per_question": 1})
    kinds = [(form, 0), (form, 1), (form.model_copy(update={"seed": 1}), 0)]
    seeds = [request.seed for phase, step in kinds for request in first_asks(phase, step)]
    # 3 times 3 questions of two debates of three agents and one single reply.
    assert len(seeds) == 3 * 3 * (2 * 3 + 1)
    assert len(set(seeds)) == len(seeds)
    assert seeds[:21] == [request.seed for request in first_asks(form, 0)]


def run_of(form: Recipe, folder: Path, first: int = 0) -> RunContext:
    tokenizer = word_tokenizer()
    player = ScriptedEngine().open(None, tokenizer, script=SOURCE.demonstrate)
    run: RunContext = context(form, folder / "run", player, SOURCE, tokenizer)
    run.state.step = run.state.phase_start = first
    return run


def test_each_step_learns_from_its_own_debates_and_serves_the_new_weights(tmp_path: Path) -> None:
    form = recipe(advantage={"baseline": "none"}, recording={"every": 1, "debates": 1})
    run = run_of(form, tmp_path, first=4)
    samples = tmp_path / "run/transcripts"

    class Looking(Trainer):
        def step(self, batch: Batch) -> dict[str, float]:
            assert len(list(samples.iterdir())) == len(self.batches) + 1  # Before the update.
            return super().step(batch)

    reason, keeper = trained(run, trainer := Looking())
    steps = keeper.steps
    assert (reason, run.state.step) == ("finished", 6)
    assert [step.number for step in steps] == keeper.logged == [4, 5]
    assert trainer.versions == [5, 6]
    rows = [json.loads(line) for line in run.directory.metrics_path.read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == [(5, 1.0), (6, 2.0)]
    assert all(row["time/rollout_s"] == row["time/wait_s"] for row in rows)
    time_keys = {"time/rollout_s", "time/wait_s", "time/score_s", "time/rows_s", "time/weights_s"}
    time_keys.add("time/step_s")
    assert all({key for key in row if key.startswith("time/")} == time_keys for row in rows)
    for step, batch in zip(steps, trainer.batches, strict=True):
        assert [t.question for t in step.transcripts] == SOURCE.batch(step.number)
        assert batch is step.batch
        # Two turns of each agent grow into one row; demonstrations are sampled by the engine here.
        assert (len(batch.rows), batch.turns) == (9, 18)
        assert all(row.advantages.any() for row in batch.rows)
    replies = [t.reply for t in steps[1].transcripts[0].turns]
    assert all(reply is not None and reply.weight_version == 5 for reply in replies)


def test_every_turn_is_parsed_and_its_tokens_decoded_once_a_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parsed: list[str] = []
    decoded: list[tuple[int, ...]] = []

    def scanned(text: str, sections: Sequence[str], think: ThinkMode) -> Scan:
        parsed.append(text)
        return scan(text, sections, think)

    def decoding(tokenizer: Any, ids: Sequence[int]) -> TokenText:
        decoded.append(tuple(ids))
        return token_text(tokenizer, ids)

    monkeypatch.setattr("debate_protocol.parsing.scan", scanned)
    monkeypatch.setattr("debate_rollout.rendering.token_text", decoding)
    monkeypatch.setattr("debate_train.batches.rows.token_text", decoding)
    # Two rewards read the debates, and then rows and metrics do.
    components = {n: {"reward": {"type": n}, "weight": 1.0} for n in ("v2", "verifiable")}
    form = recipe(reward={"type": "mixed", "components": components}, steps=1)
    keeper = trained(run_of(form, tmp_path), Trainer())[1]
    (metrics,) = map(json.loads, keeper.run.directory.metrics_path.read_text().splitlines())
    turns = [turn for debate in keeper.steps[0].transcripts for turn in debate.turns]
    assert any(name.startswith("judge/") for name in metrics)
    assert sorted(parsed) == sorted(turn.text for turn in turns)
    assert sorted(decoded) == sorted(turn.reply.token_ids for turn in turns if turn.reply)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"exit_criterion": {"metric": "eval/format", "at_least": 1, "max_steps": 1}},
            "found 1, but the",
        ),
        (
            {
                "exit_criterion": CRITERION,
                "evaluation": {"questions": 0},
            },
            "an exit criterion measures on them",
        ),
        (
            {"exit_criterion": {"metric": "eval/judge", "at_least": 1}},
            "'eval/judge' is not measured",
        ),
        (
            {
                "model": {"type": "pretrained", "name": "m", "dtype": "bfloat16"},
                "trainer": {"type": "deepspeed"},
            },
            r"trainer\.bf16: found false with a model in bfloat16",
        ),
    ],
)
def test_recipe_that_cannot_teach_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe(**changes)


@pytest.mark.parametrize(
    ("criterion", "format_shares", "reason", "evaluated_steps"),
    [
        (None, [], "finished", []),
        (CRITERION, [0.0, 0.9], "criterion met", [2, 4]),
        (CRITERION | {"max_steps": 4}, [0.0, 0.0], "criterion missed", [2, 4]),
        # Of several measures all are wanted, at one look.
        (CRITERION | ALSO, [0.0, 0.9], "criterion met", [2, 4]),
        (CRITERION | NEVER, [0.9, 0.9, 0.9], "criterion missed", [2, 4, 5]),
    ],
)
def test_phase_says_why_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, criterion: Any, format_shares: list[float],
    reason: str, evaluated_steps: list[int],
) -> None:  # fmt: skip
    run = run_of(recipe(exit_criterion=criterion), tmp_path)
    next_share = iter(format_shares)

    def evaluate(*arguments: Any) -> Measures:
        # The judge is always right in half of the cases.
        means = {"eval/pass@k": 0.25, "eval/format": next(next_share), "eval/judge/accuracy": 0.5}
        curves = {"eval/direct/maj@k": [CurvePoint(2, None, {"q": 0.75})]}
        return Measures({n: Measure(m, 0, 1, 1) for n, m in means.items()}, {}, curves=curves)

    monkeypatch.setattr(loop, "evaluate", evaluate)
    assert trained(run, Trainer())[0] == reason
    rows = [json.loads(line) for line in run.directory.metrics_path.read_text().splitlines()]
    looks = [row for row in rows if "eval/format" in row]
    assert [row["step"] for row in looks] == evaluated_steps
    assert all(row["eval/direct/maj@2"] == 0.75 and row["eval/pass@k"] == 0.25 for row in looks)
    # What is printed of a look has one line, with the headline first and no detail.
    printed = run.progress._console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.partition("split: ")[2] for line in printed if "dev split" in line] == [
        f"judge/accuracy 0.500  format {value:.3f}" for value in format_shares
    ]
    assert run.state.step == max(evaluated_steps, default=2)
