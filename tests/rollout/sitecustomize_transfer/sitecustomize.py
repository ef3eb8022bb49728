"""Imported by Python itself at the start of a server: replaces what needs a GPU, once imported."""

import importlib.abc
import importlib.util
import sys
from pathlib import Path
from typing import Any

_TRANSFER = "vllm.distributed.weight_transfer."


class _Hook(importlib.abc.MetaPathFinder):
    def __init__(self, kind: str) -> None:
        self._kind = kind

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != f"{_TRANSFER}{self._kind}_engine":
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


sys.meta_path[:0] = [_Hook("nccl"), _Hook("ipc")]
