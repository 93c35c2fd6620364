"""The figures of compare.py that show what the attention did while it was trained, from the diagnostics events of metrics.jsonl (whose
fields docs/metrics.md defines), and how students followed their teacher. Each applies where a run has what it draws.
"""

import compare_statistics as stats
from compare_figures import (REFERENCE_COLOUR, Figure, bad_text, curve_text, draw_curve, draw_curves, finish_axes, marker_settings, padded,
                             plain, plain_log_ticks, range_text, run_list, scale_text)
from matplotlib.ticker import MaxNLocator

SECTION = "What the attention did"
MOST_LAYER_MARKERS = 40         # with more layers, a mark at each would be a blot


# ---------------------------------------------------------------------------------------------------------------- what is drawn

def having(comparison, name):
    """[(variant, style)] of the variants whose runs logged that field of a layer at some step in range."""
    return [(variant, style) for variant, style in comparison.styled() if stats.last_diagnostics(variant, name, comparison.steps)]


def reach(curves, log_y=False):
    """(lowest, highest) of what curves show, bands included, with room; None where nothing is finite."""
    ends = []
    for curve in curves:
        for value, spread in zip(curve.values, curve.spread or [None] * len(curve.values)):
            ends += [value - (spread or 0.0), value + (spread or 0.0)] if value is not None else []
    return padded(min(ends), max(ends), log_y) if ends else None


# ---------------------------------------------------------------------------------------------------------------- panels

def steps_panel(comparison, axes, label, name, *faint_names):
    """A field's mean over layers over steps; others thin and faint beside it."""
    curves = []
    for faint in (False, True):
        for one in faint_names if faint else (name,):
            for order, (variant, style) in enumerate(having(comparison, one)):
                curve = stats.variant_curve(variant, f"layers.{one}", comparison.steps)
                curves.append(curve)
                if faint:
                    axes.plot(curve.steps, plain(curve.values), color=style.colour, linestyle=style.line, alpha=0.6, linewidth=0.7,
                              zorder=2)
                else:
                    draw_curve(axes, comparison, curve, style, 3 + 0.01 * order, False)
    finish_axes(axes, comparison, label, comparison.steps, reach(curves), False)


def layers_panel(comparison, axes, label, name, of_steps=None, log_y=False):
    """A field over layers: at the last step, or of_steps(its values at all steps drawn). log_y: where all of it is above 0."""
    curves = []
    for order, (variant, style) in enumerate(having(comparison, name)):
        curve = stats.layer_curve(variant, name, comparison.steps, of_steps)
        curves.append(curve)
        draw_curve(axes, comparison, curve, style, 3 + 0.01 * order, False)
        if len(curve.steps) <= MOST_LAYER_MARKERS:
            axes.get_lines()[-1].set(markevery=1, **marker_settings(style))
    y_range = reach(curves, log_y)
    log_y = log_y and y_range is not None and y_range[0] > 0
    axes.set_xlabel("layer")
    axes.set_ylabel(label.replace(")", ", log)") if log_y else label)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    if log_y:
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis, y_range)
    if y_range:
        axes.set_ylim(*y_range)
    else:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", va="center", color=REFERENCE_COLOUR)


def histogram_panel(comparison, axes, label, name, mean_name):
    """Share of queries by value at the last step, on a log axis, since a softmax's row sums all lie in one bin; triangles: mean, median."""
    edges, least = [0.0, 1.0], 1.0
    variants = having(comparison, name)
    for order, (variant, style) in enumerate(variants):
        found = stats.pooled_histogram(variant, name, comparison.steps)
        total = sum(found[1].counts) if found else 0
        if not total:
            continue
        histogram = found[1]
        shares = [count / total for count in histogram.counts]
        borders = [histogram.first + (index - 0.5) * histogram.width for index in range(len(shares) + 1)]
        filled = [index for index, share in enumerate(shares) if share]
        edges += [borders[filled[0]], borders[filled[-1] + 1]]
        least = min(least, min(shares[index] for index in filled))
        axes.stairs(shares, borders, color=style.colour, linestyle=style.line, linewidth=1.2, zorder=3 + 0.01 * order)
        if len(variants) <= 4:
            axes.stairs(shares, borders, color=style.colour, alpha=0.08, fill=True, zorder=2)
        centre = stats.mean(stats.layer_curve(variant, mean_name, comparison.steps).values)
        height = 1.03 + order * min(0.045, 0.14 / len(variants))
        for value, face, size in ((stats.histogram_median(histogram), "white", 6), (centre, style.colour, 3)):
            if value is not None:
                axes.plot(value, height, "v", color=style.colour, markerfacecolor=face, markeredgewidth=0.8, markersize=size, clip_on=False,
                          transform=axes.get_xaxis_transform(), zorder=6)
    axes.set_xlabel(label)
    axes.set_ylabel("share of queries (log)")
    axes.set_yscale("log")
    axes.set_ylim(0.7 * least, 1.4)
    axes.set_xlim(*padded(min(edges), max(edges), False))


# ---------------------------------------------------------------------------------------------------------------- drawing

def draw_logits(comparison, mean, rms):
    steps_panel(comparison, mean, "mean logit", "logit_mean")
    steps_panel(comparison, rms, "root mean square logit", "logit_rms")


def draw_row_sums(comparison, histogram, over_steps):
    histogram_panel(comparison, histogram, "sum of a query's weights", "row_sum_histogram", "row_sum_mean")
    steps_panel(comparison, over_steps, "mean sum of a query's weights", "row_sum_mean")


def draw_focus(comparison, first_layers, first_steps, entropy_layers, entropy_steps):
    for name, label, layers, over_steps in (("first_token_weight", "weight on first token", first_layers, first_steps),
                                            ("entropy", "entropy (nats)", entropy_layers, entropy_steps)):
        layers_panel(comparison, layers, label, name)
        steps_panel(comparison, over_steps, label, name)


def draw_sink_mass(comparison, layers, over_steps):
    layers_panel(comparison, layers, "mass on the sink", "sink_mass")
    steps_panel(comparison, over_steps, "mass on the sink", "sink_mass")


def draw_alpha(comparison, histogram, layers, over_steps, clipped):
    histogram_panel(comparison, histogram, "alpha of a query", "alpha_histogram", "alpha_mean")
    layers_panel(comparison, layers, "mean alpha", "alpha_mean")
    steps_panel(comparison, over_steps, "mean alpha", "alpha_mean", "alpha_ma")
    steps_panel(comparison, clipped, "share of alphas at 0 or 1", "alpha_at_0", "alpha_at_1")
    top = max(clipped.dataLim.ymax, 0.01)
    clipped.set_ylim(-0.03 * top, 1.05 * top)


def draw_gate(comparison, layers, over_steps):
    layers_panel(comparison, layers, "mean gate", "gate_mean")
    steps_panel(comparison, over_steps, "mean gate", "gate_mean")


def draw_layer_norms(comparison, gradient, parameters):
    layers_panel(comparison, gradient, "gradient norm (L2)", "grad_norm", stats.median, log_y=True)
    layers_panel(comparison, parameters, "parameter norm (L2)", "param_norm")


def draw_distillation(comparison, ce, kl):
    for axes, metric, label in ((ce, "ce", "cross-entropy\nagainst the data (nats/token)"),
                                (kl, "kl", "divergence from the\nteacher (nats/token)")):
        draw_curves(axes, comparison, metric, comparison.steps)
        log_y = comparison.log_y or metric == "kl" and divergence_on_log_scale(comparison)
        finish_axes(axes, comparison, label, comparison.steps, reach(smoothed(comparison, metric), log_y), log_y)


def smoothed(comparison, metric):
    return [stats.variant_curve(variant, metric, comparison.steps, comparison.smooth_width) for variant in comparison.variants]


def divergence_on_log_scale(comparison):
    """Where it falls so far that students could not be told apart at the end."""
    values = [value for curve in smoothed(comparison, "kl") for value in curve.values if value is not None]
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)


# ---------------------------------------------------------------------------------------------------------------- captions

def last_step_text(comparison, name):
    """When "the last step" of a figure was."""
    steps = sorted({stats.last_diagnostics(variant, name, comparison.steps)[0] for variant, _ in having(comparison, name)})
    return f"step {steps[0]}" if len(steps) == 1 else f"each variant's last logged step ({steps[0]} to {steps[-1]})"


def batch_text(comparison):
    return f"Every value is over all queries of one step's training batch; {range_text(comparison.steps)}."


def logits_caption(comparison):
    return ["z = q.k / sqrt(D) before the softmax, over optimizer steps: mean (left) and root mean square (right) over heads and causal "
            "pairs of positions, then the mean over layers. arXiv 2602.23057 shows the mean in its Figure 2.",
            batch_text(comparison)]


def histogram_text(comparison, name, outermost):
    words = "Triangles: mean (filled) and median (open)."
    found = [stats.pooled_histogram(variant, name, comparison.steps) for variant, _ in having(comparison, name)]
    if outermost and any(one and (one[1].counts[0] or one[1].counts[-1]) for one in found):
        words += " The outermost bins also hold what lies beyond them."
    return words


def row_sums_caption(comparison):
    return ["Each query's, the sink's mass not counted (softmax: always 1). "
            f"Left: share of queries by their sum at {last_step_text(comparison, 'row_sum_histogram')}, all layers and heads together, "
            "on a log scale.", histogram_text(comparison, "row_sum_histogram", True), "Right: the mean, over steps.",
            batch_text(comparison)]


def focus_caption(comparison):
    return ["Above: effective weight on the sequence's first token, mean over queries. Below: entropy of the softmax's own distribution "
            "(the sink, where there is one, counted as one more outcome). "
            f"Left: by layer, counted from 0, at {last_step_text(comparison, 'entropy')}. Right: mean over layers, over steps.",
            batch_text(comparison)]


def sink_mass_caption(comparison):
    return ["The share of the softmax that went to the sink (of off_by_one: to its 1), mean over queries. "
            f"Left: by layer, counted from 0, at {last_step_text(comparison, 'sink_mass')}. Right: mean over layers, over steps.",
            batch_text(comparison)]


def alpha_caption(comparison):
    return [f"The scale that affine attention gives each query. Top left: share of queries by alpha at "
            f"{last_step_text(comparison, 'alpha_histogram')}, all layers and heads together, on a log scale.",
            histogram_text(comparison, "alpha_histogram", False), "Top right: mean by layer, counted from 0, at that step. "
            "Bottom left: mean over layers, over steps; thin: its moving average alpha_ma as forward used it. "
            "Bottom right: share of the alphas that are exactly 0 (strong) and exactly 1 (thin).", batch_text(comparison)]


def gate_caption(comparison):
    return ["sigmoid(W_g x), mean over queries and gate values. "
            f"Left: by layer, counted from 0, at {last_step_text(comparison, 'gate_mean')}. Right: mean over layers, over steps.",
            batch_text(comparison)]


def layer_norms_caption(comparison):
    return ["Layers are counted from 0. Left: L2 norm of the gradient of the layer's parameters before clipping, median over the logged "
            f"steps among {range_text(comparison.steps)}. Right: L2 norm of its parameters at {last_step_text(comparison, 'param_norm')}."]


def distillation_caption(comparison):
    words = [f"Students and their teacher, {range_text(comparison.steps)}. Left: cross-entropy against the data, whatever its weight in "
             "the training loss. Right: Kullback-Leibler divergence of the student from the teacher, both at distill.temperature."]
    words += curve_text(comparison)
    words += ["The vertical range is the smoothed curves'; single steps may leave it."] if comparison.smooth_width > 1 else []
    return words + bad_text(comparison) + scale_text(comparison, False)


# ---------------------------------------------------------------------------------------------------------------- the figures

def diagnostics_figure(name, title, draw, caption, field, panels=(1, 2), height=2.5):
    """A Figure of the variants that logged `field`."""
    def shown(comparison):
        return having(comparison, field)

    def whole_caption(comparison):
        seeds = curve_text(comparison, smoothed=False) if any(len(variant.runs) > 1 for variant, _ in shown(comparison)) else []
        return " ".join(caption(comparison) + seeds + [run_list(comparison, [variant for variant, _ in shown(comparison)])])
    return Figure(name, title, draw, whole_caption, panels, height, applies=lambda comparison: bool(shown(comparison)), shows=shown,
                  section=SECTION)


def students(comparison):
    return [(variant, style) for variant, style in comparison.styled() if any(run.kl for run in variant.runs)]


DIAGNOSTIC_FIGURES = (
    Figure("distillation", "Distillation", draw_distillation, lambda comparison: " ".join(
        distillation_caption(comparison) + [run_list(comparison, [variant for variant, _ in students(comparison)])]), (1, 2), 2.6,
           applies=lambda comparison: bool(students(comparison)), shows=students),
    diagnostics_figure("logits", "Attention logits", draw_logits, logits_caption, "logit_mean"),
    diagnostics_figure("row_sums", "Sums of effective weights", draw_row_sums, row_sums_caption, "row_sum_histogram", height=2.7),
    diagnostics_figure("focus", "First token and entropy", draw_focus, focus_caption, "entropy", (2, 2), 4.4),
    diagnostics_figure("sink_mass", "Mass on the sink", draw_sink_mass, sink_mass_caption, "sink_mass"),
    diagnostics_figure("alpha", "alpha of affine attention", draw_alpha, alpha_caption, "alpha_mean", (2, 2), 4.6),
    diagnostics_figure("gate", "Output gate", draw_gate, gate_caption, "gate_mean"),
    diagnostics_figure("layer_norms", "Norms by layer", draw_layer_norms, layer_norms_caption, "grad_norm"),
)
