"""A simulated pump: publishes what its sensors read, and the pressure that it led to some seconds later.

    python sensor.py --port 1883 --topic plant/pump --rate 50 --delay 2

The readings are flow, temperature and vibration; the pressure depends on them, and the pump wears.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import deque

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion


def main() -> None:
    options = argparse.ArgumentParser(description="A simulated pump that publishes to MQTT.")
    options.add_argument("--port", type=int, default=1883)
    options.add_argument("--topic", default="plant/pump")
    options.add_argument("--rate", type=float, default=50.0, help="readings per second")
    options.add_argument("--delay", type=float, default=2.0, help="seconds until the pressure is known")
    given = options.parse_args()

    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.connect("127.0.0.1", given.port)
    client.loop_start()
    draw = random.Random(0)
    waiting: deque[tuple[float, str, float]] = deque()
    began = time.time()
    while True:
        now = time.time()
        u, pressure = reading(now - began, draw)
        # A name that no other life of the sensor gives to another reading.
        name = f"{now:.6f}"
        # Quality of service 1: the broker keeps it until the agent has it in a checkpoint.
        client.publish(given.topic, json.dumps({"u": u, "id": name, "t": now}), qos=1)
        waiting.append((now + given.delay, name, pressure))
        while waiting and waiting[0][0] <= now:
            _, name, pressure = waiting.popleft()
            client.publish(given.topic, json.dumps({"id": name, "target": [pressure]}), qos=1)
        time.sleep(1 / given.rate)


def reading(t: float, draw: random.Random) -> tuple[list[float], float]:
    """What the sensors read at a time, and the pressure that belongs to it."""
    flow = 1 + 0.5 * math.sin(t / 3) + draw.gauss(0, 0.05)
    heat = 0.4 * math.cos(t / 11) + draw.gauss(0, 0.05)
    shake = abs(draw.gauss(0, 0.3))
    wear = min(t / 600, 1.0)
    return [flow, heat, shake], flow**2 * (1 - 0.3 * wear) - 0.5 * heat - shake


if __name__ == "__main__":
    main()
