"""A series as inputs of small networks, on line: its changes, its level and its seasons, for each step ahead."""

from __future__ import annotations

import numpy as np

KEPT = 2048
"""Latest values that are kept."""
LAGS = np.array([1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48])
SINGLE = 8
"""Latest changes from one value to the next that are inputs."""
SEASONS = 2
WAVES = 3
"""Sines and cosines of the phase of a season."""
LOOK = 64
"""Values from one search for seasons to the next."""
CLIP = 6.0
INPUTS = len(LAGS) + SINGLE + 2 + SEASONS * (3 + 2 * WAVES)
GUESSES = 1 + 2 * SEASONS
"""Simple forecasts beside the networks: the mean; and for each season, its last values and its usual changes."""


class Series:
    """The latest values of a series.

    Args:
        horizon: Steps ahead.

    Attributes:
        values: The values kept, of which the first `count` are known until there are `KEPT`, the latest last.
        count: How many values there were in all.
        spread: Mean square of the changes over 1, 2, … values.
        seasons: Lengths of the seasons; 0 for none.
    """

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.values = np.zeros(KEPT)
        self.count = 0
        self.spread = np.zeros(max(horizon, int(LAGS[-1])))
        self.seasons = np.zeros(SEASONS, dtype=np.int64)
        self._ahead = np.arange(1, horizon + 1)

    @property
    def known(self) -> np.ndarray:
        """The values that are known, oldest first."""
        return self.values[KEPT - min(self.count, KEPT) :]

    def scale(self, steps: np.ndarray) -> np.ndarray:
        """What a change over so many values usually is."""
        found = np.sqrt(self.spread[steps - 1])
        least = 1e-6 * max(abs(self.values[-1]), 1e-3)
        return np.maximum(found, max(found.max() * 1e-2, least))

    def add(self, value: float) -> None:
        """One more value."""
        known = self.known
        steps = min(len(known), len(self.spread))
        if steps:
            squares = (value - known[: -steps - 1 : -1]) ** 2
            keep = np.clip(1 - 1 / np.maximum(self.count - np.arange(steps), 1), 0.0, 0.999)
            part = self.spread[:steps]
            # One broken value must not make all changes look small for a long time.
            bounded = np.where(keep > 0.9, np.minimum(squares, 100 * part + 1e-12), squares)
            part[:] = keep * part + (1 - keep) * bounded
        self.values[:-1] = self.values[1:]
        self.values[-1] = value
        self.count += 1
        if not self.count % LOOK:
            self.seasons = find_seasons(self.known, self.seasons)

    def encoded(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and guesses for each step ahead, in units of what the change over so many values usually is."""
        known, ahead = self.known, self._ahead
        now, scale = known[-1], self.scale(ahead)
        before = known[np.maximum(len(known) - 1 - LAGS, 0)]
        latest = known[np.maximum(len(known) - 1 - np.arange(SINGLE + 1), 0)]
        deviation = known.std() or 1.0
        common = [(now - before) / self.scale(LAGS), -np.diff(latest) / scale[0]]
        common.append(np.array([(now - known.mean()) / deviation]))
        parts = [np.tile(np.concatenate(common), (self.horizon, 1)), ahead[:, None] / self.horizon]
        guesses = [(known.mean() - now) / scale]
        for season in self.seasons.tolist():
            seen, waves = self._season(season, now)
            parts += [seen / scale[:, None], waves]
            guesses += [seen[:, 0] / scale, seen[:, 2] / scale]
        inputs = np.clip(np.concatenate(parts, 1), -CLIP, CLIP)
        return inputs, np.stack(guesses, 1)

    def _season(self, season: int, now: float) -> tuple[np.ndarray, np.ndarray]:
        """Changes from now to the values of a season ago, the changes of a season ago, and of some seasons ago."""
        seen, waves = np.zeros((self.horizon, 3)), np.zeros((self.horizon, 2 * WAVES))
        if not season:
            return seen, waves
        known, ahead = self.known, self._ahead
        newest = len(known) - 1
        # As many seasons ago as it takes to be in the past, and up to three more.
        ago = season * (-(-ahead // season) + np.arange(4)[:, None])
        there = newest - ago >= 0
        origins = known[np.maximum(newest - ago, 0)]
        changes = np.where(there, known[np.clip(newest - ago + ahead, 0, newest)] - origins, 0.0)
        seen[:, 0] = known[np.clip(newest - ago[0] + ahead, 0, newest)] - now
        seen[:, 1] = changes[0]
        seen[:, 2] = changes.sum(0) / np.maximum(there.sum(0), 1)
        angles = 2 * np.pi * ((self.count + ahead) % season) / season
        turns = angles[:, None] * np.arange(1, WAVES + 1)
        waves[:, :WAVES], waves[:, WAVES:] = np.sin(turns), np.cos(turns)
        return seen, waves


def find_seasons(values: np.ndarray, now: np.ndarray) -> np.ndarray:
    """Up to two lengths after which the values, less their slow course, come again: a short one and the best one.

    What was found before stays unless another one is clearly better: an input must not change its meaning often.

    Example:
        >>> find_seasons(np.sin(2 * np.pi * np.arange(400) / 24), np.zeros(2, dtype=np.int64))
        array([24, 24])
    """
    most = len(values) // 3
    if most < 4:
        return now
    changes = np.diff(values)
    changes = np.clip(changes, *np.quantile(changes, [0.01, 0.99]))
    changes -= changes.mean()
    power = np.abs(np.fft.rfft(changes, 2 * len(changes))) ** 2
    alike = np.fft.irfft(power)[: most + 1]
    if alike[0] <= 0:
        return now
    alike = alike / alike[0] * len(changes) / (len(changes) - np.arange(most + 1))
    # A slow wave is like itself at the next values, too: its season comes after it has been unlike itself.
    inner = np.arange(max(2, int((alike < 0).argmax())), most)
    peaks = inner[(alike[inner] > alike[inner - 1]) & (alike[inner] >= alike[inner + 1])]
    peaks = peaks[alike[peaks] > max(0.15, 4.5 / np.sqrt(len(changes)))]
    if not len(peaks):
        return now
    # Every multiple of a season is one, too: the first of those that are about as good.
    best = int(peaks[alike[peaks] > alike[peaks].max() - 0.06][0])
    short = int(peaks[alike[peaks] > 0.6 * alike[best]][0])
    found = [_refined(short, alike), _refined(best, alike)]
    for place, old in enumerate(now.tolist()):
        # One that is about as long is the same season, less well known.
        other = abs(old - found[place]) > found[place] // 10
        if other and 2 <= old <= most and alike[old] > alike[found[place]] - 0.05:
            found[place] = old
    return np.array(found)


def _refined(season: int, alike: np.ndarray) -> int:
    """The length nearby whose multiples are most alike: noise moves a single peak by one or two."""
    nearby = np.arange(max(2, season - season // 10), season + season // 10 + 1)
    nearby = nearby[nearby < len(alike)]
    multiples = max(1, min(8, (len(alike) - 1) // int(nearby[-1])))
    scores = alike[nearby * np.arange(1, multiples + 1)[:, None]].mean(0)
    return int(nearby[scores.argmax()])
