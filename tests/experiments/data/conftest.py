from collections.abc import Iterator

import pytest

from tests.experiments.data.server import Place, serve


@pytest.fixture
def place() -> Iterator[Place]:
    with serve() as found:
        yield found
