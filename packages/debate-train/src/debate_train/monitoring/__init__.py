"""Detectors, progress, speed and trackers of a training policy."""

# `health` imports the detectors of other packages, which import the names before it from here.
from debate_train.monitoring.detectors import Detector, Finding
from debate_train.monitoring.figures import History
from debate_train.monitoring.health import DETECTORS, DetectorChoice, Health

__all__ = ["DETECTORS", "Detector", "DetectorChoice", "Finding", "Health", "History"]
