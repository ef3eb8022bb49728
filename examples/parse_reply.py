"""Read a model's reply: sections, comparisons and answer, with offsets into the original text.

python examples/parse_reply.py
"""

from debate_protocol import parse

REPLY = """\
<think>Agent 2 forgot the tax.</think>
<solution>12 * 7 = 84, and the tax is 4: \\boxed{88}</solution>
<evaluation>Agent 0 is right. Agent 2 leaves the tax out.</evaluation>
<comparison>
- Agent 0 > Agent 2: only 0 adds the tax
Agent 1 > Agent 2
Agent 2 is worse than Agent 3
"""


def main() -> None:
    """Print what agent 1 of four said. The reply was cut off: its last tag is missing."""
    said = parse(REPLY, "three_section", author=1, num_agents=4)
    for name, section in said.sections.items():
        start, end = section.span
        assert REPLY[start:end] == section.text
        print(f"{name} [{start}:{end}]{' truncated' if section.truncated else ''}")
    for vote in said.comparisons:
        print(f"agent {vote.left} {vote.op} agent {vote.right}")
    print(f"answer: {said.answer}")
    print(f"problems: {'; '.join(said.problems)}")


if __name__ == "__main__":
    main()
