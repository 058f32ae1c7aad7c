"""Two of the paper's models, one setting: Hamiltonian Learning and SGD end at the same weights.

`hamlearn reproduce` does the whole of it; this is a corner, from Python, in a few seconds.
"""

from pathlib import Path

from hamlearn.experiments.reproduce import Settings, reproduce


def main() -> None:
    settings = Settings(models=("Linear", "MLP"), scenarios=("Mom-a",), epochs=5)
    passed = reproduce(settings, Path("out/corner"))
    print("equal" if passed else "not equal")


if __name__ == "__main__":
    main()
