from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as with_rows
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from tramfl.reporting import load_run, series

MakeRun = Callable[..., Path]


def test_grouping_rounds_loses_no_sample(make_run: MakeRun) -> None:
    run = load_run(make_run(rounds=101))
    for columns in (7, 50, 101, 500):
        usage = series.node_usage(run, columns)
        assert usage.samples.sum() == run.summary.samples
        assert usage.samples.shape[1] <= columns
        assert (usage.first[0], usage.last[-1]) == (1, 101)


def test_thinning_hides_no_breach_of_the_variance_limit(make_run: MakeRun) -> None:
    run = load_run(make_run(rounds=101))
    usage = series.label_usage(run, 10)
    assert usage.variance.max() == run.summary.largest_label_variance
    assert usage.used[:, -1].tolist() == list(run.rows[-1].used)


def test_a_thinned_curve_keeps_its_ends_and_extremes(make_run: MakeRun) -> None:
    run = load_run(make_run(rounds=900))
    whole, thin = series.validation_loss(run), series.bands([run], series.validation_loss, points=50)["load-aware"]
    assert len(thin.x) <= 52
    assert (thin.x[0], thin.x[-1]) == (whole.x[0], whole.x[-1])
    assert (thin.mean.min(), thin.mean.max()) == (whole.y.min(), whole.y.max())


def test_most_points_lie_where_the_reader_looks(make_run: MakeRun) -> None:
    runs = [load_run(make_run(f"{seed}", rounds=600, seed=seed)) for seed in range(2)]
    for group in (runs, runs[:1]):
        band = series.bands(group, series.metric_over_time, points=90, keep_last=True, focus=5.0)["load-aware"]
        assert np.all(np.diff(band.x) > 0)
        assert (band.x <= 5.0).sum() > 0.5 * (series.metric_over_time(group[0]).x <= 5.0).sum()


def test_a_band_encloses_its_mean_and_ends_with_the_shortest_run(make_run: MakeRun) -> None:
    runs = [load_run(make_run(f"{seed}", rounds=20 + seed, seed=seed)) for seed in range(3)]
    band = series.bands(runs, series.time_over_rounds, points=500)["load-aware"]
    assert band.x.tolist() == list(range(1, 21))
    assert np.all((band.low <= band.mean) & (band.mean <= band.high))
    expected = np.mean([[row.total_seconds for row in run.rows[:20]] for run in runs], axis=0)
    np.testing.assert_allclose(band.mean, expected)


def test_a_run_that_has_ended_keeps_its_last_accuracy(make_run: MakeRun) -> None:
    runs = [load_run(make_run(f"{rounds}", rounds=rounds, seed=rounds)) for rounds in (10, 40)]
    band = series.bands(runs, series.metric_over_time, points=500, keep_last=True)["load-aware"]
    ends = [series.metric_over_time(run).y[-1] for run in runs]
    assert band.x[-1] == max(series.metric_over_time(run).x[-1] for run in runs)
    np.testing.assert_allclose(band.mean[-1], np.mean(ends))


def test_the_time_spent_adds_up_to_the_total(make_run: MakeRun) -> None:
    run = load_run(make_run())
    np.testing.assert_allclose(sum(series.seconds_spent([run])["load-aware"]), run.summary.total_seconds)


def test_the_overhead_of_real_sites_is_part_of_the_time_spent(make_run: MakeRun) -> None:
    run = load_run(make_run())
    rows = tuple(replace(row, overhead_seconds=0.5) for row in run.rows)
    spent = series.seconds_spent([with_rows(run, rows=rows)])["load-aware"]
    assert spent.overhead == 0.5 * len(rows)
