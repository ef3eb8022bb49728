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
        ("dtype", "auto", "dtype: not for speed"),
        ("logprobs_mode", "raw_logprobs", "not for speed or memory"),
        ("generation_config", "auto", "not for speed or memory"),
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
        ("ec_manager_config", {"encoder_cache_manager_cls": "a.B"}, "not for speed or memory"),
        ("compilation_config", {"backend": "a.b"}, "compilation_config: not for speed"),
        ("attention_backend", "my.Backend", "found 'my.Backend'; expected a number"),
        ("moe_backend", {"a": 1}, "moe_backend: found"),
        ("distributed_executor_backend", "my.module.Executor", "found .* a word of a-z"),
        ("enable_sleep_mode", True, "not for speed or memory"),
    ],
)
def test_vllm_args_are_refused_when_they_are_ours_or_run_code(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        VllmEngine(vllm_args={name: value})


def test_vllm_args_pass_what_is_vllms_own() -> None:
    given = {
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "ray",
        "max_num_batched_tokens": 8192,
        "kv_cache_dtype": "fp8_e5m2",
        "cpu_offload_gb": 1.5,
        "cudagraph_capture_sizes": [1, 2],
    }
    assert VllmEngine(vllm_args=given).vllm_args == given


def test_batch_invariant_needs_a_process_of_its_own() -> None:
    with pytest.raises(ValidationError, match="under the trainer, too; expected type: vllm_server"):
        VllmEngine(batch_invariant=True)
    assert VllmServerEngine(batch_invariant=True).batch_invariant
    with pytest.raises(ValidationError, match="batch_invariant: set together with url"):
        VllmServerEngine(url="http://host:8000", batch_invariant=True)


def test_serving_arguments_guard_what_training_relies_on() -> None:
    found = serving_arguments(VllmEngine(max_lora_rank=16, kv_cache_mib=2), "float32", 512)
    assert found["logprobs_mode"] == "processed_logprobs" and found["dtype"] == "float32"
    assert found["enable_prefix_caching"] and found["generation_config"] == "vllm"
    # vLLM has room for some ranks alone: the next above serves an adapter of rank 9.
    odd = serving_arguments(VllmEngine(max_lora_rank=9), "float32", 512)
    assert (found["max_lora_rank"], odd["max_lora_rank"]) == (16, 16)
    assert found["kv_cache_memory_bytes"] == 2 * 1024 * 1024 and found["max_loras"] == 2
    assert "block_size" not in found and found["max_model_len"] == 512


def test_on_cpu_keeps_seeded_prompts_whole() -> None:
    found = on_cpu(serving_arguments(VllmEngine(), "float32", 512))
    assert found["enable_chunked_prefill"] is False and found["enforce_eager"] is True
    assert "gpu_memory_utilization" not in found
    assert found["block_size"] == 32 and found["kv_cache_memory_bytes"] == 268_435_456  # 256 MiB


def test_capabilities_name_the_weights_that_can_be_loaded() -> None:
    assert "full_weights" in VllmEngine().capabilities and "lora" not in VllmEngine().capabilities
    served = VllmEngine(max_lora_rank=8).capabilities
    assert "lora" in served and "full_weights" not in served
    assert {"tokens", "logps", "seeds", "streams", "prefix_cache", "load_in_flight"} <= served


def test_engine_in_this_process_has_no_replicas() -> None:
    with pytest.raises(ValidationError, match="data_parallel_size: expected 1 in one process"):
        VllmEngine(vllm_args={"data_parallel_size": 2})
