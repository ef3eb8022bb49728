"""Answers: a reply's final answer is read once, into a typed value, against its question.

- `reply.py`: where the final answer of a reply is.
- `questions.py`, `gold_form.py`: the type of answer that the question asks for; `read_answer`.
- `types.py`: the types, one class each, with their keys and examples.
- `labels.py`, `truth.py`, `sentences.py`, `amounts.py`: the meaning of replies in words.
- `numbers.py`, `spans.py`, `units.py`, `polynomials.py`, `spelling.py`: how the types read
  mathematics.
"""
