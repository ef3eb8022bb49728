"""The part of a page in which all recorded debates can be read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from debate_train.report.browsing.data import blocks_of
from debate_train.report.browsing.reading import Debates
from debate_train.report.debates import without_scripts
from debate_train.report.render import render
from debate_train.report.run_files import RunFiles


def read_all(runs: Sequence[RunFiles]) -> Debates:
    """Return all recorded debates of these runs."""
    debates = Debates()
    for place, run in enumerate(runs):
        debates.add(place, run.transcripts, run.tokens, run.phases)
        debates.add(place, run.evaluations, None, run.phases)
    return debates


@dataclass(frozen=True, slots=True)
class Browser:
    """The list of debates with the place of the one that is open, and their data.

    A page has `shown`, `first`, its script and then `rest`, so that the first debate can be read
    while most of the data is still on its way.
    """

    shown: Markup
    first: Markup
    rest: Markup


def browser(runs: Sequence[RunFiles], debates: Debates) -> Browser:
    """Return what shows all debates of runs."""
    blocks = blocks_of(debates, [run.name for run in runs])
    named = [
        (kind, number, block)
        for kind, own in (("texts", blocks.texts), ("prompts", blocks.prompts))
        for number, block in enumerate(own)
    ]
    first = blocks.index["open"] // blocks.index["block"]
    shown = render(
        "browser.html",
        files=sum(len(run.transcripts) for run in runs),
        entries=len(blocks.index["debates"]),
        runs=blocks.index["runs"],
        phases=blocks.index["phases"],
        left_out=blocks.left_out[0],
        left_prompts=blocks.left_out[1],
        unreadable=debates.unreadable,
        problem=debates.problem,
        unchecked=debates.checking.skipped,
        without_scripts=without_scripts(runs[0].transcripts),
    )
    if not named:
        return Browser(shown, Markup(), Markup())
    return Browser(
        shown,
        render("blocks.html", index=as_data(blocks.index), blocks=named[first : first + 1]),
        render("blocks.html", index="", blocks=[*named[:first], *named[first + 1 :]]),
    )


def as_data(value: object) -> Markup:
    """Return a value as JSON that can stand in a script element: nothing in it ends the element."""
    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))
