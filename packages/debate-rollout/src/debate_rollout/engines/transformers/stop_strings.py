"""Finding stop strings in sampled tokens without decoding every row at every step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from debate_rollout.token_text import PieceBytes, piece_bytes, token_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class StopStrings:
    """Says whether the newest token of a reply completed one of its stop strings.

    Args:
        tokenizer: The tokenizer of the replies.
        stops: Stop strings.
        vocabulary: How many ids the model can sample.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerFast", stops: tuple[str, ...], vocabulary: int
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stop for stop in stops if stop)
        self._encoded = tuple(stop.encode() for stop in self._stops)
        self._longest = max((len(stop) for stop in self._encoded), default=0)
        self.tail = self._longest + 8
        """How many of a reply's last tokens are enough to look at."""
        self._pieces = piece_bytes(tokenizer)
        self.may_complete_V = self._table(self._pieces, vocabulary)
        """Tokens that could complete a stop string; all others need no look."""

    def _table(self, pieces: PieceBytes | None, vocabulary: int) -> Tensor:
        if not self._stops:
            return torch.zeros(vocabulary, dtype=torch.bool)
        if pieces is None:
            return torch.ones(vocabulary, dtype=torch.bool)
        return torch.tensor([self._may_complete(pieces[i]) for i in range(vocabulary)])

    def _may_complete(self, piece: bytes) -> bool:
        return any(
            stop in piece or any(piece.startswith(stop[k:]) for k in range(1, len(stop)))
            for stop in self._encoded
        )

    def completed(self, ids: Sequence[int]) -> bool:
        """Return whether a stop string ends inside the last of `ids`, a reply's last tokens."""
        if self._pieces is None:
            tail = token_text(self._tokenizer, ids[-self.tail :]).text
            return any(stop in tail for stop in self._stops)
        tail_bytes = self._pieces[ids[-1]]
        wanted = len(tail_bytes) + self._longest - 1
        at = len(ids) - 2
        while at >= 0 and len(tail_bytes) < wanted:
            tail_bytes = self._pieces[ids[at]] + tail_bytes
            at -= 1
        return any(stop in tail_bytes for stop in self._encoded)
