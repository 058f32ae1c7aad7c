"""Write a table as a shop might keep it: uneven times, categories, cells that are missing, an outcome in words.

python examples/orders.py orders.csv
"""

import math
import random
import sys
from datetime import datetime, timedelta
from pathlib import Path

SHOPS = {"north": 0.6, "south": -0.6, "east": 0.0, "west": 0.3, "online": -0.3}


def write_table(path: Path, rows: int = 3000, seed: int = 0) -> None:
    """Orders, and whether each was kept or returned; a lost distance says something too."""
    draw = random.Random(seed)
    customers = {f"c{k:03}": draw.gauss(0, 1) for k in range(150)}
    when = datetime(2024, 3, 1, 8)
    with path.open("w") as file:
        file.write("when,price,distance,shop,express,customer,outcome\n")
        for _ in range(rows):
            when += timedelta(minutes=draw.choice((1, 2, 2, 3, 10)) if draw.random() > 0.01 else 600)
            price, distance = draw.lognormvariate(3.5, 0.5), draw.expovariate(0.1)
            shop, express = draw.choice(list(SHOPS)), draw.random() < 0.3
            customer = draw.choice(list(customers))
            lost = draw.random() < 0.15
            # Dear orders come back; those that were sent by express do so from afar only.
            logit = (price - 35) / 10 + 2 * SHOPS[shop] + customers[customer] - 1.5 * express
            logit += 1.5 if lost else (distance - 10) / (4 if express else 10)
            outcome = "returned" if draw.random() < 1 / (1 + math.exp(-2 * logit)) else "kept"
            far = "" if lost else f"{distance:.1f}"
            cells = (f"{when:%Y-%m-%d %H:%M}", f"{price:.2f}", far, shop, str(express).lower(), customer, outcome)
            file.write(",".join(cells) + "\n")


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "orders.csv")
    write_table(path)
    print(f"{path}: {path.stat().st_size:,} bytes")
