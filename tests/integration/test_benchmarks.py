"""Scripts of `benchmarks/`: all can be imported, and those for a GPU run in miniature."""

import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import training as training
from debate_train.batches.prefix_forest import Layout, PrefixForest, make_layout

ROOT = Path(__file__).parents[2]
SMOKE = ("--cpu-smoke", "--workloads", "grpo")
ABSENT = (
    *("omegaconf", "httpx", "openai", "lxml", "math_verify"),
    *("deepspeed", "peft", "datasets", "wandb", "accelerate", "pytest"),
)
"""What a machine need not have: neither torch nor transformers works without the rest."""
Run = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the script in this process."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # The script adds to it.
    from benchmarks.gpu import update

    def run(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        code = update.main(list(arguments))
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.mark.slow
def test_all_parts_go_through_when_run_in_miniature() -> None:
    program = f"import sys; sys.modules.update(dict.fromkeys({ABSENT}))\n"
    program += f"sys.path.insert(0, {str(ROOT)!r})\n"
    program += f"from benchmarks.gpu import update; raise SystemExit(update.main({list(SMOKE)!r}))"
    completed = subprocess.run(
        [sys.executable, "-c", program],
        env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    code = completed.returncode
    lines = [json.loads(line) for line in completed.stdout.splitlines()]
    errors = [line for line in lines if "error" in line or "skipped" in line]
    assert not errors
    assert code == 0
    by_name = {line["benchmark"]: line for line in lines}
    passed = {n: line["settings"]["passes"] for n, line in by_name.items() if "/check/" in n}
    assert len(passed) == 4 + 3 + 3 + 2
    assert all(passed.values())
    speeds = [name for name in by_name if name.endswith("/row_tokens")]
    assert len(speeds) == 3 * 2
    # 2 groups of 4 replies to prompts of 40 tokens: a prompt is computed once, not 4 times; the
    # last token of a row predicts nothing, so none of 8 is computed.
    settings = by_name["gpu/speed/tiny/grpo/rows/checkpointing_off/row_tokens"]["settings"]
    assert settings["computed_tokens"] == settings["row_tokens"] - 8
    shared = by_name["gpu/speed/tiny/grpo/prefix/checkpointing_off/row_tokens"]["settings"]
    assert settings["computed_tokens"] - shared["computed_tokens"] >= 2 * 3 * 40


def test_checks_fail_when_runs_do_not_see_what_they_share(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.gpu import checks
    from debate_train.batches import packs

    def wrong(forest: PrefixForest, trunk_tokens: int) -> Layout:
        layout = make_layout(forest, trunk_tokens)
        cut = tuple(
            (start, end, first_query, first_query + 1)
            for start, end, first_query, _ in layout.ancestor_blocks
        )
        return dataclasses.replace(layout, ancestor_blocks=cut)

    monkeypatch.setattr(packs, "make_layout", wrong)
    names = ("attention_fp32", "model_fp32")
    chosen = {name: checks.CHECKS[name] for name in names}
    monkeypatch.setattr(checks, "CHECKS", chosen)
    code, lines = run(*SMOKE)
    by_name = {line["benchmark"]: line for line in lines}
    assert code == 1
    assert by_name["gpu/done"]["failed"] == [f"check/{name}" for name in names]
    assert not by_name["gpu/check/attention/forest/float32"]["settings"]["passes"]
    assert by_name["gpu/check/attention/rows/float32"]["settings"]["passes"]
    assert not by_name["gpu/check/model/fp32/prefix"]["settings"]["passes"]


@pytest.mark.gpu
def test_checks_pass_on_a_gpu(run: Run) -> None:
    code, lines = run("--limit-s", "120", "--workloads", "grpo", "--sizes", "0.6B")
    assert code == 0, [line for line in lines if "error" in line]


def line(case: str, *losses: float) -> dict[str, Any]:
    return {"case": case, "loss": list(losses), "optim/grad_norm": [2.0] * len(losses)}


def test_every_script_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # Scripts add to it.
    files = sorted((ROOT / "benchmarks").glob("*/*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    assert "benchmarks.gpu.update" in names
    for name in names:
        importlib.import_module(name)
