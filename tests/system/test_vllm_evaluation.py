"""debate-eval with the real vLLM engine, on rows of every benchmark at once."""

import json
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from debate_train.data.benchmarks import BENCHMARKS
from train.test_benchmarks import ROW, file_of, numbered

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]


def test_every_benchmark_is_evaluated_with_vllm(tmp_path: Path) -> None:
    sources = {}
    for name in BENCHMARKS:
        path = file_of(tmp_path / f"{name}.jsonl", numbered(ROW[name], 2))
        sources[name] = {"data": {"type": "benchmark", "name": name, "test_path": path}}
    # Least width that vLLM has on a CPU.
    sizes = {"hidden_size": 64, "layers": 2, "head_dim": 32, "context_window": 1024}
    recipe = {
        "name": "benchmarks",
        "steps": 1,
        "model": {"type": "scratch", **sizes},
        "data": {"type": "mixture", "sources": sources},
        "debate": {"num_agents": 3, "max_rounds": 2, "contract": "boxed", "personas": "none"},
        "rollout": {
            "engine": {
                "type": "vllm",
                "enforce_eager": True,
                "kv_cache_mib": 64,
                "max_batch": 16,
            },
            "max_tokens": 16,
        },
        "reward": {"type": "verifiable"},
        "evaluation": {"questions": 30, "direct_samples": 2},
        "tracking": {"wandb": False},
    }
    file, output = tmp_path / "recipe.yaml", tmp_path / "found"
    file.write_text(yaml.safe_dump(recipe))
    command = [str(Path(sys.executable).with_name("debate-eval")), str(file)]
    done = subprocess.run(
        [*command, "--output", str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines = (output / "transcripts/recipe/debate.jsonl").read_text().splitlines()
    debates = [json.loads(line) for line in lines]
    assert Counter(d["question"]["meta"]["data"] for d in debates) == dict.fromkeys(BENCHMARKS, 2)
    assert all(len(debate["turns"]) == 6 for debate in debates)
    (policy,) = json.loads((output / "results.json").read_text())["policies"]
    # Of the two without answers nothing is right or wrong.
    assert policy["figures"]["eval/direct/accuracy"]["questions"] == 26
    assert policy["figures"]["eval/format"]["questions"] == 30
