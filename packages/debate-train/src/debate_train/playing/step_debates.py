"""The debates of a step together with what drawing their questions cost."""

from collections.abc import Mapping, Sequence

from debate_protocol.types import Transcript


class StepDebates(list[Transcript]):
    """The debates that a step trains on; `metrics` say how many were left out, and why."""

    def __init__(
        self, transcripts: Sequence[Transcript], metrics: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(transcripts)
        self.metrics: dict[str, float] = dict(metrics or {})


def metrics_of(debates: Sequence[Transcript]) -> dict[str, float]:
    """Return the metrics that came with debates, none where nothing was selected."""
    return debates.metrics if isinstance(debates, StepDebates) else {}
