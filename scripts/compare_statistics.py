"""The numbers of compare.py: smoothing, means over seeds, gradient-norm statistics, paired differences. None stands for no number."""

import functools
import math
import statistics
from dataclasses import dataclass, replace

SPIKE_FACTORS = (6, 9)      # the k of the paper's Table 5


def mean(values):
    """The mean of what is there; None of nothing."""
    values = [value for value in values if value is not None]
    return math.fsum(values) / len(values) if values else None


def mean_and_std(values):
    """(mean, sample standard deviation) over seeds, without the seeds that have no number; a deviation needs two."""
    values = [value for value in values if value is not None]
    if not values:
        return None, None
    return mean(values), sample_std(values) if len(values) > 1 else None


def sample_std(values):
    """The standard deviation with n - 1, of at least two numbers. (statistics.stdev is exact, and too slow for every step of long runs.)"""
    average = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - average) ** 2 for value in values) / (len(values) - 1))


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


# ------------------------------------------------------------------------------------------------------ gradient-norm statistics

@dataclass(frozen=True)
class GradientStatistics:
    """Statistics of raw gradient norms over a range of steps; std and variance are the population's (divided by the count)."""
    count: int
    mean: float
    std: float
    variance: float
    cv: float           # coefficient of variation, std / mean
    spikes: dict        # k -> number of steps with g > median(g) + k * MAD(g)


def gradient_statistics(norms, factors=SPIKE_FACTORS):
    """The statistics of the paper's Tables 4 and 5; None where no norm is finite.

    MAD(g) is the median of |g - median(g)|, without the factor that would make it a normal distribution's deviation.
    """
    norms = [norm for norm in norms if norm is not None]
    if not norms:
        return None
    average = math.fsum(norms) / len(norms)
    variance = math.fsum((norm - average) ** 2 for norm in norms) / len(norms)
    middle = statistics.median(norms)
    mad = statistics.median(abs(norm - middle) for norm in norms)
    spikes = {factor: sum(norm > middle + factor * mad for norm in norms) for factor in factors}
    std = math.sqrt(variance)
    return GradientStatistics(len(norms), average, std, variance, std / average if average else None, spikes)


def values_between(steps, values, between):
    """The values at steps first..last, both included."""
    return [value for step, value in zip(steps, values) if between[0] <= step <= between[1]]


# ---------------------------------------------------------------------------------------------------------------- smoothing

def smooth(values, width):
    """Centred mean over `width` values (an odd number), without the Nones among them.

    Near the first value the window narrows so that it stays symmetric, for a steep start must not be flattened; at the end it is cut
    off on one side, for a flat end must not become noisy.
    """
    half = width // 2
    result = []
    for index, value in enumerate(values):
        reach = min(half, index)
        result.append(mean(values[index - reach:index + reach + 1]) if value is not None else None)
    return result


# ---------------------------------------------------------------------------------------------------------------- curves

@dataclass(frozen=True)
class Curve:
    """Values over steps. For several seeds `values` is the mean and `spread` the sample standard deviation; for one, spread is None."""
    steps: list
    values: list
    spread: list = None


def combine(series, between):
    """One curve from [(steps, values)], a pair a seed: at the steps in range that every seed has."""
    common = set(series[0][0])
    for steps, _ in series[1:]:
        common &= set(steps)
    steps = sorted(step for step in common if between[0] <= step <= between[1])
    tables = [dict(zip(one_steps, values)) for one_steps, values in series]
    columns = [[table[step] for table in tables] for step in steps]
    whole = [None not in column for column in columns]
    values = [mean(column) if complete else None for column, complete in zip(columns, whole)]
    if len(series) == 1:
        return Curve(steps, values)
    return Curve(steps, values, [sample_std(column) if complete else None for column, complete in zip(columns, whole)])


def metric_series(run, metric):
    """(steps, values) of loss, ce, kl, grad_norm, val_loss, or, of "layers.FIELD", the mean over layers of a diagnostics field."""
    if metric.startswith("layers."):
        return layer_mean_series(run, metric[len("layers."):])
    values = getattr(run, metric)
    return (run.eval_steps if metric.startswith("val_") else run.steps) if values else [], values


@functools.lru_cache(maxsize=None)
def smoothed_series(run, metric, width):
    steps, values = metric_series(run, metric)
    return steps, values if width == 1 else smooth(values, width)


@functools.lru_cache(maxsize=None)      # figures share panels, and axes look at curves before they are drawn
def variant_curve(variant, metric, between, width=1):
    """The variant's curve of a metric, each run smoothed before the mean over seeds is taken."""
    return combine([smoothed_series(run, metric, width) for run in variant.runs], between)


# ---------------------------------------------------------------------------------------------------------------- diagnostics

@functools.lru_cache(maxsize=None)
def layer_mean_series(run, name):
    """(steps, values): the mean over layers of a field at each diagnostics event that has it; None where a layer's is not finite."""
    events = [event for event in run.diagnostics if name in event.layers[0]]
    columns = [[layer.get(name) for layer in event.layers] for event in events]
    return [event.step for event in events], [None if None in column else mean(column) for column in columns]


def common_diagnostics(variant, name, between):
    """[(step, [one layer list a run])]: the events with that field at the steps in range that every run of the variant has."""
    tables = [{event.step: event.layers for event in run.diagnostics if name in event.layers[0]} for run in variant.runs]
    steps = sorted(step for step in set.intersection(*map(set, tables)) if between[0] <= step <= between[1])
    return [(step, [table[step] for table in tables]) for step in steps]


def last_diagnostics(variant, name, between):
    """(step, [one layer list a run]) of the last event with that field, or None."""
    found = common_diagnostics(variant, name, between)
    return found[-1] if found else None


def layer_curve(variant, name, between, of_steps=None):
    """A field over layers (Curve.steps are layers), as mean and deviation over seeds: at the last event, or of_steps(values of all)."""
    found = common_diagnostics(variant, name, between)
    if not found:
        return Curve([], [])
    events = found if of_steps else found[-1:]
    series = []
    for run in range(len(variant.runs)):
        rows = [[layers[run][index].get(name) for _, layers in events] for index in range(len(events[0][1][run]))]
        series.append((list(range(len(rows))), [of_steps(row) if of_steps else row[0] for row in rows]))
    return combine(series, (0, math.inf))


def pooled_histogram(variant, name, between):
    """(step, Histogram) of the last event, its counts summed over layers and seeds; None where there is none or their bins differ."""
    found = last_diagnostics(variant, name, between)
    if not found:
        return None
    step, layers = found
    parts = [layer[name] for one_run in layers for layer in one_run if layer.get(name) is not None]
    if len({(part.first, part.width, len(part.counts)) for part in parts}) != 1:
        return None
    return step, replace(parts[0], counts=tuple(map(math.fsum, zip(*(part.counts for part in parts)))))


def histogram_median(histogram):
    """The median, as if the values were spread evenly over their bin; None of no values."""
    half, below = math.fsum(histogram.counts) / 2, 0.0
    for index, count in enumerate(histogram.counts):
        if count and below + count >= half:
            return histogram.first + (index - 0.5 + (half - below) / count) * histogram.width
        below += count
    return None


# ---------------------------------------------------------------------------------------------------------------- table values

@dataclass(frozen=True)
class Results:
    """One run's row of the results table; every number may be None."""
    attention_parameters: int
    train_loss: float       # mean over the last `last` steps in range
    train_ce: float         # the same of ce and kl, of runs with a teacher
    train_kl: float
    val_loss: float         # at the last evaluation in range
    best_val_loss: float
    best_val_step: int
    val_perplexity: float   # at the last evaluation in range
    tokens_per_second: float


def run_results(run, between, last):
    losses, ce, kl = (values_between(run.steps, values, between)[-last:] for values in (run.loss, run.ce, run.kl))
    evals = [row for row in zip(run.eval_steps, run.val_loss, run.val_perplexity) if between[0] <= row[0] <= between[1]]
    finite = [row for row in evals if row[1] is not None]
    best = min(finite, key=lambda row: row[1]) if finite else (None, None, None)
    final = evals[-1] if evals else (None, None, None)
    added = (run.start_values("attention_parameters") or [None])[-1]
    return Results(added, mean(losses), mean(ce), mean(kl), final[1], best[1], best[0], final[2],
                   median(values_between(run.steps, run.tokens_per_second, between)))


# ---------------------------------------------------------------------------------------------------------------- paired differences

def baseline_of(variant, variants):
    """The ungated baseline that was run like this variant in all but attention, or None; a baseline is not compared with itself."""
    if variant.attention_type == "baseline" and variant.gate == "none":
        return None
    for other in variants:
        if other.attention_type == "baseline" and other.gate == "none" and other.settings == variant.settings:
            return other
    return None


def paired_runs(variant, baseline):
    """[(run, baseline's run of the same seed)]"""
    by_seed = {run.seed: run for run in baseline.runs}
    return [(run, by_seed[run.seed]) for run in variant.runs if run.seed in by_seed]


def common_results(run, base, between, last):
    """Both runs' Results over the steps that both have: a run that was cut off is compared where it was cut off."""
    first, end = between
    training = first, min(end, run.steps[-1], base.steps[-1])
    evaluations = set(run.eval_steps) & set(base.eval_steps)
    both = first, max((step for step in evaluations if first <= step <= end), default=-1)
    results = []
    for one in (run, base):
        evaluated = run_results(one, both, last)
        results.append(replace(evaluated, train_loss=run_results(one, training, last).train_loss))
    return results


def difference_curve(pairs, metric, between, width=1):
    """metric(run) - metric(baseline) over the steps both have, smoothed, as mean and deviation over seeds."""
    series = []
    for run, base in pairs:
        base_values = dict(zip(*metric_series(base, metric)))
        rows = [(step, value, base_values[step]) for step, value in zip(*metric_series(run, metric)) if step in base_values]
        gaps = [value - other if value is not None and other is not None else None for _, value, other in rows]
        series.append(([step for step, _, _ in rows], smooth(gaps, width)))
    return combine(series, between)


def mean_and_error(values):
    """(mean, standard error of the mean) over seeds; an error needs two."""
    average, std = mean_and_std(values)
    count = sum(value is not None for value in values)
    return average, std / math.sqrt(count) if std is not None else None
