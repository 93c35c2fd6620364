"""Tables, tables.md and report.html of compare.py. A table is made once and written as text, Markdown and HTML."""

import base64
import html
import os
from dataclasses import dataclass

import compare_statistics as stats
from compare_figures import entropy_name, range_text
from compare_referee import NOTE, WARNING
from compare_runs import option_name, show

NONE = "–"


@dataclass(frozen=True)
class Table:
    title: str
    caption: str
    header: list
    rows: list              # of strings; the first column is a name, the others are numbers unless text_columns says otherwise
    text_columns: tuple = (0,)


# ---------------------------------------------------------------------------------------------------------------- cells

def number(value, digits):
    return NONE if value is None else f"{value:,.{digits}f}"


def with_spread(average, spread, digits):
    return number(average, digits) + (f" ± {spread:,.{digits}f}" if average is not None and spread is not None else "")


def over_seeds(values, digits):
    """The one run's number, or mean ± sample standard deviation over seeds."""
    return with_spread(*stats.mean_and_std(values), digits)


def seeds_text(comparison):
    several = any(len(variant.runs) > 1 for variant in comparison.variants)
    return "± is the sample standard deviation over a variant's seeds. " if several else ""


# ---------------------------------------------------------------------------------------------------------------- the tables

def results_table(comparison):
    rows = []
    taught = any(run.kl for run in comparison.runs)
    for variant in comparison.variants:
        results = [stats.run_results(run, comparison.steps, comparison.last) for run in variant.runs]
        best = over_seeds([one.best_val_loss for one in results], 4)
        if len(results) == 1 and results[0].best_val_step is not None:
            best += f" (step {results[0].best_val_step})"
        rows.append([variant.label, str(len(results)),
                     number(results[0].attention_parameters, 0),
                     over_seeds([one.train_loss for one in results], 4),
                     *(over_seeds([getattr(one, key) for one in results], 4) for key in ("train_ce", "train_kl") if taught),
                     over_seeds([one.val_loss for one in results], 4), best,
                     over_seeds([one.val_perplexity for one in results], 3),
                     over_seeds([one.tokens_per_second for one in results], 0)])
    caption = (f"Losses in nats per token, over {range_text(comparison.steps)}. "
               f"Added parameters: those the attention type and its gate add. "
               f"Training loss: mean of each run's last {comparison.last} steps"
               + ("; with a teacher also of its cross-entropy against the data and its divergence from the teacher. " if taught else ". ")
               + "Validation loss and perplexity: at the last evaluation; "
               f"best: the lowest of all evaluations. Tokens per second: median over steps. " + seeds_text(comparison))
    known = [f"{comparison.entropies[split]:.4f} nats ({name})" for split, name in (("train", "training"), ("val", "validation"))
             if split in comparison.entropies]
    if known:
        caption += f"For scale, the {entropy_name(comparison)}: {', '.join(known)}."
    header = ["variant", "runs", "added parameters", f"training loss (last {comparison.last})",
              *(("cross-entropy", "KL from teacher") if taught else ()), "validation loss", "best validation loss", "perplexity",
              "tokens/s"]
    return Table("Results", caption.strip(), header, rows)


def gradient_table(comparison):
    rows = []
    for variant in comparison.variants:
        norms = [stats.values_between(run.steps, run.grad_norm, comparison.grad_steps) for run in variant.runs]
        found = [one for one in map(stats.gradient_statistics, norms) if one is not None]
        digits = 1 if len(found) > 1 else 0
        rows.append([variant.label, " / ".join(str(count) for count in sorted({one.count for one in found})) or NONE,
                     *(over_seeds([getattr(one, key) for one in found], 3) for key in ("mean", "std", "variance")),
                     over_seeds([one.cv for one in found], 2),
                     *(over_seeds([one.spikes[factor] for one in found], digits) for factor in stats.SPIKE_FACTORS)])
    caption = (f"Raw gradient norms g (global L2, before clipping) of {range_text(comparison.grad_steps)}; "
               "count: the finite ones among them. "
               "std and variance are the population's (divided by the count); CV = std / mean; a spike is a step with "
               "g > median(g) + k MAD(g), MAD(g) = median(|g - median(g)|), unscaled. " + seeds_text(comparison))
    header = ["variant", "count", "mean", "std", "variance", "CV", *(f"spikes, k = {factor}" for factor in stats.SPIKE_FACTORS)]
    return Table("Gradient norm", caption.strip(), header, rows)


def difference_table(comparison):
    """Paired differences from baseline, or None where no variant has a baseline to be paired with."""
    rows = []
    for variant in comparison.variants:
        baseline = stats.baseline_of(variant, comparison.variants)
        pairs = stats.paired_runs(variant, baseline) if baseline else []
        if not pairs:
            continue
        results = [stats.common_results(*pair, comparison.steps, comparison.last) for pair in pairs]
        cells = [with_spread(*stats.mean_and_error([gap(getattr(run, key), getattr(base, key)) for run, base in results]), digits)
                 for key, digits in (("train_loss", 4), ("val_loss", 4), ("best_val_loss", 4), ("val_perplexity", 3))]
        rows.append([variant.label, str(len(pairs)), *(cell if cell.startswith(("-", NONE)) else "+" + cell for cell in cells)])
    if not rows:
        return None
    caption = ("Each run minus the baseline run with the same seed, both cut to the steps and evaluations that both have; "
               "below zero is better than baseline. The columns are those of the results. "
               + ("± is the standard error of the mean over seeds." if any(row[1] != "1" for row in rows)
                  else "With one seed there is no telling a difference from noise: run several."))
    header = ["variant", "pairs", f"training loss (last {comparison.last})", "validation loss", "best validation loss", "perplexity"]
    return Table("Paired differences from baseline", caption, header, rows)


def gap(value, base):
    return None if value is None or base is None else value - base


# What the attention did, a column each where a variant has it: (field, header, digits).
ATTENTION_COLUMNS = (("logit_mean", "mean logit", 3), ("logit_rms", "RMS logit", 3), ("first_token_weight", "first token", 4),
                     ("entropy", "entropy", 3), ("row_sum_mean", "row sum", 4), ("row_sum_std", "row sum std", 4),
                     ("sink_mass", "sink mass", 4), ("alpha_mean", "alpha", 4), ("alpha_std", "alpha std", 4), ("gate_mean", "gate", 4))


def attention_table(comparison):
    """The last diagnostics of each variant, means over layers; None where no run has any."""
    columns = [column for column in ATTENTION_COLUMNS
               if any(stats.last_diagnostics(variant, column[0], comparison.steps) for variant in comparison.variants)]
    rows = []
    for variant in comparison.variants:
        found = stats.last_diagnostics(variant, "logit_mean", comparison.steps)
        if not found:
            continue
        cells = []
        for name, _, digits in columns:
            curves = [stats.combine([stats.layer_mean_series(run, name)], (found[0], found[0])).values for run in variant.runs]
            cells.append(over_seeds([curve[0] if curve else None for curve in curves], digits))
        rows.append([variant.label, str(found[0]), *cells])
    if not rows:
        return None
    caption = ("Means over layers, at the last step whose diagnostics were logged, over all queries of its training batch. Logits are "
               "q.k / sqrt(D); first token: the effective weight on it; entropy (nats) is the softmax's own, a sink counted as an outcome; "
               "row sum: the sum of a query's effective weights, std its deviation over queries within a layer. " + seeds_text(comparison))
    return Table("What the attention did", caption.strip(), ["variant", "step", *(header for _, header, _ in columns)], rows)


def runs_table(comparison):
    rows = []
    for variant in comparison.variants:
        options = ", ".join(f"{option_name(variant, key)} {show(value)}" for key, value in variant.options.items()
                            if key not in ("attention.type", "attention.gate"))
        for run in variant.runs:
            first = {key: " then ".join(map(str, run.start_values(key))) or NONE
                     for key in ("version", "device", "dtype", "threads", "initial_weights")}
            rows.append([run.path, variant.label, options or NONE, str(run.seed), str(run.steps[-1]), "yes" if run.end else "no",
                         str(len(run.bad_steps)), first["version"], first["dtype"], first["device"], first["threads"],
                         first["initial_weights"]])
    return Table("Runs", "The run directories compared, as their config.json and start events describe them.",
                 ["run", "variant", "attention options", "seed", "last step", "complete", "bad steps", "version", "dtype", "device",
                  "threads", "initial shared weights"], rows, (0, 1, 2, 5, 7, 8, 9, 11))


def make_tables(comparison):
    tables = [results_table(comparison), difference_table(comparison), gradient_table(comparison), attention_table(comparison)]
    return [table for table in tables if table is not None]


# ---------------------------------------------------------------------------------------------------------------- as text

def text_table(table):
    """Columns padded to their widest cell, for a terminal."""
    widths = [max(map(len, column)) for column in zip(table.header, *table.rows)]
    lines = []
    for row in [table.header] + table.rows:
        cells = [cell.ljust(width) if index in table.text_columns else cell.rjust(width)
                 for index, (cell, width) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([f"{table.title}", *lines])


# ---------------------------------------------------------------------------------------------------------------- as Markdown

def markdown_cell(text):
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def markdown_table(table):
    def line(cells):
        return "| " + " | ".join(markdown_cell(cell) for cell in cells) + " |"
    rule = "|" + "|".join(" --- " if index in table.text_columns else " ---: " for index in range(len(table.header))) + "|"
    return "\n".join([f"## {table.title}", "", line(table.header), rule, *map(line, table.rows), "", table.caption])


def verdict(comparison):
    """One sentence on whether the comparison is fair."""
    warnings = sum(finding.level == WARNING for finding in comparison.findings)
    if warnings:
        return (f"These runs are not known to differ in attention and seed alone ({warnings} warning{'s' if warnings > 1 else ''}): "
                "what the figures show need not be the attention's doing.")
    if len(comparison.runs) == 1:
        return "One run: there is nothing to compare it with."
    return ("The runs differ in attention and seed only, as far as their configs and start events tell: shared initial weights, data, "
            "model, batch, optimizer, schedule, dtype and code version agree.")


def markdown_report(comparison, tables):
    blocks = ["# Comparison", ("**Warning.** " if has_warnings(comparison) else "") + verdict(comparison)]
    for level, title in ((WARNING, "Warnings"), (NOTE, "Notes")):
        found = [finding for finding in comparison.findings if finding.level == level]
        if found:
            blocks.append(f"{title}:\n\n" + "\n".join(f"- {markdown_text(finding.text)}" for finding in found))
    blocks += [markdown_table(table) for table in tables + [runs_table(comparison)]]
    return "\n\n".join(blocks) + "\n"


def markdown_text(text):
    """Names with underscores and stars must not turn into emphasis."""
    for character in "\\`*_<":
        text = text.replace(character, "\\" + character)
    return text


def has_warnings(comparison):
    return any(finding.level == WARNING for finding in comparison.findings)


# ---------------------------------------------------------------------------------------------------------------- as HTML

PAGE_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; color: #1a1a1a; background: #fff;
       max-width: 64rem; margin: 2rem auto 4rem; padding: 0 1.25rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
.verdict { border-left: 4px solid #009e73; background: #eef8f4; padding: .7rem 1rem; margin: 1rem 0; }
.warnings { border-left: 6px solid #b3261e; background: #fdeceb; padding: .8rem 1rem; margin: 1rem 0; }
.warnings strong { color: #8c1d18; } .notes { border-left: 4px solid #b8860b; background: #fdf8ea; padding: .7rem 1rem; margin: 1rem 0; }
ul { margin: .4rem 0 0; padding-left: 1.2rem; } li { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums; width: 100%; }
thead th { border-top: 1.5px solid #1a1a1a; border-bottom: 1px solid #1a1a1a; vertical-align: bottom; }
tbody tr:last-child td { border-bottom: 1.5px solid #1a1a1a; }
th, td { padding: .3rem .6rem; text-align: right; } th.text, td.text { text-align: left; }
td.number { white-space: nowrap; } td.long { min-width: 12rem; }
figure { margin: 1.2rem 0 2rem; } figure img { width: 100%; max-width: 52rem; display: block; margin: 0 auto; }
figcaption, .caption { font-size: .85rem; color: #444; max-width: 52rem; margin: .5rem auto 0; } .caption { margin-left: 0; }
code { font-size: .85em; overflow-wrap: anywhere; } footer { margin-top: 3rem; font-size: .85rem; color: #555; }
@media print { body { margin: 0; max-width: none; } figure, table { break-inside: avoid; } }
"""


def html_table(table):
    def kind(index, cell=""):
        return ("text" if index in table.text_columns else "number") + (" long" if len(cell) > 24 else "")
    head = "".join(f'<th scope="col" class="{kind(index)}">{html.escape(cell)}</th>' for index, cell in enumerate(table.header))
    body = "\n".join("<tr>" + "".join(f'<td class="{kind(index, cell)}">{html.escape(cell)}</td>' for index, cell in enumerate(row))
                     + "</tr>" for row in table.rows)
    return (f'<section>\n<h2>{html.escape(table.title)}</h2>\n<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
            f'<tbody>\n{body}\n</tbody>\n</table></div>\n<p class="caption">{html.escape(table.caption)}</p>\n</section>')


def html_figure(comparison, figure, order, folder):
    with open(os.path.join(folder, f"{figure.name}.png"), "rb") as file:
        picture = base64.b64encode(file.read()).decode("ascii")
    caption = html.escape(figure.caption(comparison))
    return (f'<figure>\n<img alt="{html.escape(figure.title)}" src="data:image/png;base64,{picture}">\n'
            f'<figcaption><b>Figure {order}. {html.escape(figure.title)}.</b> {caption} '
            f'(<code>{figure.name}.png</code>, <code>.svg</code>)</figcaption>\n</figure>')


def html_findings(comparison):
    def items(level):
        return "\n".join(f"<li>{html.escape(finding.text)}</li>" for finding in comparison.findings if finding.level == level)
    blocks = []
    if has_warnings(comparison):
        blocks.append(f'<div class="warnings" role="alert"><strong>Warning.</strong> {html.escape(verdict(comparison))}\n'
                      f'<ul>\n{items(WARNING)}\n</ul></div>')
    else:
        blocks.append(f'<p class="verdict">{html.escape(verdict(comparison))}</p>')
    if items(NOTE):
        blocks.append(f'<div class="notes"><b>Notes</b>\n<ul>\n{items(NOTE)}\n</ul></div>')
    return "\n".join(blocks)


def html_report(comparison, tables, figures, folder):
    """One page with everything inside it: no request leaves it."""
    shown = [figure for figure in figures if figure.in_report]
    labels = " · ".join(variant.label for variant in comparison.variants)
    blocks = [html_table(table) for table in tables[:1]]
    numbered = list(enumerate(shown, 1))
    for section in dict.fromkeys(figure.section for figure in shown):
        figures = "\n".join(html_figure(comparison, figure, order, folder) for order, figure in numbered if figure.section == section)
        blocks.append(f"<section>\n<h2>{html.escape(section)}</h2>\n{figures}\n</section>")
    blocks += [html_table(table) for table in tables[1:] + [runs_table(comparison)]]
    body = "\n".join(blocks)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Comparison: {html.escape(labels)}</title>
<style>{PAGE_STYLE}</style>
</head>
<body>
<h1>Comparison of {len(comparison.runs)} run{'s' if len(comparison.runs) != 1 else ''}</h1>
<p>{html.escape(labels)}</p>
{html_findings(comparison)}
{body}
<footer>Made by <code>{html.escape(comparison.command)}</code></footer>
</body>
</html>
"""


def write_text(path, text):
    """Whole or not at all: under another name first, then renamed."""
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)
