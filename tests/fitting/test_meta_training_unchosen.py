"""With budget 0 nothing is chosen; a strategy that is trained through the stream meta-trains all the same."""

from melon.data.synthetic import synthetic_stream
from melon.fitting.fit import fit
from melon.fitting.plan import Plan
from melon.strategies.melon.stream import MeLON


def test_melon_is_not_silently_default() -> None:
    log = synthetic_stream("flip", n_users=40, n_items=60, n_events=2_500, seed=2)
    plan = Plan("bpr", "melon", budget=0, epochs=2, settings={"passes": 3}, recommender_settings={"dim": 4})
    fitted = fit(log, plan)
    strategy = fitted.model.updater.strategy
    assert isinstance(strategy, MeLON)
    assert strategy.rates.knows_roles
    assert not any("not meta-trained" in note for note in fitted.notes)
    short = fit(log.head(40), plan)
    assert any("takes the plain steps of 'default'" in note for note in short.notes)
