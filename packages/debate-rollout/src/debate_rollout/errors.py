"""Errors of the rollout package."""

from debate_protocol.types import Transcript


class RolloutError(Exception):
    """Anything this package raises on purpose."""


class MissingExtraError(RolloutError, ImportError):
    """An engine whose libraries are not installed."""


class EngineFailure(RolloutError):
    """An engine that failed twice on the same request, or gave it up.

    Attributes:
        finished: Transcripts of the debates that `play` had brought to their ends.
    """

    finished: tuple[Transcript, ...] = ()


class WeightsError(RolloutError, ValueError):
    """Weights that do not fit the served model."""


class NotFiniteError(RolloutError):
    """A model whose logits are not finite, so that nothing can be sampled from it."""


class EngineConfigError(RolloutError, ValueError):
    """Settings of an engine or of a call that cannot work."""


class EndpointError(RolloutError):
    """An endpoint that refuses a request, or keeps failing it."""


class RetriesExhaustedError(EndpointError):
    """An endpoint that kept failing a request, which its engine has tried again in vain."""


def missing_extra(what: str, extra: str, cause: ImportError) -> MissingExtraError:
    """Return the error that says which extra to install."""
    return MissingExtraError(
        f"{what} needs libraries that cannot be imported ({cause}). "
        f"Install them: pip install 'debate-rollout[{extra}]'"
    )
