"""Debates that were held before: read from files, and given the ids that a model has for them."""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from debate_protocol.parsing.contract import get_contract
from debate_protocol.types import Ask, Branch, Reply, Transcript, Turn
from debate_rewards.reading import read_debate
from debate_rollout.rendering import Renderer
from debate_train.data.question_source import identity, normalised
from debate_train.data.source import MOST_HELD_OUT, DataSource
from debate_train.offline.offline_set import OfflineSet
from debate_train.rollout_files.debate_files import debates_in, files_of

_KEY = "offline.path"


def files_digest(offline: OfflineSet) -> str | None:
    """Return a hash of the files that a set reads, None where it reads none.

    Raises:
        UsageError: There is no such file.
    """
    if offline.path is None:
        return None
    files = files_of(Path(offline.path), _KEY)
    return hashlib.sha256(
        b"".join(hashlib.sha256(f.read_bytes()).digest() for f in files)
    ).hexdigest()


def read_debates(offline: OfflineSet) -> list[Transcript]:
    """Return the debates of the files that a set reads, those of its first questions.

    Raises:
        UsageError: A file is not there, or holds no debates.
    """
    assert offline.path is not None
    imported = offline.imported
    found = [
        debate
        for file in files_of(Path(offline.path), _KEY)
        for debate in debates_in(
            file,
            _KEY,
            contract=imported.contract,
            kind=imported.kind,
            answer=imported.answer,
        )
    ]
    asked = list(dict.fromkeys(identity(debate.question) for debate in found))
    wanted = set(asked[: offline.questions])
    return [debate for debate in found if identity(debate.question) in wanted]


def dev_and_test(sources: Sequence[DataSource]) -> set[str]:
    """Return what the dev and test questions of sources ask, normalised."""
    return {
        normalised(identity(question))
        for source in sources
        for name in ("dev", "test")
        for question in source.split(name, MOST_HELD_OUT)
    }


def usable(
    debates: Sequence[Transcript], held: Collection[str]
) -> tuple[list[Transcript], Counter[str]]:
    """Return the debates that may be learned from, and how many may not, by cause.

    Those about held-out questions would teach what a run is measured on.
    """
    kept, counts = list[Transcript](), Counter[str]()
    for debate in debates:
        if normalised(identity(debate.question)) in held:
            counts["left_out/dev_or_test"] += 1
        elif not _is_readable(debate):
            counts["left_out/unreadable"] += 1
        else:
            kept.append(debate)
    return kept, counts


def _is_readable(debate: Transcript) -> bool:
    try:
        read_debate(debate)
    except ValueError:
        return False
    return True


def learned_from(
    offline: OfflineSet, sources: Sequence[DataSource], renderer: Renderer, window: int | None
) -> tuple[list[Transcript], Counter[str]]:
    """Return the debates of a set's files with tokens, and how many are left out, by cause.

    Args:
        offline: The set.
        sources: Whose held-out questions are not learned from.
        renderer: Makes the ids.
        window: Of the model, in tokens.

    Raises:
        UsageError: A file is not there, or holds no debates.
    """
    kept, left_out = usable(read_debates(offline), dev_and_test(sources))
    return [with_tokens(debate, renderer, window) for debate in kept], left_out


def with_tokens(debate: Transcript, renderer: Renderer, window: int | None) -> Transcript:
    """Return a debate whose turns hold their prompts and texts as ids of a model's tokenizer.

    Turns without a prompt, and those that do not fit the window, get none.
    """
    stop = get_contract(debate.protocol.contract).stop

    def heard(turn: Turn) -> Turn:
        branches = tuple(Branch(branch.guide, heard(branch.turn)) for branch in turn.branches)
        reply = None
        if turn.prompt:
            asked = Ask(debate.question, turn.agent, turn.round, tuple(turn.prompt))
            prompt = renderer.render(asked).prompt_ids
            ids = text_ids(turn.text, renderer, stop)
            if window is None or len(prompt) + len(ids) <= window:
                reply = Reply(turn.text, "end", prompt, ids)
        return replace(turn, reply=reply, branches=branches)

    return replace(debate, turns=tuple(heard(turn) for turn in debate.turns))


def text_ids(text: str, renderer: Renderer, stop: str | None) -> tuple[int, ...]:
    """Return a reply as ids, with the end token where no stop string ends it."""
    ids = renderer.encode(renderer.plain(text))
    end = renderer.tokenizer.eos_token_id
    if end is not None and not (stop is not None and text.endswith(stop)):
        ids.append(int(end))
    return tuple(ids)
