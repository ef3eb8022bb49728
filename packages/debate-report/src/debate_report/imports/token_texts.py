"""Token ids as the text of each token, for files that hold ids alone."""

from collections.abc import Callable, Sequence
from pathlib import Path

from debate_protocol.command_line import UsageError

TOKENIZER_FILE = "tokenizer.json"

TokenTexts = Callable[[Sequence[int]], list[str]]
"""From ids to the text of each; a character of several tokens is the text of its last."""


def ids_as_texts(token_ids: Sequence[int]) -> list[str]:
    """Write each id as a number, where no tokenizer says what it means."""
    return [f"{token_id} " for token_id in token_ids]


def open_tokenizer(path: Path) -> TokenTexts:
    """Open a tokenizer of Hugging Face's format.

    Args:
        path: `tokenizer.json`, or a folder with it, such as a model's.

    Raises:
        UsageError: There is none, it cannot be read, or the package tokenizers is not there.
    """
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise UsageError(
            f"tokenizer: found no file {str(file)!r}; expected {TOKENIZER_FILE}, or a model's "
            "folder with it"
        )
    try:
        from tokenizers import Tokenizer
        from tokenizers.decoders import DecodeStream
    except ImportError as error:
        raise UsageError("tokenizer: needs `pip install tokenizers`") from error
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises no narrower kind
        raise UsageError(f"tokenizer: {file}: cannot be read ({error})") from error

    def token_texts(token_ids: Sequence[int]) -> list[str]:
        # Special tokens stay: they part the messages of a prompt.
        stream = DecodeStream(skip_special_tokens=False)
        texts = []
        for token_id in token_ids:
            # The stream itself takes an unknown id for a token without text.
            if tokenizer.id_to_token(token_id) is None:
                raise UsageError(
                    f"tokenizer: {file}: found id {token_id}, which it does not have; expected "
                    "the tokenizer of the model that sampled"
                )
            texts.append(stream.step(tokenizer, token_id) or "")
        return texts

    return token_texts
