"""Things made ahead come in order with their errors, and things done behind are done once or not at all."""

from __future__ import annotations

import threading

import pytest

from rollout_assets.overlap import Behind, Pausing, begin, made_ahead, without_pause
from tests.support.refusals import refused
from tests.support.waiting import PATIENCE_S


def test_the_next_item_is_made_while_this_one_is_used() -> None:
    begun = [threading.Event() for _ in range(3)]

    def make(item: int) -> int:
        begun[item].set()
        return item * item

    squares = []
    for item, made in made_ahead(make, range(3)):
        squares.append(made.result())
        if item < 2:
            assert begun[item + 1].wait(PATIENCE_S)
    assert squares == [0, 1, 4]


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_is_raised_where_its_item_is_used(count: int) -> None:
    def make(item: int) -> int:
        if item == count - 1:
            raise ValueError(f"item {item}")
        return item

    results = []
    for _, made in made_ahead(make, range(count)):
        try:
            results.append(made.result())
        except ValueError as error:
            results.append(str(error))
    assert results == [*range(count - 1), f"item {count - 1}"]


def test_work_behind_is_done_in_order_and_before_the_end() -> None:
    done: list[int] = []
    with Behind(done.append, waiting=2) as do:
        for item in range(20):
            do(item)
    assert done == list(range(20))


def test_an_error_behind_comes_to_the_front_and_stops_the_work() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == 2:
            raise OSError("no space left")
        done.append(item)

    with refused(OSError, "no space left"), Behind(work, waiting=1) as do:
        for item in range(10):
            do(item)
    assert done == [0, 1]


def test_an_error_in_front_is_not_hidden() -> None:
    with pytest.raises(KeyError), Behind(lambda _item: None) as do:
        do(1)
        raise KeyError("front")


def test_work_that_pauses_is_begun_here_and_ended_elsewhere() -> None:
    places = []

    def work(pauses: int) -> Pausing[str]:
        for _ in range(pauses):
            places.append(threading.current_thread().name)
            yield
        places.append(threading.current_thread().name)
        return "made"

    here = threading.current_thread().name
    assert without_pause(work(2)) == "made" and begin(work(0))() == "made"
    assert places == [here] * 4
    rest, made = begin(work(1)), []
    there = threading.Thread(target=lambda: made.append(rest()), name="there")
    there.start()
    there.join()
    assert made == ["made"] and places[4:] == [here, "there"]
