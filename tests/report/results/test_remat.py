"""The sentences of `windtunnel remat`."""

from __future__ import annotations

from tests.remat.points import point
from tests.report.remat_results import result
from windtunnel.remat.simulated.curve import Curve
from windtunnel.report.results.remat import CostSource, answer, assumptions, describe_failure
from windtunnel.units import GIB


def test_the_answer_names_the_threshold_its_price_and_its_peak():
    assert answer(result()) == (
        "Best threshold: 8GB (10.0% slower than without a limit, 9.00 GiB of 10.00 GiB reserved at the peak)."
    )


def test_a_policy_is_named_when_several_were_tried():
    points = (point(4, 1.5, 6), point(4, 1.2, 6, policy="lru"))
    assert answer(result(points)).startswith("Best threshold: 4GB with policy lru (20.0% slower")


def test_a_tight_fit_is_called_one():
    assert answer(result((point(8, 1.1, 9.8),))).endswith(
        "leaves less than 5% of the device free: it may still fail."
    )


def test_a_program_that_fits_anyway_is_told_so_first():
    assert answer(result(without=point(None, 1.0, 9.5))) == (
        "It fits without a limit, with 9.50 GiB of 10.00 GiB reserved. To use less, set 8GB"
        " (10.0% slower than without a limit, 9.00 GiB of 10.00 GiB reserved at the peak)."
    )
    assert answer(result(without=point(None, 1.0, 9.8))).startswith("Best threshold: 8GB")


def test_when_nothing_fits_the_floor_is_named():
    points = (point(4, 1.5, 6, fits=False),)
    assert answer(result(points)) == (
        "None of these thresholds fits in the 10.00 GiB of 2080ti-11gb; 2.00 GiB can never be evicted."
    )
    curve = Curve(point(None, 1.0, 18, fits=False), points, 11 * GIB, 10 * GIB)
    assert answer(result(curve=curve)) == (
        "No threshold fits: 11.00 GiB can never be evicted, and 2080ti-11gb has 10.00 GiB."
    )


def test_what_is_assumed_is_reported():
    first, second, third = assumptions(result())
    assert first == (
        "operator times come from a roofline of 2080ti-11gb (616 GB/s, 13.4 fp32 and 53.8 half precision TFLOPS);"
        " use --costs FILE for measured ones"
    )
    assert second == "memory is simulated with torch's caching allocator and 10.00 GiB; stalls take no time"
    assert third.startswith("the best threshold leaves 5% of that free")


def test_measured_costs_and_other_allocators_are_reported():
    found = list(assumptions(result(costs=CostSource("c.json", 7, 9), allocator="megengine")))
    assert found[0].startswith(
        "operator times are measured (c.json) for 7 of 9 kinds of operators, and come from a roofline of 2080ti-11gb"
    )
    assert found[1].startswith("memory is simulated with the allocator megengine and 10.00 GiB")


def test_a_failure_says_where():
    assert describe_failure(point(4, 1.5, 6)) == ""
    assert describe_failure(point(4, 1.5, 6, fits=False)) == (
        "step 1 at aten.mul.Tensor (layers.3, backward), asking for 64.00 MiB"
    )
