"""Live feeds: a real concurrent source, read by an agent that is busy while it learns."""

from hamlearn.streams.live.stream import LiveStream, live

__all__ = ["LiveStream", "live"]
