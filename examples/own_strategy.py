"""An update strategy of your own: a step whose length on a row is bounded, checked by melon and put to work."""

import melon
from melon.strategies import Proposal, Situation, Strategy, StrategySettings
from melon.testing import SMALL_RECOMMENDERS, check_pairing


class BoundedSettings(StrategySettings):
    """`most` is the longest step of a row."""

    lr: float = 0.3
    most: float = 0.5


class Bounded(Strategy):
    """Gradient descent that moves no row further than `most`."""

    name = "bounded"
    settings_type = BoundedSettings
    settings: BoundedSettings

    def propose(self, situation: Situation) -> Proposal:
        """New values of the rows that the batch touches; melon writes them."""
        values = {}
        for gradient in situation.evidence.gradients:
            old = situation.values[gradient.table]
            step = self.settings.lr * gradient.summed(len(old))
            length = step.norm(dim=-1, keepdim=True).clamp(min=1e-12)
            values[gradient.table] = old - step * (self.settings.most / length).clamp(max=1)
        return Proposal(values)


report = check_pairing(SMALL_RECOMMENDERS["bpr"], Bounded)  # raises where a rule is broken
print(f"{len(report.passed)} checks passed")

log = [(n % 40, n * n % 97, n) for n in range(1_000)]
model = melon.Melon("bpr", Bounded, epochs=3, budget=0).fit(log)
model.partial_fit([(1, 5, 1_000)])
print(model)
