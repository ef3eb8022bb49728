"""Rows of a .jsonl, .json or .parquet file, or of a data set of a hub."""

import json
import os.path
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import cast

from debate_train.errors import DataError

FILE_ENDINGS = (".jsonl", ".json", ".parquet")


def is_file(path: str) -> bool:
    """Return whether a path names a file (by its ending) rather than a hub data set."""
    return path.endswith(FILE_ENDINGS)


def rows_of(
    path: str, config: str | None, split: str, key: str, count: int | None
) -> Iterator[Mapping[str, object]]:
    """Return the rows of a file, or of one split of a hub data set.

    Args:
        path: The file, or the id of the data set.
        config: Configuration of a hub data set.
        split: Of a hub data set.
        key: Names the path in the recipe.
        count: The most rows that are read; None reads all.

    Raises:
        DataError: It cannot be read.
    """
    if is_file(path):
        return islice(read_rows(path, key), count)
    return islice(hub_rows(path, config, split, key, streaming=count is not None), count)


def read_rows(path: str, key: str) -> Iterator[Mapping[str, object]]:
    """Yield the rows of a .jsonl, .json or .parquet file.

    Raises:
        DataError: There is no such file, or it holds something else.
    """
    # Unlike Path.is_file, this takes a name that is too long or holds NUL for no file.
    if not os.path.isfile(path):
        raise DataError(
            f"{key}: there is no file {path!r:.300}; expected a .jsonl, .json or .parquet file, "
            "or the id of a hub data set such as openai/gsm8k"
        )
    if path.endswith(".parquet"):
        datasets = _datasets(key)
        try:
            yield from datasets.Dataset.from_parquet(path)
        except Exception as error:
            raise DataError(f"{key}: {path}: not readable as parquet ({_first(error)})") from error
        return
    try:
        yield from _json_rows(Path(path), key)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{key}: {path}: not readable as UTF-8 text ({error})") from error


def hub_rows(
    path: str, config: str | None, split: str, key: str, *, streaming: bool = False
) -> Iterator[Mapping[str, object]]:
    """Yield the rows of one split of a hub data set; streaming, they are downloaded as they come.

    Raises:
        DataError: It could not be loaded.
    """
    datasets = _datasets(key)
    try:
        yield from datasets.load_dataset(path, config, split=split, streaming=streaming)
    except Exception as error:
        raise DataError(
            f"{key}: the hub data set {path!r:.300} could not be read ({_first(error)}); "
            "a local file must end in .jsonl, .json or .parquet"
        ) from error


def _first(error: Exception) -> str:
    """Return the first line of an error's text, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _json_rows(path: Path, key: str) -> Iterator[Mapping[str, object]]:
    with path.open(encoding="utf-8-sig") as file:
        numbered: Iterator[tuple[int, object]]
        if path.suffix == ".json":
            rows = _json(file.read(), f"{key}: {path}", "a list of objects")
            if not isinstance(rows, list):
                raise DataError(f"{key}: {path}: expected a list of objects, found {rows!r:.40}")
            numbered = enumerate(rows, start=1)
        else:
            numbered = (
                (number, _json(line, f"{key}: {path}:{number}", "one object a line"))
                for number, line in enumerate(file, start=1)
                if line.strip()
            )
        for number, row in numbered:
            if not isinstance(row, dict):
                raise DataError(f"{key}: {path}:{number}: expected an object, found {row!r:.40}")
            yield row


def _json(text: str, where: str, expected: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        # Beside what is no JSON: Python reads no whole number of more than 4,300 digits.
        reason = "nested too deeply" if isinstance(error, RecursionError) else _first(error)
        reason = error.msg if isinstance(error, json.JSONDecodeError) else reason
        raise DataError(f"{where}: not JSON ({reason}); expected {expected}") from error


def _datasets(key: str) -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{key}: hub data sets and parquet files need the datasets package; "
            "install it with: pip install 'debate-train[hub]'"
        ) from error
    return cast(ModuleType, datasets)
