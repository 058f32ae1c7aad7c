"""What enters ω: the gradient of the loss, the penalty of the weights, and what an adaptive β follows of both."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hamlearn._base.scale import Scale, plus, scaled
from hamlearn.adaptive import Adaptive, Moments, averaged, follow, penalised, penalty
from hamlearn.hyper import Hyper
from hamlearn.rules.derivatives import integrate_costate

Costates = tuple[list[Tensor], list[Tensor]]
"""ω and v."""


class OmegaUpdate:
    """What enters ω and v.

    Args:
        weight_decay: λ of the penalty ½λ|θ|² in H.
        moments: What v keeps of itself and takes of g²; `None` where β does not adapt.

    Attributes:
        plain: Whether ω takes in ∂L/∂θ as it is, and there is no v.
    """

    def __init__(self, weight_decay: Scale = 0.0, moments: tuple[Scale, Scale] | None = None) -> None:
        self.weight_decay = weight_decay
        self.moments = moments
        self._decays = isinstance(weight_decay, Tensor) or weight_decay != 0
        self.plain = moments is None and not self._decays

    @classmethod
    def of(cls, hyper: Hyper) -> OmegaUpdate:
        """That of these hyper-parameters."""
        beta = hyper.beta
        return cls(hyper.weight_decay, (beta.keep, 1 - beta.keep) if isinstance(beta, Adaptive) else None)

    @classmethod
    def given(cls, rows: Sequence[Tensor]) -> tuple[OmegaUpdate, Moments | None]:
        """That of a compiled step, and what β takes of it: nothing, λ alone, or λ and the moments."""
        if not rows:
            return cls(), None
        moments = Moments._make(rows[1:]) if len(rows) > 1 else None
        return cls(rows[0], None if moments is None else moments[:2]), moments

    @torch.no_grad()
    def enter(
        self,
        omega: list[Tensor],
        v: list[Tensor],
        dL: list[Tensor] | None,
        theta: list[Tensor],
        decay: Scale,
        gain: Scale,
    ) -> Costates:
        """ω⁺ = decay·ω + gain·g and v⁺, with g = ∂L/∂θ + λθ; without a loss ω dissipates and v stays.

        Args:
            omega: Costates before the step.
            v: What β follows.
            dL: Derivatives of the loss, if there is one.
            theta: The weights.
            decay: 1 − τη.
            gain: −sτφ.
        """
        if dL is None:
            return integrate_costate(omega, None, decay, gain), v
        g = penalised(dL, theta, self.weight_decay) if self._decays else dL
        if self.moments is not None and (isinstance(gain, Tensor) or gain):
            v = follow(v, g, *self.moments)
            if not isinstance(gain, Tensor) and decay == 1 - gain and decay:
                return averaged(omega, g, gain), v
        return integrate_costate(omega, g, decay, gain), v

    def before(self, omega: list[Tensor], decay: Scale) -> list[Tensor]:
        """What derivatives are added to before `gather`: decay·ω, or zeros if it must see them alone."""
        return scaled(omega, decay) if self.plain else [torch.zeros_like(leaf) for leaf in omega]

    @torch.no_grad()
    def gather(
        self,
        omega: list[Tensor],
        v: list[Tensor],
        entered: list[Tensor],
        theta: list[Tensor],
        decay: Scale,
        gain: Scale,
        *,
        learned: bool,
    ) -> Costates:
        """ω⁺ = decay·ω + entered + gain·λθ and v⁺, where `entered` is what derivatives have made of `before`.

        g is all that enters, per unit of gain. Without a loss there is no penalty, and v stays.
        """
        if self.plain:
            return entered, v
        if learned:
            entered = self.penalised(entered, theta, gain)
            v = self.followed(v, entered, gain)
        return plus(scaled(omega, decay), entered, 1.0), v

    def penalised(self, entered: list[Tensor], theta: list[Tensor], gain: Scale) -> list[Tensor]:
        """What enters ω, with gain·λθ."""
        return penalised(entered, theta, gain * self.weight_decay) if self._decays else entered

    def followed(self, v: list[Tensor], entered: list[Tensor], gain: Scale) -> list[Tensor]:
        """v⁺ from what enters ω with a loss, of which there is nothing where the gain is 0."""
        if self.moments is None:
            return v
        if isinstance(gain, Tensor):
            # Nothing is taken of g then, which must be a number all the same.
            return follow(v, scaled(entered, 1 / torch.where(gain == 0, 1.0, gain)), *self.moments)
        return follow(v, scaled(entered, 1 / gain), *self.moments) if gain else v

    def coupled(self, coupling: Tensor | None, theta: list[Tensor], phi: Scale) -> Tensor | None:
        """⟨z, f_h⟩ + φ·½λ|θ|², the part of H beside the loss; `None` stands for 0."""
        if not self._decays:
            return coupling
        part = penalty(theta, phi * self.weight_decay)
        return part if coupling is None else coupling + part
