"""Sections of single replies of other programs: `<think>…</think>`, `<answer>…</answer>`."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

# A tag of one plain word, as templates of trainers have them; none of HTML's has attributes here.
_TAG = re.compile(r"<(?P<slash>/?)(?P<name>[A-Za-z][A-Za-z_]{1,30})>")

PART_NAMES = ("{}", "{}_reward", "reward_{}", "{}_score")
"""Names of a section's part of the reward."""


def section_lengths(text: str) -> dict[str, int]:
    """Count the characters in each outer section of a reply, by tag; open sections do not count."""
    lengths: Counter[str] = Counter()
    open_name = ""
    start = 0
    for tag in _TAG.finditer(text):
        name = tag["name"]
        if not open_name and not tag["slash"]:
            open_name = name
            start = tag.end()
        elif tag["slash"] and name == open_name:
            lengths[name] += tag.start() - start
            open_name = ""
    return dict(lengths)


def shared_sections(all_lengths: Iterable[Mapping[str, int]]) -> list[str]:
    """List the sections closed by at least half of the replies, most frequent first."""
    lengths = list(all_lengths)
    counts = Counter(name for reply_lengths in lengths for name in reply_lengths)
    return [name for name, count in counts.most_common() if 2 * count >= len(lengths)]


def part_of_section(section: str, parts: Iterable[str]) -> str:
    """Find the part of a reward with a section's name; '' without any."""
    names = [pattern.format(section.lower()) for pattern in PART_NAMES]
    return next((part for part in parts if part.lower() in names), "")
