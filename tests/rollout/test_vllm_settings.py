"""What a recipe may say about vLLM; none of this needs vLLM."""

import pytest
from pydantic import ValidationError

from debate_rollout.engines import VllmEngine, VllmServerEngine
from debate_rollout.engines.vllm import on_cpu, serving_arguments


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "max_num_seqs",
            8,
            "max_num_seqs: not for speed or memory alone; expected a setting of the",
        ),
        (
            "trust_remote_code",
            True,
            "not for speed or memory.*one of .*tensor_parallel_size",
        ),
        ("worker_cls", "os.system", "worker_cls: not for speed or memory"),
        ("tensor_paralel_size", 2, "did you mean 'tensor_parallel_size'"),
        (
            "structured_outputs_config",
            {"reasoning_parser_plugin": "x.py"},
            "not for speed or memory",
        ),
        ("attention_backend", "my.Backend", "found 'my.Backend'; expected a number"),
        ("distributed_executor_backend", "my.module.Executor", "found .* a word of a-z"),
    ],
)
def test_vllm_args_are_refused_when_they_are_ours_or_run_code(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        VllmEngine(vllm_args={name: value})


def test_batch_invariant_needs_a_process_of_its_own() -> None:
    with pytest.raises(ValidationError, match="under the trainer, too; expected type: vllm_server"):
        VllmEngine(batch_invariant=True)
    assert VllmServerEngine(batch_invariant=True).batch_invariant
    with pytest.raises(ValidationError, match="batch_invariant: set together with url"):
        VllmServerEngine(url="http://host:8000", batch_invariant=True)


def test_serving_arguments_guard_what_training_relies_on() -> None:
    arguments = serving_arguments(VllmEngine(max_lora_rank=16, kv_cache_mib=2), "float32", 512)
    assert arguments["logprobs_mode"] == "processed_logprobs"
    assert arguments["dtype"] == "float32"
    assert arguments["enable_prefix_caching"]
    assert arguments["generation_config"] == "vllm"
    # vLLM has room for some ranks alone: the next above serves an adapter of rank 9.
    odd = serving_arguments(VllmEngine(max_lora_rank=9), "float32", 512)
    assert (arguments["max_lora_rank"], odd["max_lora_rank"]) == (16, 16)
    assert arguments["kv_cache_memory_bytes"] == 2 * 1024 * 1024
    assert arguments["max_loras"] == 2
    assert "block_size" not in arguments
    assert arguments["max_model_len"] == 512


def test_on_cpu_keeps_seeded_prompts_whole() -> None:
    arguments = on_cpu(serving_arguments(VllmEngine(), "float32", 512))
    assert arguments["enable_chunked_prefill"] is False
    assert arguments["enforce_eager"] is True
    assert "gpu_memory_utilization" not in arguments
    assert arguments["block_size"] == 32
    assert arguments["kv_cache_memory_bytes"] == 268_435_456


def test_capabilities_name_the_weights_that_can_be_loaded() -> None:
    assert "full_weights" in VllmEngine().capabilities
    assert "lora" not in VllmEngine().capabilities
    served = VllmEngine(max_lora_rank=8).capabilities
    assert "lora" in served
    assert "full_weights" not in served
    assert {"tokens", "logps", "seeds", "streams", "prefix_cache", "load_in_flight"} <= served


def test_engine_in_this_process_has_no_replicas() -> None:
    with pytest.raises(ValidationError, match="data_parallel_size: expected 1 in one process"):
        VllmEngine(vllm_args={"data_parallel_size": 2})
