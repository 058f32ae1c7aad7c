"""Readers of movie reviews: a CSV file of ours, and the official archive."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from hamlearn.errors import DataError
from hamlearn.experiments.data._files import reading

PER_CLASS = 50
COLUMNS = ("text", "label", "experiment")

Review = tuple[str, int]
"""Text, and 1 for praise or 0 for blame."""


def read_csv(path: str | Path) -> list[Review]:
    """The 100 reviews whose column `experiment` is 1, 50 of each label, in the order of the file.

    Args:
        path: UTF-8, plain or `.gz`, with columns `text`, `label` (1 praise, 0 blame) and `experiment` (1 or 0);
            others are passed over.
    """
    path = Path(path)
    reviews: list[Review] = []
    try:
        with reading(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            table = csv.DictReader(text, strict=True)
            missing = [column for column in COLUMNS if column not in (table.fieldnames or ())]
            if missing:
                raise DataError(
                    f"{path} has no column {missing[0]!r} but {table.fieldnames}: "
                    "name its columns on the first line"
                )
            for row in table:
                where = f"{path}, line {table.line_num}"
                if None in row or None in row.values():
                    raise DataError(
                        f"{where} ends a row that has not {len(table.fieldnames or ())} cells: mend it"
                    )
                for column in ("label", "experiment"):
                    if row[column] not in ("0", "1"):
                        raise DataError(f"{where}: {column} is {row[column]!r}, which is neither 0 nor 1")
                if row["experiment"] == "1":
                    reviews.append((row["text"], int(row["label"])))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error}): save it as UTF-8") from error
    except csv.Error as error:
        raise DataError(f"{path}, line {table.line_num} is not CSV ({error}): quote its texts") from error
    praise = sum(label for _, label in reviews)
    if (praise, len(reviews)) != (PER_CLASS, 2 * PER_CLASS):
        raise DataError(
            f"{path} has {praise} reviews of praise and {len(reviews) - praise} of blame where experiment is 1: "
            f"mark {PER_CLASS} of each"
        )
    return reviews
