"""The program behind a file, and the rows."""

import json
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from debate_protocol.command_line import UsageError
from debate_protocol.plugins import entry_points_of
from debate_report.imports.episodes import Episodes
from debate_report.imports.evaluations import Inspect, Lighteval, LmEval
from debate_report.imports.replies import Art, MsSwift, NemoRl, ReplyRows, SkyRl, Verl
from debate_report.imports.rollout import NoRepliesError, Reader
from debate_report.imports.tinker import TinkerEvaluation, TinkerTraining
from debate_report.imports.token_rows import Atropos, TokenExports
from debate_report.imports.values import Record

ENTRY_POINTS = "debate_report.readers"
# The most particular first: rows of several programs have a prompt and a completion.
READERS: tuple[Reader, ...] = (
    Episodes(),
    Verl(),
    MsSwift(),
    SkyRl(),
    NemoRl(),
    Art(),
    LmEval(),
    Lighteval(),
    Inspect(),
    TokenExports(),
    Atropos(),
    TinkerTraining(),
    TinkerEvaluation(),
    ReplyRows(),
)
# Files that hold no replies, by the columns that name them.
WITHOUT_REPLIES: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"task_key", "valid", "reason"}), "a report of vf-validate"),
    (frozenset({"results", "configs", "n-shot"}), "aggregate results of lm-evaluation-harness"),
)
LONGEST_INTEGER = 300
ZSTD_METHOD = 93
LOCAL_HEADER_BYTES = 30


def reader_of(rows: Sequence[Record], path: Path) -> Reader:
    """Find the reader of a file's rows.

    Raises:
        NoRepliesError: No reader fits; the message names the kind of file, or the columns, and
            the readable shapes.
    """
    readers = (*READERS, *_installed_readers())
    if not rows:
        raise NoRepliesError(f"{path}: found no rows; expected {shapes(readers)}")
    first = rows[0]
    for reader in readers:
        if reader.fits(first):
            return reader
    for columns, description in WITHOUT_REPLIES:
        if columns <= first.keys():
            raise NoRepliesError(
                f"{path}: found {description}, which holds no replies; expected {shapes(readers)}"
            )
    names = ", ".join(sorted(map(str, first))[:8]) or "nothing"
    raise NoRepliesError(f"{path}: found rows with {names}; expected {shapes(readers)}")


def shapes(readers: Sequence[Reader] = READERS) -> str:
    """List the readable shapes of rows, each with the program."""
    return "; or ".join(f"{reader.shape} ({reader.name})" for reader in readers)


def rows_in(path: Path) -> list[Record]:
    """Read the rows of a .jsonl, .json, .parquet or .eval file.

    NaN and infinity (several programs write them) are read as not known.

    Raises:
        UsageError: The file cannot be read, or a row of it is no object.
    """
    if not path.is_file():
        raise UsageError(
            f"rollouts: there is no file {str(path)!r:.300}; expected .jsonl, .json, .parquet or "
            ".eval"
        )
    try:
        numbered = list(_numbered_rows(path))
    except ImportError as error:
        package = "zstandard" if path.suffix == ".eval" else "pyarrow"
        raise UsageError(
            f"rollouts: {path}: needs {package} to be read; expected `pip install {package}`"
        ) from error
    except (OSError, ValueError, TypeError, RecursionError, zipfile.BadZipFile) as error:
        raise UsageError(f"rollouts: {path}: cannot be read ({error})") from error
    for number, row in numbered:
        if not isinstance(row, Mapping):
            raise UsageError(f"rollouts: {path}:{number}: expected an object, found {row!r:.40}")
    return [row for _, row in numbered if isinstance(row, Mapping)]


def _numbered_rows(path: Path) -> Iterator[tuple[int, object]]:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        yield from enumerate(parquet.read_table(path).to_pylist(), 1)
    elif path.suffix == ".eval":
        yield from enumerate(_zipped_samples(path), 1)
    elif path.suffix == ".json":
        value = parse(path.read_bytes())
        samples = value.get("samples") if isinstance(value, Mapping) else value
        yield from enumerate(samples if isinstance(samples, list) else [value], 1)
    else:
        yield from _lines(path)


def _lines(path: Path) -> Iterator[tuple[int, object]]:
    """Yield the rows of a file of lines; a last line cut off by an interrupt is left out."""
    with path.open("rb") as file:
        lines = [(number, line) for number, line in enumerate(file, 1) if line.strip()]
    for number, line in lines:
        try:
            yield number, parse(line)
        except (ValueError, RecursionError) as error:
            is_last = number == lines[-1][0]
            if is_last and len(lines) > 1 and not line.endswith(b"\n"):
                return
            raise ValueError(f"line {number}: not JSON ({error})") from error


def parse(text: bytes) -> object:
    """Parse JSON, with programs' further constants as not known."""
    return json.loads(text, parse_constant=lambda _: None, parse_int=_integer)


def _integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= LONGEST_INTEGER else None


def _zipped_samples(path: Path) -> Iterator[object]:
    """Yield the samples of inspect's log; members are compressed by Zstandard."""
    import zstandard

    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        members = sorted(
            (member for member in archive.infolist() if member.filename.startswith("samples/")),
            key=lambda member: member.filename,
        )
        for member in members:
            if member.compress_type != ZSTD_METHOD:
                yield parse(archive.read(member))
                continue
            # Python reads Zstandard in archives from 3.14 on: take the bytes past its header.
            file.seek(member.header_offset)
            header = file.read(LOCAL_HEADER_BYTES)
            name_length, extra_length = struct.unpack_from("<HH", header, 26)
            file.seek(name_length + extra_length, 1)
            compressed = file.read(member.compress_size)
            stream = zstandard.ZstdDecompressor().stream_reader(compressed)
            yield parse(stream.read(member.file_size))


def _installed_readers() -> list[Reader]:
    return [point.load()() for point in entry_points_of(ENTRY_POINTS)]
