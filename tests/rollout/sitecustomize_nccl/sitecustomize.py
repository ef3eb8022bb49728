"""Imported by Python itself at the start of a server: replaces NCCL once vLLM imports its use."""

import importlib.abc
import importlib.util
import sys
from pathlib import Path
from typing import Any

_TRANSFER = "vllm.distributed.weight_transfer.nccl_engine"


class _Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _TRANSFER:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            sys.path.append(str(Path(__file__).parents[1]))
            from nccl_over_store import replace_nccl

            replace_nccl()

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Hook())
