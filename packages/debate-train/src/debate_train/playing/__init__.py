"""Which debates a step plays and how: the keys `rollout` and `pipeline`, and over-sampling."""

from debate_train.playing.seeded_debates import StepRecipe as StepRecipe
from debate_train.playing.seeded_debates import check_of as check_of
from debate_train.playing.seeded_debates import named_debates as named_debates
from debate_train.playing.seeded_debates import start_debates as start_debates
from debate_train.playing.settings import Pipeline as Pipeline
from debate_train.playing.settings import Rollout as Rollout
from debate_train.playing.settings import direct_form as direct_form
from debate_train.playing.step_debates import StepDebates as StepDebates
from debate_train.playing.step_debates import metrics_of as metrics_of
from debate_train.playing.step_debates import play_step as play_step
from debate_train.playing.turn_counts import Watch as Watch
from debate_train.playing.turn_counts import counted as counted
from debate_train.playing.turn_counts import unwatched as unwatched
