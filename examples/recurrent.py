"""One endless stream, one recurrent network, three kinds of credit: change a word and learn differently.

The target depends on the coin tosses of 5 and 9 steps ago. Cleared credit sees one step and relies on what the
state happens to remember; Forward credit accumulates along the stream; Echo carries credit back over the tokens.
"""

import sys
from pathlib import Path

from hamlearn.experiments import credit


def main(tokens: int = 3_000) -> None:
    folder = Path("out/recurrent")
    credit.run(folder, tokens=tokens, window=tokens // 10)
    print(f"A plot of the three is in {folder / 'credit.png'}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
