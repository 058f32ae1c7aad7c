"""Line charts as SVG, drawn here so that a report needs nothing but a browser."""

from __future__ import annotations

import html
import itertools
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, WIDE, HEIGHT = 720, 1480, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 34
ROOM = 90
"""Width of a word beside a mark."""
MOST_POINTS = 240
"""Points in a line: more would be finer than the screen. What lies between is shown as a band."""


@dataclass(slots=True)
class Series:
    """A line: names, places, values, and, where it stands for many, the least and largest of them.

    A faint one lies behind another that says the same more plainly.
    """

    name: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    faint: bool = False

    def thinned(self) -> Series:
        """At most `MOST_POINTS` points: means of equal shares, with the band that they cover."""
        n = len(self.x)
        if n <= MOST_POINTS:
            return self
        low, high = self.low or self.y, self.high or self.y
        cuts = [round(k * n / MOST_POINTS) for k in range(MOST_POINTS + 1)]
        shares = [slice(a, b) for a, b in itertools.pairwise(cuts)]
        return Series(
            self.name,
            [_mean(self.x[s]) for s in shares],
            [_mean(self.y[s]) for s in shares],
            [min(low[s]) for s in shares],
            [max(high[s]) for s in shares],
            self.faint,
        )

    def averaged(self, name: str) -> Series:
        """The running mean over the last twentieth of the line, and at least five points."""
        n, sums = max(5, len(self.y) // 20), [0.0, *itertools.accumulate(self.y)]
        spans = ((max(0, k - n), k) for k in range(1, len(sums)))
        return Series(name, self.x, [(sums[b] - sums[a]) / (b - a) for a, b in spans])


class Axis:
    """Values to pixels, linear or logarithmic, with ticks at round numbers."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool = False) -> None:
        if not high - low > 1e-12 * max(abs(low), abs(high), 1e-280):
            # One value, as far as a chart can tell.
            pad = abs(low) * 0.1 or 1.0
            low, high = (low / 2, high * 2) if log else (low - pad, high + pad)
        self.log, self._start, self._end = log, start, end
        self._low, self._high = self._scale(low), self._scale(high)

    def _scale(self, value: float) -> float:
        # A band may reach down to zero where its line does not: it leaves the chart.
        return math.log10(max(value, 1e-300)) if self.log else value

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        share = (self._scale(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def holds(self, value: float) -> bool:
        """Whether a value lies on it."""
        return self._low <= self._scale(value) <= self._high

    def ticks(self, count: int = 5) -> list[float]:
        """Round values within the axis, about `count` of them."""
        if self.log and self._high - self._low >= 2:
            every = max(1, math.ceil((self._high - self._low) / count))
            first, last = math.ceil(self._low - 1e-9), math.floor(self._high + 1e-9)
            return [10.0**power for power in range(first, last + 1, every)]
        low, high = (10**self._low, 10**self._high) if self.log else (self._low, self._high)
        rough = (high - low) / count
        size = 10 ** math.floor(math.log10(rough))
        step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= rough * 0.999)
        first = math.ceil(low / step - 1e-9)
        return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1) if not self.log or k > 0]


def chart(title: str, note: str, series: Sequence[Series], wide: bool = False, marks: Sequence[float] = ()) -> str:
    """A card with one chart; logarithmic where the lines are positive and span more than two decades.

    `marks` are the samples after which the run was resumed.
    """
    lines = [line.thinned() for line in series if line.x]
    if not lines:
        return ""
    right = (WIDE if wide else WIDTH) - RIGHT
    x = Axis(min(min(s.x) for s in lines), max(max(s.x) for s in lines), LEFT, right)
    y = _y_axis(lines)
    name = f"clip-{zlib.crc32(title.encode())}"
    parts = [
        f'<clipPath id="{name}"><rect x="{LEFT}" y="{TOP - 2}" width="{right - LEFT}" '
        f'height="{HEIGHT - BOTTOM - TOP + 2}"/></clipPath>',
        *_grid(x, y, right),
        f'<g clip-path="url(#{name})">',
        *(part for number, line in enumerate(lines, 1) for part in _line(line, x, y, number)),
        "</g>",
        *_marks([x(mark) for mark in sorted(marks) if x.holds(mark)], right),
    ]
    data = {
        "x": [round(x(v), 1) for v in lines[0].x],
        "steps": [short(v) for v in lines[0].x],
        "lines": [{"name": s.name, "text": [short(v) for v in s.y]} for s in lines if len(s.x) == len(lines[0].x)],
    }
    legend = "".join(
        f'<span class="key"><i class="k{n}"></i>{html.escape(s.name)} <b>{short(s.y[-1])}</b></span>'
        for n, s in enumerate(lines, 1)
    )
    scale = '<span class="scale">log scale</span>' if y.log else ""
    svg = (
        f'<svg class="chart" viewBox="0 0 {right + RIGHT} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)}" '
        f"data-lines='{html.escape(json.dumps(data), quote=True)}'>{''.join(parts)}"
        f'<line class="cross" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/></svg>'
    )
    return (
        f"<figure{' class=wide' if wide else ''}><figcaption><h2>{html.escape(title)}</h2>"
        f'<p>{html.escape(note)}{scale}</p><div class="legend">{legend}</div></figcaption>{svg}</figure>'
    )


def _y_axis(lines: Sequence[Series]) -> Axis:
    means = [v for line in lines for v in line.y]
    log = min(means) > 0 and max(means) > 100 * min(means)
    # A few wild values must not flatten everything else: the band may leave the chart at its ends.
    lows = sorted(v for line in lines for v in line.low or line.y if v > 0 or not log)
    highs = sorted(v for line in lines for v in line.high or line.y)
    low = min(min(means), lows[len(lows) // 50]) if not log else min(means) / 1.5
    high = max(max(means), highs[-1 - len(highs) // 50])
    pad = 0.0 if log else (high - low) * 0.06
    floor = max(low - pad, 0.0) if low >= 0 and not log else low - pad
    return Axis(floor, high + pad, HEIGHT - BOTTOM, TOP, log)


def _grid(x: Axis, y: Axis, right: float) -> list[str]:
    parts = []
    for tick in y.ticks():
        at = y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    base = HEIGHT - BOTTOM
    for tick in x.ticks(6):
        at = x(tick)
        parts.append(f'<text class="tick" x="{at:.1f}" y="{base + 18}" text-anchor="middle">{short(tick)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{base}" y2="{base}"/>')
    parts.append(f'<text class="name" x="{right}" y="{HEIGHT - 2}" text-anchor="end">samples</text>')
    return parts


def _marks(places: Sequence[float], right: float) -> list[str]:
    """Lines where the run was resumed; what they mean is written beside each that has room for it."""
    parts, written = [], -math.inf
    for at in places:
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        side, shift = ("end", -4) if at > right - ROOM else ("start", 4)
        if at - written > (2 * ROOM if side == "end" else ROOM):
            parts.append(
                f'<text class="mark-name" x="{at + shift:.1f}" y="{TOP + 10}" text-anchor="{side}">resumed</text>'
            )
            written = at
    return parts


def _line(line: Series, x: Axis, y: Axis, number: int) -> list[str]:
    parts = []
    if line.low is not None and line.high is not None:
        there = [f"{x(a):.1f},{y(b):.1f}" for a, b in zip(line.x, line.high, strict=True)]
        back = [f"{x(a):.1f},{y(b):.1f}" for a, b in zip(line.x[::-1], line.low[::-1], strict=True)]
        parts.append(f'<polygon class="band k{number}" points="{" ".join(there + back)}"/>')
    points = [f"{x(a):.1f},{y(b):.1f}" for a, b in zip(line.x, line.y, strict=True)]
    faint = " faint" if line.faint else ""
    parts.append(f'<polyline class="line k{number}{faint}" points="{" ".join(points)}"/>')
    if len(points) == 1:
        parts.append(f'<circle class="dot k{number}" cx="{x(line.x[0]):.1f}" cy="{y(line.y[0]):.1f}" r="3"/>')
    return parts


def short(value: float) -> str:
    """A number as people write it, in few letters."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.4g}M" if size < 1e9 else f"{value:.2e}"
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    return f"{value:.4g}" if size >= 1e-3 else f"{value:.1e}".replace("e-0", "e-").replace(".0e", "e")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
