"""Where questions come from."""

from typing import Annotated

from pydantic import Field

from debate_train.data.questions import Questions
from debate_train.data.signs_puzzle import SignsPuzzle
from debate_train.data.source import DataSource, Split

DataConfig = Annotated[Questions | SignsPuzzle, Field(discriminator="type")]

__all__ = ["DataConfig", "DataSource", "Questions", "SignsPuzzle", "Split"]
