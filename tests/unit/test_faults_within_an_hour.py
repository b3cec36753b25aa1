"""How many faults a run survives."""

from manyhands.roles.faults import FAULT_WINDOW, FaultBudget


def test_a_run_survives_as_many_faults_as_it_may_within_an_hour() -> None:
    budget = FaultBudget(2)
    assert [budget.allows(now) for now in (0.0, 1.0, 2.0)] == [True, True, False]


def test_faults_of_an_hour_ago_are_forgotten() -> None:
    budget = FaultBudget(2)
    assert [budget.allows(now) for now in (0.0, 10.0, FAULT_WINDOW + 5)] == [True, True, True]
    assert not budget.allows(FAULT_WINDOW + 6)  # of the first three, two are less than an hour old


def test_none_may_mean_none() -> None:
    assert not FaultBudget(0).allows(0.0)
