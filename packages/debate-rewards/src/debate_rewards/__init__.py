"""From debate transcripts to credits: peer votes, verified answers and debate metrics."""

__version__ = "0.1.0"
