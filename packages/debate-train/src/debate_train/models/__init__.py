"""Models and tokenizers: loaded by name, or made from scratch for a first run."""

from typing import Annotated

from debate_protocol.plugins import Variants
from debate_train.models.loaded_model import Lora
from debate_train.models.pretrained import PretrainedModel
from debate_train.models.scratch import ScratchModel

__all__ = ["MODELS", "Lora", "ModelChoice", "ModelConfig", "PretrainedModel", "ScratchModel"]

ModelConfig = PretrainedModel | ScratchModel
MODELS: Variants[ModelConfig] = Variants(None, ModelConfig, PretrainedModel, ScratchModel)
ModelChoice = Annotated[ModelConfig, MODELS]
"""The model that is trained; recipes choose by `type`."""
