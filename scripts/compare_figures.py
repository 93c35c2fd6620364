"""The figures of compare.py. A figure is one entry of FIGURES: a name, a title, a function that draws it and one that writes its caption.

Colour says the attention type, line style the gate; variants of the same type and gate are told apart by shade and marker.
"""

import math
import os
from dataclasses import dataclass, field
from typing import Callable

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as pyplot
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

import compare_statistics as stats

# Okabe and Ito's palette for the first types; the last ones were chosen so that every pair stays at least as far apart as the closest pair
# of that palette, for the three kinds of colour blindness (Machado et al. 2009), measured in CIE Lab.
COLOURS = {
    "baseline": "#000000",
    "off_by_one": "#56B4E9",
    "sink": "#0072B2",
    "affine": "#D55E00",
    "relu": "#009E73",
    "sa_softmax": "#CC79A7",
    "sa_softmax_raw": "#882255",
    "softpick": "#E69F00",
    "poly": "#F0E442",
    "kinterval": "#5B4B1A",
}
OTHER_COLOUR = "#7F7F7F"
LINE_STYLES = {"none": "-", "headwise": (0, (5, 1.5, 1, 1.5)), "elementwise": (0, (4, 1.6))}
OTHER_LINE_STYLE = ":"
MARKERS = "os^Dv<>Pph*X"
MOST_MARKERS = 24           # a curve of evaluations has one each, until they would be a blot
REFERENCE_COLOUR = "#8A8A8A"
WIDTH = 6.5                 # inches: a text column of a page
DOTS_PER_INCH = 200

PLOT_SETTINGS = {
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8.5, "xtick.labelsize": 7.5, "ytick.labelsize": 7.5, "legend.fontsize": 7.5,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "axes.grid": True, "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5, "axes.axisbelow": True, "lines.linewidth": 1.3, "lines.solid_capstyle": "round", "legend.frameon": False,
    "svg.hashsalt": "compare.py", "path.simplify_threshold": 0.2, "axes.formatter.useoffset": False,
}


@dataclass(frozen=True)
class Style:
    colour: tuple
    line: object
    marker: str
    offset: float       # where along the curve its sparse markers begin, as a share of their distance


@dataclass
class Comparison:
    """All that a figure or table is made from."""
    runs: list
    variants: list
    findings: list
    entropies: dict             # split -> nats
    steps: tuple                # (first, last) drawn; the real ends, never infinite
    grad_steps: tuple
    zoom: tuple                 # the last part, enlarged
    smooth_width: int
    last: int                   # steps whose mean loss is the final training loss
    log_x: bool = False
    log_y: bool = False
    command: str = ""
    styles: list = field(default_factory=list)

    def __post_init__(self):
        self.styles = make_styles(self.variants)

    def styled(self):
        return list(zip(self.variants, self.styles))

    def many(self):
        """Whether colours alone are too few or too alike, so that smooth curves too carry markers."""
        kinds = {(variant.attention_type, variant.gate) for variant in self.variants}
        return len(self.variants) > 4 or len(kinds) < len(self.variants)

    def vocabulary_is_bytes(self):
        return all(run.config.get("model.vocab_size") == 256 for run in self.runs)


@dataclass(frozen=True)
class Figure:
    name: str                   # NAME.png and NAME.svg
    title: str
    draw: Callable              # (comparison, axes...) -> None
    caption: Callable           # comparison -> str
    panels: tuple = (1, 1)      # rows, columns
    height: float = 3.0         # inches, without the legend
    has_evaluations: bool = False       # every evaluation has its marker, which the legend then shows
    in_report: bool = True
    applies: Callable = lambda comparison: True
    shows: Callable = lambda comparison: comparison.styled()        # the (variant, style) that it draws, for the legend
    section: str = "Figures"    # of the report


# ---------------------------------------------------------------------------------------------------------------- styles

def make_styles(variants):
    """A Style for each variant; the n-th of one type and gate gets another shade, ever lighter, and another marker."""
    families = {}
    for variant in variants:
        families.setdefault((variant.attention_type, variant.gate), []).append(variant)
    types = list(COLOURS)
    styles = []
    for variant in variants:
        family = families[variant.attention_type, variant.gate]
        place = next(index for index, member in enumerate(family) if member is variant)
        colour = shade(to_rgb(COLOURS.get(variant.attention_type, OTHER_COLOUR)), place, len(family))
        first = types.index(variant.attention_type) if variant.attention_type in types else len(types)
        styles.append(Style(colour, LINE_STYLES.get(variant.gate, OTHER_LINE_STYLE), MARKERS[(first + place) % len(MARKERS)],
                            len(styles) / len(variants)))
    return styles


def shade(colour, place, count):
    """The colour itself for the first of a family, ever lighter for the others."""
    light = 0.65 * place / max(count - 1, 1)
    return tuple(channel + (1 - channel) * light for channel in colour)


# ---------------------------------------------------------------------------------------------------------------- drawing

def plain(values):
    """None becomes a gap."""
    return [math.nan if value is None else value for value in values]


def faintness(comparison):
    """Raw curves fade as they become many."""
    return 0.28 if len(comparison.variants) <= 4 else 0.16 if len(comparison.variants) <= 8 else 0.08


def draw_curves(axes, comparison, metric, between, fade=1.0):
    """Every variant's curve of a metric. One run: raw faint, smoothed strong. Several seeds: mean and a band of one deviation."""
    width = metric_width(comparison, metric)
    for order, (variant, style) in enumerate(comparison.styled()):
        curve = stats.variant_curve(variant, metric, between, width)
        if width > 1 and (curve.spread is None or metric == "grad_norm"):      # a band over seeds hides spikes, which are the point here
            for run in variant.runs:
                draw_raw(axes, comparison, stats.combine([stats.metric_series(run, metric)], between), style, fade)
        draw_curve(axes, comparison, curve, style, 3 + 0.01 * order, is_evaluation(metric))
        if not is_evaluation(metric) and not is_diagnostic(metric):
            mark_bad_steps(axes, variant, style, between)


def is_evaluation(metric):
    """Evaluations are few: they get markers, and are not smoothed."""
    return metric.startswith("val_")


def is_diagnostic(metric):
    """Of a step now and then, over its whole batch: not smoothed either."""
    return metric.startswith("layers.")


def metric_width(comparison, metric):
    return 1 if is_evaluation(metric) or is_diagnostic(metric) else comparison.smooth_width


def draw_raw(axes, comparison, curve, style, fade=1.0):
    axes.plot(curve.steps, plain(curve.values), color=style.colour, alpha=faintness(comparison) * fade, linewidth=0.6, zorder=2)


def marker_settings(style):
    return {"marker": style.marker, "markersize": 3.5, "markeredgewidth": 0 if style.marker not in "PX*" else 0.2}


def draw_curve(axes, comparison, curve, style, zorder, every_point):
    values = plain(curve.values)
    (line,) = axes.plot(curve.steps, values, color=style.colour, linestyle=style.line, zorder=zorder)
    if every_point:
        line.set(linewidth=1.1, markevery=-(-len(values) // MOST_MARKERS) or None, **marker_settings(style))
    elif comparison.many() and any(math.isfinite(value) for value in values):    # no place for a mark on a run that diverged at once
        line.set(markevery=(0.15 * style.offset, 0.15), **marker_settings(style))
    if curve.spread is not None:
        spread = [0.0 if value is None else value for value in curve.spread]
        low = [value - gap for value, gap in zip(values, spread)]
        high = [value + gap for value, gap in zip(values, spread)]
        axes.fill_between(curve.steps, low, high, color=style.colour, alpha=0.18, linewidth=0, zorder=zorder - 1)


def mark_bad_steps(axes, variant, style, between):
    steps = [step for run in variant.runs for step in run.bad_steps if between[0] <= step <= between[1]]
    if steps:
        axes.plot(steps, [0.985] * len(steps), "x", color=style.colour, markersize=4, transform=axes.get_xaxis_transform(), zorder=5)


def finish_axes(axes, comparison, label, between, y_range, log_y):
    """Names, scales and limits; y_range is None where nothing finite is drawn."""
    log_y = log_y and y_range is not None and y_range[0] > 0
    log_x = comparison.log_x and between == comparison.steps
    axes.set_xlabel("optimizer step" + (" (log scale)" if log_x else ""))
    axes.set_ylabel(label.replace(")", ", log)") if log_y else label)
    first, last = between
    if log_x:
        axes.set_xscale("log")
        axes.set_xlim(first, max(last, first + 1))
        plain_log_ticks(axes.xaxis, axes.get_xlim())
    else:
        room = max(last - first, 1) * 0.015
        axes.set_xlim(first - room, last + room)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 2.5, 5, 10]))
    if log_y:
        axes.set_yscale("log")
    if y_range:
        axes.set_ylim(*y_range)
    else:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", va="center", color=REFERENCE_COLOUR)
    if log_y:
        plain_log_ticks(axes.yaxis, axes.get_ylim())


def plain_log_ticks(axis, limits):
    """On a few decades powers of ten are too few ticks; those between them are written out."""
    low, high = limits
    decades = math.log10(high / low) if low > 0 else 2
    multiples = (1.0,) if decades > 3 else (1.0, 2.0, 5.0) if decades > 0.8 else (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    if decades < 0.15:
        axis.set_major_locator(MaxNLocator(6))
    else:
        axis.set_major_locator(LogLocator(10, subs=multiples))
    axis.set_minor_formatter(NullFormatter())
    if decades <= 4:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def padded(low, high, log_scale, share=0.05):
    """(low, high) with room on both sides."""
    if log_scale and low > 0:
        room = max((high / low) ** share, 1.001)
        return low / room, high * room
    room = (high - low) * share or abs(high) * 0.01 or 1.0
    return low - room, high + room


def loss_range(comparison, metric, between):
    """The y range that shows every curve, but no further up than a little over the first values: a run that diverges leaves the frame."""
    lows, highs, first_values = [], [], []
    for variant in comparison.variants:
        curve = stats.variant_curve(variant, metric, between, metric_width(comparison, metric))
        spreads = curve.spread or [0.0] * len(curve.values)
        values = [(value - spread, value, value + spread) for value, spread in zip(curve.values, spreads) if value is not None]
        if values:
            lows.append(min(low for low, _, _ in values))
            highs.append(max(high for _, _, high in values))
            first_values.append(values[0][1])
    if not lows:
        return None
    room = 0.05 if between == comparison.steps else 0.15
    return padded(min(lows), min(max(highs), 1.25 * max(first_values)), comparison.log_y, room)


def draw_entropy(axes, comparison, split):
    """The loss of a model that knows nothing but how frequent each token is; only where the axes' range has it."""
    entropy = comparison.entropies.get(split)
    low, high = axes.get_ylim()
    if entropy is not None and low < entropy < high:
        axes.axhline(entropy, color=REFERENCE_COLOUR, linestyle=(0, (1, 1.5)), linewidth=1.0, zorder=1)
        return True
    return False


def entropy_name(comparison):
    return f"entropy of {'byte' if comparison.vocabulary_is_bytes() else 'token'} frequencies"


# ---------------------------------------------------------------------------------------------------------------- panels

def training_loss_panel(comparison, axes, show_zoom=True):
    draw_curves(axes, comparison, "loss", comparison.steps)
    if show_zoom and comparison.zoom != comparison.steps:
        axes.axvspan(*comparison.zoom, color="#F3F3F3", linewidth=0, zorder=0)
    finish_axes(axes, comparison, "training loss (nats/token)", comparison.steps, loss_range(comparison, "loss", comparison.steps),
                comparison.log_y)
    draw_entropy(axes, comparison, "train")


def training_loss_end_panel(comparison, axes):
    draw_curves(axes, comparison, "loss", comparison.zoom, fade=0.6)
    finish_axes(axes, comparison, "training loss (nats/token)", comparison.zoom, loss_range(comparison, "loss", comparison.zoom),
                comparison.log_y)
    draw_entropy(axes, comparison, "train")


def validation_loss_panel(comparison, axes, between=None):
    between = between or comparison.steps
    draw_curves(axes, comparison, "val_loss", between)
    finish_axes(axes, comparison, "validation loss (nats/token)", between, loss_range(comparison, "val_loss", between), comparison.log_y)
    draw_entropy(axes, comparison, "val")


def gradient_norm_panel(comparison, axes):
    draw_curves(axes, comparison, "grad_norm", comparison.steps)
    norms = positive_norms(comparison)
    log_y = gradient_log_scale(comparison)
    y_range = None if not norms else padded(min(norms), max(norms), True) if log_y else (0.0, 1.05 * max(norms))
    finish_axes(axes, comparison, "gradient norm (L2)", comparison.steps, y_range, log_y)


def positive_norms(comparison):
    norms = [norm for run in comparison.runs for norm in stats.values_between(run.steps, run.grad_norm, comparison.steps)]
    return [norm for norm in norms if norm is not None and norm > 0]


def gradient_log_scale(comparison):
    """Log where asked, and where spikes would flatten everything else: a maximum over twenty times the median."""
    norms = positive_norms(comparison)
    return bool(norms) and (comparison.log_y or max(norms) > 20 * stats.median(norms))


# ---------------------------------------------------------------------------------------------------------------- paired differences

def paired_variants(comparison):
    """[(variant, style, pairs)] of the variants that have a baseline with the same settings and at least one common seed."""
    found = []
    for variant, style in comparison.styled():
        baseline = stats.baseline_of(variant, comparison.variants)
        pairs = stats.paired_runs(variant, baseline) if baseline else []
        if pairs:
            found.append((variant, style, pairs))
    return found


def draw_differences(comparison, training_axes, validation_axes):
    for axes, metric in ((training_axes, "loss"), (validation_axes, "val_loss")):
        reaches = [0.0]
        width = metric_width(comparison, metric)
        for order, (_, style, pairs) in enumerate(paired_variants(comparison)):
            curve = stats.difference_curve(pairs, metric, comparison.steps, width)
            if curve.spread is None and width > 1:
                draw_raw(axes, comparison, stats.difference_curve(pairs, metric, comparison.steps), style)
            draw_curve(axes, comparison, curve, style, 3 + 0.01 * order, is_evaluation(metric))
            settled = curve.values[width // 2:] or curve.values       # where the window has its full width
            spreads = (curve.spread or [None] * len(curve.values))[-len(settled):]
            for value, spread in zip(settled, spreads):
                reaches += [value - (spread or 0.0), value + (spread or 0.0)] if value is not None else []
        axes.axhline(0, color=COLOURS["baseline"], linewidth=0.9, zorder=1.5)
        label = "training" if metric == "loss" else "validation"
        finish_axes(axes, comparison, f"{label} loss minus\nbaseline's (nats/token)", comparison.steps,
                    padded(min(reaches), max(reaches), False, 0.08), False)


# ---------------------------------------------------------------------------------------------------------------- captions

def run_list(comparison, variants=None):
    """Which runs a figure is drawn from (of all variants or of these); with many runs, their names are left to the table of runs."""
    parts = []
    few = len(comparison.runs) <= 6
    for variant in comparison.variants if variants is None else variants:
        seeds = ", ".join(str(seed) for seed in variant.seeds)
        names = ", ".join(run.name for run in variant.runs)
        names = names + ", " if few and names != variant.label else ""
        parts.append(f"{variant.label} ({names}seed{'s' if len(variant.runs) > 1 else ''} {seeds})")
    return ("Runs: " if few else "Runs (named in the table of runs): ") + "; ".join(parts) + "."


def range_text(between):
    return f"steps {between[0]} to {between[1]}"


def curve_text(comparison, smoothed=True):
    """What the lines and bands are."""
    single = any(len(variant.runs) == 1 for variant in comparison.variants)
    several = any(len(variant.runs) > 1 for variant in comparison.variants)
    width = comparison.smooth_width
    words = []
    if smoothed and width > 1:
        if single:
            words.append("Faint: as logged.")
        words.append(f"Strong: centred mean over {width} steps, narrower within {width // 2} steps of the first, "
                     "one-sided at the end.")
    elif smoothed:
        words.append("Not smoothed.")
    if several:
        of_what = " of the smoothed runs" if smoothed and width > 1 else ""
        words.append(f"Where a variant was run with several seeds: mean over seeds{of_what}, "
                     "with a band of one sample standard deviation over seeds to each side.")
    return words


def scale_text(comparison, log_y):
    words = []
    if comparison.log_x:
        words.append("Step 0 has no place on the log axis.")
    if log_y:
        words.append("The vertical axis is logarithmic.")
    return words


def bad_text(comparison):
    return ["Crosses at the top: steps whose loss or gradient was not finite."] if any(run.bad_steps for run in comparison.runs) else []


def frame_text(comparison, metric):
    """Says so where a diverging run leaves the frame."""
    limits = loss_range(comparison, metric, comparison.steps)
    top = max((value for run in comparison.runs for value in stats.values_between(*stats.metric_series(run, metric), comparison.steps)
               if value is not None), default=0.0)
    return [f"Values above {limits[1]:.3g} leave the frame (the highest is {top:.3g})."] if limits and top > limits[1] else []


def entropy_text(comparison, split):
    entropy = comparison.entropies.get(split)
    return [f"Dotted: {entropy_name(comparison)} of the shards, {entropy:.4f} nats."] if entropy is not None else []


def teacher_text(comparison):
    """What the training loss of a run with a teacher is."""
    taught = [run for run in comparison.runs if run.kl]
    if not taught:
        return []
    who = "" if len(taught) == len(comparison.runs) else " of runs with a teacher"
    return [f"The training loss{who} is (1 - w) cross-entropy + w tau² (KL from the teacher + the teacher's entropy), w = distill.weight, "
            "tau = distill.temperature."]


def training_loss_caption(comparison):
    words = [f"Training loss, {range_text(comparison.steps)}."] + teacher_text(comparison) + curve_text(comparison)
    if comparison.zoom != comparison.steps:
        words.append(f"The shaded part, {range_text(comparison.zoom)}, is enlarged in the next figure.")
    words += entropy_text(comparison, "train") + frame_text(comparison, "loss") + bad_text(comparison)
    return " ".join(words + scale_text(comparison, comparison.log_y) + [run_list(comparison)])


def training_loss_end_caption(comparison):
    words = [f"The last part of the training loss, {range_text(comparison.zoom)}."] + teacher_text(comparison) + curve_text(comparison)
    words.append("The vertical range is the smoothed curves'; single steps may leave it.")
    return " ".join(words + bad_text(comparison) + scale_text(comparison, comparison.log_y) + [run_list(comparison)])


def validation_loss_caption(comparison):
    words = [f"Validation loss at every evaluation; left {range_text(comparison.steps)}, "
             f"right the last part, {range_text(comparison.zoom)}."]
    words += curve_text(comparison, smoothed=False) + entropy_text(comparison, "val") + frame_text(comparison, "val_loss")
    return " ".join(words + scale_text(comparison, comparison.log_y) + [run_list(comparison)])


def gradient_norm_caption(comparison):
    words = [f"Global L2 norm of the gradient before clipping, {range_text(comparison.steps)}."] + curve_text(comparison)
    if comparison.smooth_width > 1 and any(len(variant.runs) > 1 for variant in comparison.variants):
        words.append("Faint lines are every seed's, as logged.")
    return " ".join(words + bad_text(comparison) + scale_text(comparison, gradient_log_scale(comparison)) + [run_list(comparison)])


def loss_difference_caption(comparison):
    words = ["Loss minus that of the baseline run with the same seed at the same step (below zero: better than baseline); "
             "left training, right validation. The seed's batches are the same in both, so most of their noise cancels."]
    words += curve_text(comparison)
    words += ["The vertical range is the smoothed curves'; single steps may leave it."] if comparison.smooth_width > 1 else []
    return " ".join(words + scale_text(comparison, False) + [run_list(comparison)])


def overview_caption(comparison):
    return " ".join(["Training loss, its last part enlarged, validation loss, and gradient norm."] + teacher_text(comparison)
                    + curve_text(comparison)
                    + entropy_text(comparison, "train") + [run_list(comparison)])


# ---------------------------------------------------------------------------------------------------------------- the figures

def draw_validation_loss(comparison, whole, end):
    validation_loss_panel(comparison, whole)
    validation_loss_panel(comparison, end, comparison.zoom)
    end.set_ylabel("")
    end.set_title("last part")


def draw_overview(comparison, loss, end, validation, gradient):
    training_loss_panel(comparison, loss)
    training_loss_end_panel(comparison, end)
    validation_loss_panel(comparison, validation)
    gradient_norm_panel(comparison, gradient)
    for letter, axes in zip("abcd", (loss, end, validation, gradient)):
        axes.set_title(f"({letter})", loc="left", fontweight="bold")


FIGURES = (
    Figure("training_loss", "Training loss", training_loss_panel, training_loss_caption),
    Figure("training_loss_end", "Training loss, last part", training_loss_end_panel, training_loss_end_caption),
    Figure("validation_loss", "Validation loss", draw_validation_loss, validation_loss_caption, (1, 2), 2.6, has_evaluations=True,
           applies=lambda comparison: any(run.eval_steps for run in comparison.runs)),
    Figure("loss_difference", "Loss against the baseline", draw_differences, loss_difference_caption, (1, 2), 2.6, has_evaluations=True,
           applies=lambda comparison: bool(paired_variants(comparison))),
    Figure("gradient_norm", "Gradient norm", gradient_norm_panel, gradient_norm_caption),
    Figure("overview", "Overview", draw_overview, overview_caption, (2, 2), 5.0, has_evaluations=True, in_report=False),
)


def legend_entries(comparison, markers, styled):
    """(handles, labels), one a variant."""
    handles, labels = [], []
    for variant, style in styled:
        line = Line2D([], [], color=style.colour, linestyle=style.line, linewidth=1.5, **(marker_settings(style) if markers else {}))
        count = len(variant.runs)
        handles.append((Patch(color=style.colour, alpha=0.18, linewidth=0), line) if count > 1 else line)
        labels.append(variant.label.replace("$", r"\$") + (f" ({count} seeds)" if count > 1 else ""))
    return handles, labels


def draw_figure(comparison, figure):
    """Draws one figure; returns matplotlib's figure."""
    handles, labels = legend_entries(comparison, figure.has_evaluations or comparison.many(), figure.shows(comparison))
    with matplotlib.rc_context(PLOT_SETTINGS):
        canvas, axes = pyplot.subplots(*figure.panels, layout="constrained", squeeze=False)
        panels = list(axes.flat)
        figure.draw(comparison, *panels)
        lines = [line for panel in panels for line in panel.get_lines() if line.get_color() == REFERENCE_COLOUR]
        if lines:
            heights = sorted({line.get_ydata()[0] for line in lines})
            handles.append(Line2D([], [], color=REFERENCE_COLOUR, linestyle=(0, (1, 1.5)), linewidth=1.2))
            labels.append(f"{entropy_name(comparison)} ({', '.join(f'{height:.2f}' for height in heights)} nats)")
        columns = len(labels)
        if sum(len(label) + 8 for label in labels) > 110:       # what fits the width, a line's sample being as long as 8 letters
            columns = max(1, min(len(labels), 105 // (max(map(len, labels)) + 8)))
        canvas.set_size_inches(WIDTH, figure.height + 0.12 + 0.17 * -(-len(labels) // columns))
        canvas.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.8, columnspacing=1.6)
    return canvas


def write_figures(comparison, folder, figures):
    """Writes NAME.png and NAME.svg of every figure that applies and returns these figures.

    The other figures' files, if an earlier comparison left some, are removed: they would show other runs.
    """
    written = []
    for figure in figures:
        paths = {kind: os.path.join(folder, f"{figure.name}.{kind}") for kind in ("png", "svg")}
        if not figure.applies(comparison):
            for path in paths.values():
                if os.path.isfile(path):
                    os.remove(path)
            continue
        with matplotlib.rc_context(PLOT_SETTINGS):
            canvas = draw_figure(comparison, figure)
            canvas.savefig(paths["png"], dpi=DOTS_PER_INCH, metadata={"Software": None})
            canvas.savefig(paths["svg"], metadata={"Date": None, "Creator": None})
            pyplot.close(canvas)
        written.append(figure)
    return written
