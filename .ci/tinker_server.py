"""Serve a folder's model by SkyRL's Tinker server with its JAX backend, on loopback.

Runs in an environment of its own, on Python 3.12: `make tinker-server`.
"""

import argparse
import sys
from pathlib import Path

import skyrl.tinker.api as api
import uvicorn
from skyrl.tinker.config import EngineConfig, config_to_argv


def start_engine_directly(parent_command: list[str], config: EngineConfig) -> list[str]:
    """Write the engine's command without `uv run`, under which the server wants to be started."""
    return [sys.executable, "-m", "skyrl.tinker.engine", *config_to_argv(config)]


def main() -> None:
    """Serve until the process is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of a Qwen3-shaped model")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--state", type=Path, default=Path(".tinker"), help="checkpoints, database")
    parser.add_argument("--adapters", type=int, default=6, help="places, that of the base included")
    parser.add_argument("--rank", type=int, default=16, help="highest rank of an adapter")
    parser.add_argument("--samples", type=int, default=64, help="samples of each padded batch")
    parser.add_argument("--rows", type=int, default=32, help="rows of each training pass")
    options = parser.parse_args()
    state = options.state.resolve()
    state.mkdir(parents=True, exist_ok=True)

    # Batches of one size: the server compiles for each size of a batch, 15 s and more.
    backend = {
        "max_lora_adapters": options.adapters,
        "max_lora_rank": options.rank,
        "sample_max_num_sequences": options.samples,
        "train_micro_batch_size": options.rows,
    }
    api._build_uv_run_cmd_engine = start_engine_directly
    api.app.state.engine_config = EngineConfig(
        base_model=str(options.model.resolve()),
        backend="jax",
        backend_config=backend,
        checkpoints_base=str(state / "checkpoints"),
        database_url=f"sqlite:///{state}/server.db",
    )
    uvicorn.run(api.app, host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
