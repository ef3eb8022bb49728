#!/usr/bin/env bash
# datasets 5.2.0: messages whose parts differ, a text and an image, as multimodal chats have them.
# One would expect each part back with the keys that it was written with. Every part comes back
# with the keys of all parts, None where it had none, so the usual question of a chat template,
# whether a part has an "image", is true for text: the prompt gets an image token a text part.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasets==5.2.0 jinja2==3.1.6
HF_HOME="$folder/cache" "$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

from datasets import Dataset
from jinja2 import Template

written = [
    {"type": "image", "image": "cat.png"},
    {"type": "text", "text": "What is this?"},
]
rows = Dataset.from_list([{"prompt": [{"role": "user", "content": written}]}])
read = rows[0]["prompt"][0]["content"]
template = Template(
    "{% for part in parts %}{% if 'image' in part %}<image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}"
)
before, after = template.render(parts=written), template.render(parts=read)
print(f"datasets {version('datasets')}: {written[1]} is read as {read[1]}")
print(f"rendered before: {before}")
print(f"rendered after:  {after}")
assert read[1] == {"type": "text", "image": None, "text": "What is this?"}, "this has changed"
assert (before, after) == ("<image>What is this?", "<image><image>"), "this has changed"
PYTHON
