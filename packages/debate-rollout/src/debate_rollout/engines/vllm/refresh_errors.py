"""Errors of a refresh of weights: whether the old weights still serve."""

from debate_rollout.engine import RolloutError, WeightsError

OLD_WEIGHTS_SERVE = "the old weights go on serving"
"""Marks a worker's error after which nothing has changed."""


def refresh_error(error: Exception, only_check: bool) -> Exception:
    """Classify a failed refresh as refused weights or as a broken engine.

    Args:
        error: raised by a worker.
        only_check: whether the workers only checked the file.
    """
    if only_check and OLD_WEIGHTS_SERVE in str(error):
        return WeightsError(str(error))
    # A worker that failed after its check may serve a mixture of old and new layers.
    return RolloutError(
        f"a refresh of weights failed half-way ({error}); what is served now is not known, so this "
        "engine answers no more requests: start it again"
    )
