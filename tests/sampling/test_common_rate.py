"""The rate that all workers have in common."""

from mpitrain.sampling.common_rate import CommonRate


def test_it_falls_twice_on_a_loss_that_does_not_fall() -> None:
    """÷5, then ÷2; a restored one goes on, one that only hears of falls follows."""
    rate, follower, rates = CommonRate(2), CommonRate(2), list[float]()
    for _ in range(20):
        rate.observe(1.0)
        follower.hear(rate.falls)
        rates.append(rate(1.0))
        assert follower(1.0) == rates[-1]
    assert sorted(set(rates), reverse=True) == [1.0, 0.2, 0.1]
    again = CommonRate(2, state=rate.state)
    assert again(1.0) == 0.1


def test_minibatches_count_together_as_one_by_one() -> None:
    """Where they end with a window."""
    one, three = CommonRate(3), CommonRate(3)
    for loss in (4.0, 4.0, 3.0, 4.0):
        for each in (loss, 1.0, 2.0):
            one.observe(each)
        three.observe(loss + 3.0, 3)
        assert three.state == one.state


def test_without_a_window_nothing_happens() -> None:
    rate = CommonRate()
    for _ in range(9):
        rate.observe(1.0)
    assert not rate.reacts and rate(0.3) == 0.3
