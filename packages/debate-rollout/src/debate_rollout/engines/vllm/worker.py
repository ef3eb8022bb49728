"""The part inside vLLM's workers: weights read from a file, all or nothing.

vLLM imports this module through `worker_extension_cls`, which registers the weight-transfer
backend `debate_file`; its update takes `{"path": ...}`, a safetensors file under the names of
the Hugging Face model.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from debate_rollout.engine import Weights, WeightsError
from debate_rollout.engines.vllm.refresh_errors import OLD_WEIGHTS_SERVE
from debate_rollout.engines.vllm.settings import BACKEND
from debate_rollout.engines.weights import blank_model, check_complete, check_fits, with_tied


@dataclass
class NothingToInit(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is untyped here
    """A file needs no meeting point."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Where the weights are, and whether they are only read."""

    path: str
    only_check: bool = False


class FileTransfer(WeightTransferEngine[NothingToInit, FileUpdate]):  # type: ignore[misc]
    """Loads a safetensors file into a worker's model.

    A check looks at the file and changes nothing, so that several workers load it together or
    none does; loading checks again before it changes the first layer.
    """

    init_info_cls = NothingToInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: NothingToInit) -> None:
        """Nothing to prepare."""

    def start_weight_update(self) -> None:
        """Nothing to prepare."""

    def finish_weight_update(self) -> None:
        """Nothing is left to do."""

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Check the file, or serve its weights.

        Raises:
            WeightsError: When the file is torn or does not fit; the old weights go on serving.
        """
        config = self.model_config.hf_config
        shapes = blank_model(config).state_dict(keep_vars=True)
        check_file(update_info.path, shapes)
        if update_info.only_check:
            return
        tensors = with_tied(shapes, load_file(update_info.path), config.model_type)
        initialize_layerwise_reload(self.model)
        self.model.load_weights(iter(tensors.items()))
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held."""


class WorkerExtension:
    """Makes vLLM import this module in its workers."""


def check_file(path: str, shapes: Mapping[str, torch.Tensor]) -> None:
    """Check names and shapes of a file by its header, and its length.

    Raises:
        WeightsError: When the file is torn, or a name or shape does not fit, or one is missing.
    """
    try:
        with safe_open(path, framework="pt") as file:
            found = {
                name: torch.empty(file.get_slice(name).get_shape(), device="meta")
                for name in file.keys()  # noqa: SIM118 (a reader, not a mapping)
            }
        check_fits(shapes, found)
        check_complete(shapes, Weights(-1, found))
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"{path}: no complete safetensors file can be read ({error}); {OLD_WEIGHTS_SERVE}"
        ) from error
    except WeightsError as error:
        raise WeightsError(f"{path}: {error}; {OLD_WEIGHTS_SERVE}") from error


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)
