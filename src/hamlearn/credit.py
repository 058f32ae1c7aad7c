"""Credit: what the costate z of the neurons carries from one step to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from hamlearn.errors import ConfigError


@dataclass(frozen=True)
class Credit:
    """Base of the ways in which z lives on between steps.

    A credit of your own says by `carries` whether z enters a step with anything at all, and by `enter` with what.

    Attributes:
        carries: Whether z enters a step with something of what the previous step left in it.

    Example:
        >>> issubclass(Forward, Credit), Forward.carries, Cleared.carries
        (True, True, False)
    """

    carries: ClassVar[bool] = True

    @property
    def clears(self) -> bool:
        """Whether z is 0 at the start of every step."""
        return not self.carries and type(self).enter is Credit.enter

    def enter(self, z: Tensor) -> Tensor:
        """One part of z as a step begins with it, from what the previous step left."""
        return z if self.carries else torch.zeros_like(z)


@dataclass(frozen=True)
class Forward(Credit):
    """z accumulates forward in time, as the equations say (Eq. E⋆3).

    Example:
        >>> Forward().carries
        True
    """

    carries = True


@dataclass(frozen=True)
class Cleared(Credit):
    """z is 0 at the start of each step, so that credit reaches the present step alone.

    In sequential order, with the state of a feed-forward net cleared too (`reset_h="sample"`), this is
    exactly BackPropagation (Eq. 14).

    Example:
        >>> Cleared().carries
        False
    """

    carries = False


@dataclass(frozen=True)
class Echo(Credit):
    """Tokens run forward with frozen weights, then echo in reverse, and the costates follow the echo.

    For k = n−1 … n−r: z ← τφ ∂L_k/∂h_{k+1} + z·∂h_{k+2}/∂h_{k+1} − τη_z z; ωh ← ωh + z·∂h_{k+1}/∂θh;
    ωy ← ωy + τφ ∂L_k/∂θy; θ moves once, at the end (the paper's equations of BPTT). With φ = 1/τ and η = 0 this is
    BackPropagation Through Time.

    Args:
        truncate: How many tokens echo (r), counted from the end; `None` for all. Truncated BPTT.
        every: Echo after this many tokens too, for streams that never end; `None` for boundaries only. Where
            `truncate` reaches back beyond the last echo, tokens echo again from the states that they met then, at
            the weights of now.
        dissipate: `"sequence"`: ω dissipates once per echo, so that η = (1 − μ)/τ is ordinary momentum.
            `"token"`: at each step of the echo, as the paper writes it.
        memory: `"stored"`: each token keeps its state and graph until the echo. `"reversible"`: nothing but the
            inputs is kept, and states are rebuilt in the backward pass: for state nets that can run backwards,
            such as `hl.reversible.MidpointCell`.

    Example:
        >>> Echo(truncate=5, every=5)
        Echo(truncate=5, every=5, dissipate='sequence', memory='stored')
    """

    truncate: int | None = None
    every: int | None = None
    dissipate: Literal["sequence", "token"] = "sequence"
    memory: Literal["stored", "reversible"] = "stored"
    carries = False

    def __post_init__(self) -> None:
        for name in ("truncate", "every"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}={value!r} must be a whole number of tokens, at least 1, or None")
        if self.dissipate not in ("sequence", "token"):
            raise ConfigError(f"dissipate={self.dissipate!r} must be 'sequence' or 'token'")
        if self.memory not in ("stored", "reversible"):
            raise ConfigError(f"memory={self.memory!r} must be 'stored' or 'reversible'")
        if self.memory == "reversible" and self.every is not None and self.truncate is not None:
            raise ConfigError(
                f"truncate={self.truncate} may reach back beyond every={self.every}, to states of earlier weights "
                "that cannot be rebuilt: give one of the two, or use memory='stored'"
            )


def _fixed(value: Any) -> Any:
    """A field that a rule leaves at one value."""
    return field(default=value, init=False, repr=False)


@dataclass(frozen=True)
class Sensitivity(Credit):
    """Exact credit forward in time, where the units of the state do not see each other's past.

    E = ∂h/∂θh is carried along with the state, unit by unit, in as much memory as the weights:
    E⁺ = κ (∂h⁺/∂h) E + ∂h⁺/∂θh, E(0) = 0. In sequential order z⁺ = τφ ∂L/∂h⁺ and ωh⁺ = (1 − τη) ωh + z⁺·E⁺; in
    parallel order ω̇h = φ ∂L/∂h·E − η ωh with h and E of time t. With φ = 1/τ, η = 0 and weights at rest, ω adds up
    to the gradient that BackPropagation Through Time finds by going back. The state net says how many `units` it
    has, as the cells of `hl.cells` do.

    Args:
        keep: κ, between 0 and 1: how much of the past is kept at each step. 0, in sequential order, is `Cleared`.
        strict: `True`: at the first step it is verified that units are independent, else an error names the
            parameter. `False`: each unit keeps its own part only, which for dense
            nets is an approximation known as SnAp-1.

    Example:
        >>> Sensitivity(keep=0.99).strict
        True
    """

    keep: float = 1.0
    strict: bool = True
    leak: float | None = _fixed(None)
    """What takes the place of ∂h⁺/∂h in E⁺, in rules derived from this one."""
    feedback: int | None = _fixed(None)
    """Seed of random weights that lead errors back in the place of ∂L/∂h, likewise."""
    carries = False

    def __post_init__(self) -> None:
        if isinstance(self.keep, bool) or not isinstance(self.keep, float | int) or not 0.0 <= self.keep <= 1.0:
            raise ConfigError(f"keep={self.keep!r} must be a number between 0 and 1")
        if not isinstance(self.strict, bool):
            raise ConfigError(f"strict={self.strict!r} must be True or False")


@dataclass(frozen=True)
class EProp(Sensitivity):
    """e-prop (Bellec et al. 2020): each unit's own trace, and a learning signal from the present output.

    E⁺ = (∂h⁺/∂h)ᵢᵢ E + ∂h⁺/∂θ unit by unit, ωh⁺ = (1 − τη) ωh + z⁺·E⁺. With `feedback=None` the signal is
    z⁺ = τφ ∂L/∂h⁺ (symmetric e-prop), and for units of one number this is SnAp-1,
    `Sensitivity(strict=False)`. With a seed it is τφ ∂L/∂y·B, where B is random and fixed (random e-prop).

    Args:
        feedback: Seed of B; `None` for the exact derivative.

    Example:
        >>> EProp(feedback=0)
        EProp(feedback=0)
    """

    feedback: int | None = None
    keep: float = _fixed(1.0)
    strict: bool = _fixed(False)


@dataclass(frozen=True)
class RFLO(Sensitivity):
    """Random feedback local online learning (Murray 2019), for units that leak.

    E⁺ = leak·E + ∂h⁺/∂θ unit by unit: of the past only what a unit's own leak keeps. z⁺ = τφ ∂L/∂y·B, where B is
    random and fixed.

    Args:
        leak: What a unit keeps of itself in a step: 1 − τ/T for a time constant T.
        feedback: Seed of B; `None` for the exact derivative.

    Example:
        >>> RFLO(leak=0.8)
        RFLO(leak=0.8, feedback=0)
    """

    leak: float | None = 0.9
    feedback: int | None = 0
    keep: float = _fixed(1.0)
    strict: bool = _fixed(False)

    def __post_init__(self) -> None:
        if isinstance(self.leak, bool) or not isinstance(self.leak, float | int) or not 0.0 <= self.leak <= 1.0:
            raise ConfigError(f"leak={self.leak!r} must be a number between 0 and 1")


@dataclass(frozen=True)
class RTRL(Sensitivity):
    """Real-time recurrent learning (Williams and Zipser 1989): E = ∂h/∂θ as a whole matrix, for any state net.

    E⁺ = (∂h⁺/∂h) E + ∂h⁺/∂θ. Exact for dense nets too, at the price of as many numbers as state times weights, and
    of one backward pass for each number of the state: for small nets.

    Example:
        >>> RTRL()
        RTRL()
    """

    keep: float = _fixed(1.0)
    strict: bool = _fixed(False)


@dataclass(frozen=True)
class SnAp(Sensitivity):
    """Sparse n-step approximation (Menick et al. 2020): RTRL without what takes more than n steps.

    E⁺ = M ⊙ ((∂h⁺/∂h) E + ∂h⁺/∂θ), where M is 1 for a number of h and a weight if the weight reaches it within n
    steps, and else 0. n = 1 keeps what each weight does to the state at once; a large n is `RTRL`, and for a dense
    net n = 2 is. What reaches what is found at the first step from derivatives at points drawn at random: for nets
    with sparse connections, such as weights times a fixed mask. A step costs as much as with `RTRL`.

    Args:
        n: Number of steps.

    Example:
        >>> SnAp(2)
        SnAp(n=2)
    """

    n: int = 1
    keep: float = _fixed(1.0)
    strict: bool = _fixed(False)

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise ConfigError(f"n={self.n!r} must be a whole number of steps, at least 1")


@dataclass(frozen=True)
class UORO(Sensitivity):
    """Unbiased online recurrent optimization (Tallec and Ollivier 2018): E as one column times one row.

    a⁺ = ρ0 (∂h⁺/∂h) a + ρ1 ν and b⁺ = b/ρ0 + ν·∂h⁺/∂θ/ρ1, with random signs ν, ρ0² = |b|/|(∂h⁺/∂h) a| and
    ρ1² = |ν·∂h⁺/∂θ|/|ν|. a⁺b⁺ is wrong at every step and right on average.

    Args:
        eps: A number that is added to each norm.

    Example:
        >>> UORO()
        UORO(eps=1e-07)
    """

    eps: float = 1e-7
    keep: float = _fixed(1.0)
    strict: bool = _fixed(False)


CREDITS: dict[str, type[Credit]] = {
    "forward": Forward,
    "cleared": Cleared,
    "echo": Echo,
    "sensitivity": Sensitivity,
    "eprop": EProp,
    "rflo": RFLO,
    "rtrl": RTRL,
    "snap": SnAp,
    "uoro": UORO,
}
"""Credits by the name that a configuration file calls them."""
