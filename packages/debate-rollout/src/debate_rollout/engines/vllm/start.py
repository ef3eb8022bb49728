"""Starting vLLM inside or beside this process without disturbing the rest of it."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

# Before vllm is imported: it reads these once.
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch

if torch.cuda.is_available():
    # A forked core would inherit locks that other threads of this process hold.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
else:
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    # The sampler is compiled even in eager mode; without a C++ compiler that fails.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

from vllm import LLM
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs

from debate_rollout.engine import EngineConfigError
from debate_rollout.engines.vllm import (
    BATCH_INVARIANT,
    VllmSettings,
    check_names,
    on_cpu,
)
from debate_rollout.engines.vllm.model import ThreadState, undisturbed

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


def engine_arguments(ours: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """Return our arguments, as this machine needs them, with the recipe's `vllm_args` added.

    Raises:
        EngineConfigError: When vLLM has no argument of a name, or a CPU cannot run with it.
    """
    check_names(given, (one.name for one in dataclasses.fields(EngineArgs)))
    chosen = dict(ours) if torch.cuda.is_available() else on_cpu(ours, given)
    return {**given, **chosen}


def environment_of(settings: VllmSettings) -> dict[str, str]:
    """Return what the environment of vLLM's own process holds beside ours."""
    if not settings.batch_invariant or not torch.cuda.is_available():
        return {}
    return {BATCH_INVARIANT: "1"}


_running_here = False
"""vLLM keeps one state for a process: closing one of two engines would end the other."""


def start_here(model: str, arguments: Mapping[str, object]) -> tuple[LLM, ThreadState]:
    """Return a running `vllm.LLM` whose core is stepped by this process, and what it runs in.

    Every call of it belongs inside `ThreadState.entered`.

    Raises:
        EngineConfigError: When the arguments ask for data parallel engines, or a vLLM runs here,
            or it would replace torch's own operations.
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
    if os.environ.get(BATCH_INVARIANT, "0") not in ("", "0"):
        raise EngineConfigError(
            f"environment: found {BATCH_INVARIANT} with process 'shared', where vLLM would replace "
            "torch's operations under the trainer, too; expected process: own, or engine type "
            "vllm_server, with batch_invariant: true"
        )
    with undisturbed(), _environment({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}):
        llm = LLM(model, **arguments)
        state = ThreadState.now()
    _running_here = True
    return llm, state


def stop_here(llm: LLM) -> None:
    """Stop what `start_here` returned."""
    global _running_here
    _running_here = False
    llm.llm_engine.engine_core.shutdown()


def start_beside(
    model: str, arguments: Mapping[str, object], environment: Mapping[str, str]
) -> "AsyncLLM":
    """Return a running `AsyncLLM`, whose core has a process of its own; call on an event loop.

    `environment` is added to that of the process.
    """
    from vllm.v1.engine.async_llm import AsyncLLM

    with undisturbed(), _environment({"VLLM_ENABLE_V1_MULTIPROCESSING": "1", **environment}):
        return AsyncLLM.from_engine_args(
            AsyncEngineArgs(model=model, disable_log_stats=True, **arguments)
        )


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
