"""Imported by Python itself at the start of a server: replaces what needs a GPU, once imported."""

import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any


class _Hook(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, kind: str) -> None:
        self._module, self._kind = module, kind

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            sys.path.append(str(Path(__file__).parents[1]))
            import transfer_without_gpu

            getattr(transfer_without_gpu, f"replace_{self._kind}")()

        spec.loader.exec_module = exec_module
        return spec


kinds = ("nccl", "sparse_nccl", "ipc")
hooks = [_Hook(f"vllm.distributed.weight_transfer.{kind}_engine", kind) for kind in kinds]
if "UNPACKED" in os.environ:
    hooks.append(_Hook("vllm.model_executor.layers.utils", "packing"))
sys.meta_path[:0] = hooks
