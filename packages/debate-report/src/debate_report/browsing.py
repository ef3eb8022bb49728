"""All recorded debates of a page: a short index, and blocks that are opened on demand."""

import base64
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from debate_protocol.types import TurnKey
from debate_report.debates import Debates, Recorded, states
from debate_report.page_templates import render
from debate_report.run_files import RunFiles
from debate_rewards.reward import ReadTurn

BLOCK = 25
MOST_BYTES = 28_000_000
"""Of all blocks together; what is beyond it is left out, and the page says so."""
MOST_CREDITED = 200
"""Debates that keep the advantage of each token."""
MOST_TEXT = 200_000
"""Characters of one turn, question or message that are shown."""
_SHORT = 90
NOTHING = Markup()


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a page holds of its debates.

    Attributes:
        index: What the list of debates shows and filters by.
        texts: Blocks of debates, JSON that is deflated and then written in base64.
        prompts: Blocks of their prompts; there may be fewer of them.
        left_out: Debates, and blocks of prompts, that found no room.
    """

    index: Mapping[str, Any]
    texts: Sequence[str]
    prompts: Sequence[str]
    left_out: tuple[int, int]


def blocks_of(debates: Debates) -> Blocks:
    """Return the debates of a run as a page holds them."""
    found = debates.found
    credited = _credited(found)
    room, texts, prompts = MOST_BYTES, list[str](), list[str]()
    parts = [found[start : start + BLOCK] for start in range(0, len(found), BLOCK)]
    for part in parts:
        text = _packed([_debate(one, with_credit=id(one) in credited) for one in part])
        if len(text) > room:
            break
        texts.append(text)
        room -= len(text)
    for part in parts[: len(texts)]:
        text = _packed([_prompts(one) for one in part])
        if len(text) > room:
            break
        prompts.append(text)
        room -= len(text)
    shown = found[: len(texts) * BLOCK]
    phases = list(dict.fromkeys(one.phase for one in shown))
    index = {
        "block": BLOCK,
        "phases": phases,
        "prompts": len(prompts),
        "open": _opened(shown),
        "debates": [_entry(one, phases, credited=id(one) in credited) for one in shown],
    }
    return Blocks(index, texts, prompts, (len(found) - len(shown), len(texts) - len(prompts)))


def _opened(shown: Sequence[Recorded]) -> int:
    """Return the place of the debate that is shown first: of the policy itself, as it was last."""
    places = range(len(shown))
    trained = [k for k in places if not (shown[k].demonstrated or shown[k].evaluated)]
    own = trained or [k for k in places if not shown[k].demonstrated]
    return max(own, key=lambda k: (shown[k].step, -k), default=0)


def _credited(found: Sequence[Recorded]) -> set[int]:
    """Return which debates keep their tokens' advantages, evenly spread over those with any."""
    known = [one for one in found if any(turn.get("tokens") for turn in one.credit.values())]
    if len(known) > MOST_CREDITED:
        known = [known[k * len(known) // MOST_CREDITED] for k in range(MOST_CREDITED)]
    return {id(one) for one in known}


def _packed(values: object) -> str:
    text = json.dumps(values, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(text, 6)).decode()


def _entry(one: Recorded, phases: Sequence[str], *, credited: bool) -> list[object]:
    """Return [phase, step, id, start of the question, marks, right answers, answers]."""
    last = one.read.last_round
    verdicts = [one.verdicts[key] for key in one.read.turns if key.round == last]
    marks = [name for name, is_so in _marks(one, credited=credited) if is_so]
    question = " ".join(one.transcript.question.text[: 4 * _SHORT].split())[:_SHORT]
    return [
        phases.index(one.phase),
        one.step,
        one.transcript.id[:200],
        question,
        marks,
        verdicts.count("right"),
        len(verdicts),
    ]


def _marks(one: Recorded, *, credited: bool) -> Iterator[tuple[str, bool]]:
    decided = next(iter(one.decisions.values()), ("", None))[1]
    yield "right", decided == "right"
    # A debate of ours without a decision has no answer; of a reply of others it could not be read.
    is_undecided = not one.decisions and one.transcript.question.answer is not None
    yield "wrong", decided == "wrong" or (is_undecided and not one.imported)
    before: dict[int, str | None] = {}
    turned = set()
    for key, _, verdict in states(one):
        turned.add((before.get(key.agent), verdict))
        before[key.agent] = verdict
    yield "spoiled", ("right", "wrong") in turned
    yield "mended", ("wrong", "right") in turned
    yield "errors", any(_problems(one, turn) for turn in one.read.judges.values())
    yield "shown", one.demonstrated
    yield "tokens", credited


def _problems(one: Recorded, turn: ReadTurn) -> list[str]:
    failure = [turn.turn.failure] if turn.turn.failure else []
    # A file says of a rollout as a whole that it was cut: its last reply was.
    is_cut = one.transcript.meta.get("finish") == "length" and turn.turn is one.transcript.turns[-1]
    cut = ["cut at the token limit"] if one.imported and is_cut else []
    return [*failure, *cut, *turn.parsed.problems]


def _debate(one: Recorded, *, with_credit: bool) -> dict[str, object]:
    question, protocol = one.transcript.question, one.transcript.protocol
    rules = f"{protocol.num_agents} agents, {protocol.schedule}, {protocol.topology}"
    return {
        "question": question.text[:MOST_TEXT],
        "answer": question.answer,
        "passage": str(question.meta.get("passage") or "")[:MOST_TEXT],
        "rules": f"{rules}, contract {protocol.contract}",
        "streams": list(one.streams),
        "returns": list(one.returns),
        "decisions": [[rule, *found] for rule, found in one.decisions.items()],
        "turns": [
            _turn(one, key, with_credit=with_credit)
            for key in sorted(one.read.judges, key=lambda key: (key.round, key.agent))
        ],
    }


def _turn(one: Recorded, key: TurnKey, *, with_credit: bool) -> dict[str, object]:
    turn = one.read.judges[key]
    judged = one.read.judged_by(turn) if turn.parsed.comparisons else {}
    verdicts = {agent: one.verdicts.get(of.key) for agent, of in judged.items()}
    credit = one.credit.get(key, {})
    found = {
        "agent": key.agent,
        "round": key.round,
        "text": turn.turn.text[:MOST_TEXT],
        "sections": [[*s.outer, name] for name, s in turn.parsed.sections.items()],
        "answer": turn.parsed.answer,
        "verdict": one.verdicts.get(key),
        "failed": turn.failed,
        "problems": [
            *_problems(one, turn),
            *(f"answer not read: {reason}" for reason in [one.unread.get(key)] if reason),
        ],
        "votes": [
            [
                vote.left,
                vote.op,
                vote.right,
                _vote_verdict(vote.op, vote.left, vote.right, verdicts),
            ]
            for vote in turn.parsed.comparisons[:200]
        ],
        "values": credit.get("values") or {},
        "counts": turn.turn.token_counts,
    }
    if with_credit:
        found |= {"starts": credit.get("starts") or [], "tokens": credit.get("tokens") or []}
    return found


def _vote_verdict(op: str, left: int, right: int, verdicts: Mapping[int, str | None]) -> str | None:
    """Say whether a vote ranks a right and a wrong answer rightly or not; else None."""
    ranked = verdicts.get(left)
    return ranked if op == ">" and {ranked, verdicts.get(right)} == {"right", "wrong"} else None


def _prompts(one: Recorded) -> list[list[list[str]]]:
    """Return of each turn, in the order of `_debate`, the messages as [role, content]."""
    keys = sorted(one.read.judges, key=lambda key: (key.round, key.agent))
    prompts = (one.read.judges[key].turn.prompt or () for key in keys)
    return [[[m["role"], m["content"][:MOST_TEXT]] for m in prompt] for prompt in prompts]


def read_all(run: RunFiles) -> Debates:
    """Return all recorded debates of a run."""
    debates = Debates()
    debates.add(run.transcripts, run.tokens, run.phases)
    debates.add(run.evaluations, None, run.phases)
    debates.add_imported(run.imported)
    for problem in run.damaged_files:
        debates.note_unreadable(1, problem)
    return debates


@dataclass(frozen=True, slots=True)
class Browser:
    """The list of debates with the place of the one that is open, and their data.

    A page has `shown`, `first`, its script and then `rest`, so that the first debate can be read
    while most of the data is still on its way.
    """

    shown: Markup = NOTHING
    first: Markup = NOTHING
    rest: Markup = NOTHING


def _unread_reasons(found: Sequence[Recorded]) -> list[tuple[str, int]]:
    """Count why answers could not be read, the most frequent reason first."""
    counts: Counter[str] = Counter()
    for debate in found:
        counts.update(debate.unread.values())
    return counts.most_common()


def browser(run: RunFiles, debates: Debates) -> Browser:
    """Return what shows all debates of a run."""
    blocks = blocks_of(debates)
    named = [
        (kind, number, block)
        for kind, own in (("texts", blocks.texts), ("prompts", blocks.prompts))
        for number, block in enumerate(own)
    ]
    first = blocks.index["open"] // blocks.index["block"]
    shown = render(
        "browser.html",
        files=len(run.transcripts) + len(run.imported),
        entries=len(blocks.index["debates"]),
        phases=blocks.index["phases"],
        left_out=blocks.left_out[0],
        left_prompts=blocks.left_out[1],
        unreadable=debates.unreadable,
        problem=debates.problem,
        unchecked=debates.checking.skipped,
        unread=_unread_reasons(debates.found),
    )
    if not named:
        return Browser(shown)
    return Browser(
        shown,
        render("blocks.html", index=as_data(blocks.index), blocks=named[first : first + 1]),
        render("blocks.html", index="", blocks=[*named[:first], *named[first + 1 :]]),
    )


def as_data(value: object) -> Markup:
    """Return a value as JSON that can stand in a script element: nothing in it ends the element."""
    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))
