"""The race to a loss: what follows from the curves of its runs, and that the runs are what they are said to be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import toys
import works

from posbench.bench import race, tables
from posbench.bench.race import Point, Race, Racer
from posbench.config import Optim
from posbench.data import tokens
from posbench.errors import UserError


def racer(*points: tuple[float, float]) -> Racer:
    """A run with these (seconds, nats) at its validations."""
    found = [Point(32 * number, *point) for number, point in enumerate(points, start=1)]
    return Racer("made", works.config(), len(found), found)


def made(*ours: tuple[float, float]) -> Race:
    """AdamW takes 10 s and ends at 3.2 and 3.0; of posbench's runs over half the steps (seconds, nats) at their end."""
    adamw = {1: racer((5, 4.0), (10, 3.2)), 2: racer((5, 3.1), (10, 3.0))}
    halves = {seed: racer((1, 5.0), end) for seed, end in enumerate(ours, start=1)}
    return Race({1e-3: racer((9, 3.4)), 4e-3: racer((9, 3.2))}, adamw, {0.5: halves})


def test_the_target_is_a_loss_that_every_run_of_adamw_reaches():
    """3.2, where seed 1 ends; seed 2 is there after 5 s already."""
    found = made((4, 3.1), (4, 3.1))
    assert found.target == 3.2
    assert found.seconds(found.adamw) == [10, 5]


def test_the_time_of_a_run_is_that_of_its_first_validation_at_the_target():
    one = racer((1, 4.0), (2, 3.0), (3, 3.1), (4, 2.0))
    assert (one.seconds_to(3.05), one.seconds_to(3.0), one.seconds_to(1.0)) == (2, 2, None)
    assert one.final == 2.0


def test_the_ratio_is_taken_seed_by_seed():
    """4 s of 10 and 4 of 5: the geometric mean is sqrt(0.4 x 0.8)."""
    found = made((4, 3.1), (4, 3.1)).ratio(0.5)
    assert found is not None
    assert found.median == pytest.approx(math.sqrt(0.32))


def test_the_seed_on_which_the_share_is_chosen_can_be_left_out_of_the_ratio():
    """Of the seeds 1 and 2 that is 4 s of 5; of seed 1 alone nothing is left."""
    found = made((4, 3.1), (4, 3.1))
    assert found.chosen_on == 1
    others = found.ratio(0.5, others=True)
    assert others is not None
    assert (others.median, others.rounds, others.low) == (pytest.approx(0.8), 1, None)
    record = tables.times(found, "muon", {"command": "posbench bench time-to-loss"}).data()[1]
    assert record["ratio_others"] == pytest.approx(0.8)
    del found.adamw[2], found.ours[0.5][2]
    assert found.ratio(0.5, others=True) is None


def test_the_share_is_chosen_on_the_first_seed_that_was_given():
    """Seeds 2 and 1: of seed 2 the share 0.7 is sooner, of seed 1 the share 0.5."""
    adamw = {2: racer((10, 3.2)), 1: racer((10, 3.0))}
    ours = {0.5: {2: racer((5, 3.0)), 1: racer((3, 3.0))}, 0.7: {2: racer((4, 3.0)), 1: racer((6, 3.0))}}
    found = Race({1e-3: racer((9, 3.2))}, adamw, ours)
    assert (found.chosen_on, found.best_share) == (2, 0.7)


def test_a_share_that_one_seed_does_not_finish_has_no_ratio():
    found = made((4, 3.1), (4, 3.3))
    assert found.ratio(0.5) is None
    assert found.best_share is None


def test_the_best_share_is_the_soonest_that_every_seed_reaches():
    found = made((4, 3.1), (4, 3.1))
    found.ours[0.7] = {1: racer((3, 3.2)), 2: racer((4, 3.0))}
    found.ours[0.3] = {1: racer((1, 3.3)), 2: racer((1, 3.0))}
    assert found.best_share == 0.7


def test_the_rate_with_the_lowest_loss_is_best_and_none_that_ran_away():
    assert made((4, 3.1)).best_rate == 4e-3
    assert race.best_rate({1e-3: math.nan, 2e-3: 3.0, 4e-3: math.inf, 8e-3: 3.5}) == 2e-3


def test_all_rates_and_shares_are_shown_with_what_was_not_reached():
    found, facts = made((4, 3.1), (4, 3.3)), {"command": "posbench bench time-to-loss"}
    rates, times = tables.rates(found, facts), tables.times(found, "muon", facts)
    assert [(row["rate"], row["valid"], row["best"]) for row in rates.data()] == [(1e-3, 3.4, False), (4e-3, 3.2, True)]
    adamw, half = times.data()
    assert (adamw["recipe"], adamw["seconds_1"], adamw["seconds_2"]) == ("adamw", 10, 5)
    assert (half["recipe"], half["share"], half["seconds_1"], half["seconds_2"]) == ("muon", 0.5, 4, None)
    assert half["best"] is False


@pytest.fixture
def prepared(tmp_path, monkeypatch: pytest.MonkeyPatch) -> tuple:
    """A config of 8 steps and its text."""
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path / "data"))
    config = toys.config(toys.text(tmp_path / "text"), steps=8)
    return config, tokens.prepare(config.data, config.tokenizer)


def test_every_run_of_a_race_has_the_steps_and_validations_it_should(prepared: tuple):
    """8 steps of 32 tokens, four validations: of a whole run after 2, 4, 6, 8 steps; of 5 steps after 2, 3, 4, 5."""
    config, text = prepared
    adamw = replace(config, optim=Optim(name="adamw", method="adamw"))
    found = race.race(config, adamw, text, [1e-3, 1e-2], [1, 2], [0.625, 1.0], validations=4)
    assert list(found.rates) == [1e-3, 1e-2]
    assert sorted(found.adamw) == [1, 2]
    for one in [*found.rates.values(), *found.adamw.values(), *found.ours[1.0].values()]:
        assert [point.tokens for point in one.points] == [64, 128, 192, 256]
    for one in found.ours[0.625].values():
        assert [point.tokens for point in one.points] == [64, 96, 128, 160]
        seconds = [point.seconds for point in one.points]
        assert seconds == sorted(seconds)
    assert found.adamw[1].config.optim.lr == found.best_rate
    assert [one.final for one in found.adamw.values() if one.config.seed == 1] == [found.rates[found.best_rate].final]
    assert None not in (found.seconds(found.adamw) or [None])


def test_a_run_of_the_race_is_a_training_of_posbench(prepared: tuple, tmp_path, monkeypatch: pytest.MonkeyPatch):
    """The same steps, bit for bit: its last validation is the one that `train` stores."""
    from posbench.train import train

    config, text = prepared
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / "runs"))
    one = Racer("made", config, validations=1)
    race.together([one], text)
    assert one.final == train(config).status()["valid"]


def test_runs_go_in_turns_whose_order_is_drawn_anew(monkeypatch: pytest.MonkeyPatch):
    """All have as many turns, and none always comes first."""
    turns: list[str] = []

    def run(self: Racer, prepared: object) -> Iterator[None]:
        for _ in range(20):
            turns.append(self.name)
            yield

    monkeypatch.setattr(Racer, "run", run)
    race.together([Racer(name, works.config(), 20) for name in "abc"], None)  # type: ignore[arg-type]
    orders = ["".join(turns[first : first + 3]) for first in range(0, 60, 3)]
    assert {"".join(sorted(order)) for order in orders} == {"abc"}
    assert len(set(orders)) > 3


def test_what_cannot_be_raced_is_refused_before_the_first_step(prepared: tuple, monkeypatch: pytest.MonkeyPatch):
    config, text = prepared
    monkeypatch.setattr(race, "together", lambda *args: pytest.fail("a step was made"))
    with pytest.raises(UserError, match=r"A share of 0.01 is less than one of 8 batches\."):
        race.race(config, config, text, [1e-3], [1], [1.0, 0.01], validations=4)
    monkeypatch.setattr(race, "validation", lambda prepared: None)  # as it says of a split without targets
    with pytest.raises(UserError, match=r"has no validation text to read the loss of\."):
        race.race(config, config, text, [1e-3], [1], [1.0], validations=4)
