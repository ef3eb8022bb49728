"""Liger Kernel (Hsu et al. 2024, arXiv 2410.10989): norms, rotary angles and MLPs as one kernel."""

from typing import TYPE_CHECKING

from debate_train.errors import RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEY = "trainer.use_liger_kernel"


def use_liger_kernel(model: "PreTrainedModel") -> None:
    """Replace what Liger Kernel computes faster; the loss stays ours.

    transformers' class of the model is changed with it, for every model of the process.

    Args:
        model: of transformers, or peft around one; on any device, trained on CUDA.

    Raises:
        RecipeError: The package or a CUDA device is missing, or it does not know the model.
    """
    import torch

    if not torch.cuda.is_available():
        raise RecipeError(f"{KEY}: found no CUDA device; expected one, or false")
    try:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as KNOWN
        from transformers.integrations.liger import apply_liger_kernel
    except ImportError as error:
        raise RecipeError(
            f"{KEY}: liger-kernel cannot be imported ({error}); expected `pip install "
            "'debate-train[liger]'`, or false"
        ) from None
    if model.config.model_type not in KNOWN:
        raise RecipeError(
            f"{KEY}: found a model of type {model.config.model_type}; expected one of "
            f"{', '.join(sorted(KNOWN))}, or false"
        )
    apply_liger_kernel(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})
