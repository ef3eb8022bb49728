"""Starting vLLM inside or beside this process without disturbing the rest of it."""

import dataclasses
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# Before vllm is imported: it reads these once.
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import numpy as np
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    # The sampler is compiled even in eager mode; without a C++ compiler that fails.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

from vllm import LLM
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs

from debate_rollout.engines.vllm_settings import check_names, on_cpu
from debate_rollout.errors import EngineConfigError


def engine_arguments(ours: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return our arguments, as this machine needs them, with the recipe's `vllm_args` added.

    Raises:
        EngineConfigError: When vLLM has no argument of a name, or a CPU cannot run with it.
    """
    check_names(given, (one.name for one in dataclasses.fields(EngineArgs)))
    chosen = dict(ours) if torch.cuda.is_available() else on_cpu(ours, given)
    return {**given, **chosen}


_running_here = False
"""vLLM keeps one state for a process: closing one of two engines would end the other."""


def start_here(model: str, arguments: Mapping[str, Any]) -> Any:
    """Return a running `vllm.LLM` whose core is stepped by this process.

    Raises:
        EngineConfigError: When the arguments ask for data parallel engines, or a vLLM runs here.
    """
    global _running_here
    if _running_here:
        raise EngineConfigError(
            "engine.process: found 'shared' for a second vLLM, but one process runs one at a "
            "time; expected the first to be closed, or process: own"
        )
    if arguments.get("data_parallel_size", 1) != 1:
        raise EngineConfigError(
            f"vllm_args.data_parallel_size: found {arguments['data_parallel_size']} with process "
            "'shared'; expected process: own, or engine type vllm_server"
        )
    with _undisturbed(), _environment("VLLM_ENABLE_V1_MULTIPROCESSING", "0"):
        llm = LLM(model, **arguments)
    _running_here = True
    return llm


def stop_here(llm: Any) -> None:
    """Stop what `start_here` returned."""
    global _running_here
    _running_here = False
    llm.llm_engine.engine_core.shutdown()


def start_beside(model: str, arguments: Mapping[str, Any]) -> Any:
    """Return a running `AsyncLLM`, whose core has a process of its own; call on an event loop."""
    from vllm.v1.engine.async_llm import AsyncLLM

    with _undisturbed(), _environment("VLLM_ENABLE_V1_MULTIPROCESSING", "1"):
        return AsyncLLM.from_engine_args(
            AsyncEngineArgs(model=model, disable_log_stats=True, **arguments)
        )


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep this process's random states and thread setting, which vLLM replaces."""
    set_num_threads = torch.set_num_threads
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
