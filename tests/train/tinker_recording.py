"""Calls of a server whose answers the stand-in must give, too; records those of the real one.

make tinker-server
PYTHONPATH=tests .venv/bin/python -m train.tinker_recording http://127.0.0.1:8765
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tinker import types

RECORDING = Path(__file__).parent / "tinker_recording.json"
RANK = 2
CONFIG = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}


def rows(with_weights: bool, num_padding: int = 0) -> list[types.Datum]:
    """Build two rows of unequal length, their last tokens trained; and padding without weight."""
    built = []
    for number, (length, num_trained) in enumerate([(12, 5), (20, 7)]):
        rng = np.random.default_rng(number)
        tokens = rng.integers(6, 120, length)
        is_trained = np.arange(length - 1) >= length - 1 - num_trained
        built.append(
            _row(
                tokens,
                np.where(is_trained, rng.normal(-4, 0.5, length - 1), 0),
                np.where(is_trained, rng.normal(size=length - 1), 0),
                is_trained if with_weights else None,
            )
        )
    zeros = np.zeros(1)
    padding = _row(np.zeros(2), zeros, zeros, zeros if with_weights else None)
    return built + [padding] * num_padding


def _row(tokens: Any, logps: Any, advantages: Any, weights: Any) -> types.Datum:
    inputs = {
        "target_tokens": np.asarray(tokens[1:], np.int64),
        "logprobs": np.asarray(logps, np.float32),
        "advantages": np.asarray(advantages, np.float32),
    }
    if weights is not None:
        inputs["weights"] = np.asarray(weights, np.float32)
    ids = [int(token) for token in tokens[:-1]]
    return types.Datum(types.ModelInput.from_ints(ids), inputs)  # type: ignore[arg-type]


def answers(client: Any) -> dict[str, Any]:
    """Make the calls on a new adapter and collect what a caller sees, to 7 digits."""
    seen: dict[str, Any] = {}
    cases: dict[str, tuple[str, Any, list[types.Datum]]] = {
        "cross_entropy": ("cross_entropy", None, _of_targets(rows(True))),
        "importance_sampling": ("importance_sampling", None, rows(True)),
        "without weights": ("importance_sampling", None, rows(False)),
        "ppo": ("ppo", CONFIG, rows(True)),
        "beside padding": ("ppo", CONFIG, rows(True, num_padding=2)),
    }
    for name, (loss, config, sent) in cases.items():
        output = client.forward_backward(sent, loss, config).result()
        step = client.optim_step(types.AdamParams(learning_rate=1e-3, eps=1e-3)).result()
        seen[name] = {
            "logprobs": _values(output.loss_fn_outputs[:2], "logprobs"),
            "losses": _values(output.loss_fn_outputs[:2], "elementwise_loss"),
            "grad_norm": float(f"{step.metrics['skyrl.ai/grad_norm']:.7g}"),
        }
    empty = client.optim_step(types.AdamParams(learning_rate=0.0)).result()
    seen["norm without a gradient"] = empty.metrics["skyrl.ai/grad_norm"]
    return seen


def _of_targets(sent: list[types.Datum]) -> list[types.Datum]:
    kept = ("target_tokens", "weights")
    return [
        types.Datum(row.model_input, {name: row.loss_fn_inputs[name] for name in kept})
        for row in sent
    ]


def _values(outputs: list[Any], name: str) -> list[list[float]]:
    return [[float(f"{v:.7g}") for v in output[name].to_numpy()] for output in outputs]


def encoded(tensors: dict[str, Any]) -> dict[str, Any]:
    """Encode an adapter's matrices A; B is 0 in a new one."""
    packed = {}
    for name, tensor in sorted(tensors.items()):
        if ".lora_A." in name:
            values = np.ascontiguousarray(tensor.numpy(), np.float32)
            packed[name] = base64.b64encode(values.tobytes()).decode()
    return packed


def main() -> None:
    """Record the answers of the server at an address."""
    import tinker

    from debate_train.models import PretrainedModel
    from debate_train.models.loaded_model import Lora
    from debate_train.trainers import TinkerTrainer

    root = Path(__file__).resolve().parents[2]
    folder = root / "recipes" / "data" / "quickstart_start"
    trainer = TinkerTrainer(base_url=sys.argv[1])
    model = PretrainedModel(name=str(folder), lora=Lora(rank=RANK, alpha=32))
    policy: Any = trainer.load_model(model, 3).remote
    start = encoded(policy.download())
    recording = {
        "client": tinker.__version__,
        "reduction": [policy.reduction.divides_by_tokens, policy.reduction.divides_by_rows],
        "start": start,
        "answers": answers(policy.client),
    }
    policy.leave()
    RECORDING.write_text(json.dumps(recording, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
