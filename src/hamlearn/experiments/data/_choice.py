"""Which samples of a larger set are taken."""

from __future__ import annotations

from collections.abc import Sequence

from hamlearn.errors import DataError


def first_of_each(labels: Sequence[int], classes: int, count: int, where: str) -> list[int]:
    """Places of the first `count` samples of each class, in the order of the set.

    Args:
        labels: The class of each sample.
        classes: How many classes there must be.
        count: How many of each are taken.
        where: What `labels` come from, for the error.

    Example:
        >>> first_of_each([1, 0, 1, 1, 0], classes=2, count=2, where="five samples")
        [0, 1, 2, 4]
    """
    taken: list[int] = []
    found = [0] * classes
    for place, label in enumerate(labels):
        if not 0 <= label < classes:
            raise DataError(
                f"{where}: sample {place} has label {label}, outside 0 to {classes - 1}: fetch it again"
            )
        if found[label] < count:
            found[label] += 1
            taken.append(place)
    if min(found) < count:
        short = found.index(min(found))
        raise DataError(
            f"{where}: class {short} has {found[short]} samples where {count} are needed: fetch it again"
        )
    return taken
