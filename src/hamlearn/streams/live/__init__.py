"""Live feeds: a real concurrent source, read by an agent that is busy while it learns."""

from hamlearn.streams.live.mqtt_feed import mqtt
from hamlearn.streams.live.redis_feed import redis
from hamlearn.streams.live.source import Source
from hamlearn.streams.live.stream import LiveStream, live
from hamlearn.streams.live.websocket_feed import websocket

__all__ = ["LiveStream", "Source", "live", "mqtt", "redis", "websocket"]
