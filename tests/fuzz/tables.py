"""Random tables: quotes, encodings, zones, gaps, categories, compressed, resumed at random rows."""

import bz2
import csv
import gzip
import json
import math
import tempfile
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import torch

from hamlearn import streams
from hamlearn.streams.cells import shared
from tests.fuzz.spoil import run_cases

GAPS = ["", " ", "NA", "nan", "?", "null"]
NAMES = ["north", "south", " west", "3", "3.0", "ü", 'a "b"', "x\ny", "p;q,r"]
PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}


def table(draw):
    """Rows of texts, and the file's settings."""
    gap = draw.choice([0.0, 0.1, 0.4])
    zones = [UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-5, minutes=-30))]
    zone = draw.choice([None, *zones])
    now, rows = datetime(2024, 3, 30, 23), []
    for k in range(draw.choice([1, 5, 60, 700])):
        now += timedelta(minutes=draw.choice([1, 1, 2, 30]))
        stamp = now if zone is None else now.replace(tzinfo=UTC).astimezone(draw.choice([zone, zone, *zones]))
        cells = {
            "x": draw.choice(
                [f"{draw.gauss(0, 9):.6g}", " 2.50 ", "-0.0", "TRUE", "1e-3", str(draw.randrange(10**6))]
            ),
            "shop": draw.choice(NAMES),
            "customer": f"c{draw.randrange(40)}",
        }
        cells = {name: draw.choice(GAPS) if draw.random() < gap else cell for name, cell in cells.items()}
        target = draw.choice(["", f"{draw.gauss(0, 1):.4f}", str(k)])
        rows.append(
            {"when": stamp.isoformat(), **cells, "note": draw.choice(["", "two\nlines", '"']), "y": target}
        )
    return rows


def written(path, rows, draw):
    """Write the rows in some form; answers the path and what its reader has to be told."""
    encoding = draw.choice(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
    settings = {"delimiter": draw.choice(",;\t|")}
    if encoding in ("utf-16-le", "latin-1"):
        settings["encoding"] = encoding
    suffix = draw.choice(list(PACK))
    file = path / f"table.csv{suffix}"
    end = draw.choice(["\n", "\r\n", "\r"])
    # Python's writer quotes a line feed only if lines end with one.
    quoting = csv.QUOTE_ALL if end == "\r" else draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    with (path / "plain").open("w", newline="", encoding=encoding) as plain:
        writer = csv.DictWriter(
            plain, list(rows[0]), lineterminator=end, quoting=quoting, delimiter=settings["delimiter"]
        )
        writer.writeheader()
        for row in rows:
            writer.writerow(row)
            plain.write(end * (draw.random() < 0.03))
    file.write_bytes(PACK[suffix]((path / "plain").read_bytes()))
    with (path / "plain").open(newline="", encoding=encoding) as plain:
        # What Python's own module makes of the file is what the stream has to start from.
        assert list(csv.DictReader(plain, delimiter=settings["delimiter"])) == rows
    return file, settings


def gone(cell):
    return cell.strip().lower() in ("", "na", "nan", "?", "null")


def seconds(stamp):
    when = datetime.fromisoformat(stamp)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def judged(rows, missing):
    """The samples (u, target, tau) that the rows should become, one row after the other in plain Python."""
    places, total, count, held, before, samples = {}, 0.0, 0, {}, None, []
    for row in rows:
        shop = row["shop"].strip()
        name = None if gone(shop) else "3" if shop == "3.0" else shop
        value = None if gone(row["x"]) else 1.0 if row["x"] == "TRUE" else float(row["x"])
        customer = None if gone(row["customer"]) else row["customer"]
        now = {"x": value, "shop": name, "customer": customer}
        held.update({key: cell for key, cell in now.items() if cell is not None})
        if None in now.values():
            if missing == "skip" or (missing == "hold" and len(held) < 3):
                continue
            now = dict(held) if missing == "hold" else now
        if value is not None:
            total, count = total + value, count + 1
        filler = missing if isinstance(missing, float) else total / max(count, 1)
        u = [filler if now["x"] is None else now["x"]]
        u += [float(value is None)] * (missing == "indicate")
        if now["shop"] is not None:
            places.setdefault(now["shop"], len(places))
        u += [float(places.get(now["shop"], -1) == k) for k in range(12)]
        u += [float(now["customer"] is not None and shared(now["customer"], 7) == k) for k in range(7)]
        target = None if gone(row["y"]) else [float(row["y"])]
        stamp = seconds(row["when"])
        samples.append((u, target, None if before is None else (stamp - before) / 60.0))
        before = stamp
    return samples


def told(sample):
    return sample.u.tolist(), None if sample.target is None else sample.target.tolist(), sample.tau


def run(
    seconds: float = math.inf, seed: int = 0, cases: int | None = None, only: int | None = None
) -> dict[str, int]:
    """Write and read tables until the time, or the number of cases, is over."""
    with tempfile.TemporaryDirectory() as folder:
        return run_cases("tables", lambda draw: case(draw, Path(folder)), seconds, seed, cases, only)


def case(draw, path):
    """One table becomes the samples that plain Python makes of it."""
    rows = table(draw)
    file, settings = written(path, rows, draw)
    missing = draw.choice(["skip", "hold", "mean", "indicate", -1.5])
    settings |= {
        "u": ["x", "shop", "customer"],
        "target": "y",
        "time": "when",
        "unit": 60.0,
        "missing": missing,
        "categories": {"shop": 12},
        "hashed": {"customer": 7},
        "dtype": torch.float64,
    }
    want = judged(rows, missing)

    found, state = [], None
    while True:
        stream = streams.csv(file, **settings)
        if state is not None:
            stream.load_state_dict(json.loads(json.dumps(state)))
        samples = iter(stream)
        more = draw.choice([1, 7, 100, math.inf])
        taken = 0
        while taken < more:
            if draw.random() < 0.5:
                block = stream.block(draw.choice([1, 3, 64]))
                new = [] if block is None else [block.sample(k) for k in range(block.count)]
            else:
                new = [sample for sample in [next(samples, None)] if sample is not None]
            found += map(told, new)
            taken += len(new)
            if not new:
                break
        state = stream.state_dict()
        if taken < more:
            break
    assert found == want
    assert stream.skipped == len(rows) - len(want)
    return "some" if want else "none"
