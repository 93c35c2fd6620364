#!/usr/bin/env python3
"""Compares training runs: figures, tables and one self-contained report.html, and a referee's warnings where the runs differ in more than
their attention and their seed.

    scripts/compare.py RUN... --out=DIR

reads RUN/config.json and RUN/metrics.jsonl of every run and writes into DIR

    report.html         everything on one page, pictures inside
    tables.md           warnings and tables in Markdown
    NAME.png NAME.svg   each figure; overview puts the four main ones on one page

Exit status: 0; 1 if the output cannot be written or matplotlib is missing; 2 for bad usage or input.

The work is done in modules beside this file: compare_runs (reading, variants), compare_referee (warnings), compare_statistics (numbers),
compare_figures (colours, drawing, captions), compare_diagnostics (figures of what the attention did), compare_report (tables and pages).
A figure is added as an entry of compare_figures.FIGURES or compare_diagnostics.DIAGNOSTIC_FIGURES.
"""

import argparse
import math
import os
import re
import shlex
import sys

import compare_statistics as stats
from compare_referee import NOTE, WARNING, Finding, check
from compare_runs import CompareError, make_variants, read_entropies, read_runs


def step_range(text):
    """A:B, both ends included, either of them left out for the first or last step."""
    match = re.fullmatch(r"(\d*):(\d*)", text)
    if not match or text == ":":
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of steps A:B, A: or :B")
    first, last = int(match[1] or 0), int(match[2]) if match[2] else math.inf
    if first > last:
        raise argparse.ArgumentTypeError(f"{text!r} begins after its end")
    return first, last


def count(text):
    """A positive integer."""
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 1 up")
    return int(text)


def nats(text):
    """A positive finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def parse_arguments(argv):
    parser = argparse.ArgumentParser(prog="compare.py", allow_abbrev=False, description="Compare training runs: figures, tables, and "
                                     "warnings where they differ in more than attention and seed.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory, with config.json and metrics.jsonl; runs that differ "
                        "in their seed alone become one curve with a band")
    parser.add_argument("--out", required=True, metavar="DIR", help="where report.html, tables.md and the figures go; made if missing")
    parser.add_argument("--steps", type=step_range, default=(0, math.inf), metavar="A:B",
                        help="steps that figures and tables are over, both ends included (default: all)")
    parser.add_argument("--zoom", type=step_range, metavar="A:B",
                        help="steps of the enlargement (default: the last quarter of those all runs have)")
    parser.add_argument("--grad-steps", type=step_range, default=(0, 500), metavar="A:B",
                        help="steps of the gradient-norm statistics, whatever --steps says (default: 0:500)")
    parser.add_argument("--smooth", type=count, metavar="N", help="width in steps of the centred mean that is drawn strong; made odd; "
                        "1 for none (default: a twenty-fifth of the steps, at most 101)")
    parser.add_argument("--last", type=count, default=50, metavar="N",
                        help="the final training loss is the mean of the last N steps (default: 50)")
    parser.add_argument("--log-x", action="store_true", help="log axis for steps, but for the enlargement")
    parser.add_argument("--log-y", action="store_true", help="log axis for losses and gradient norm")
    parser.add_argument("--entropy", type=nats, metavar="NATS", help="draw this loss as the entropy of byte frequencies (default: what "
                        "prepare.json beside the shards says, where there is one)")
    return parser.parse_args(argv)


def drawn_range(runs, wanted, log_x):
    """The wanted range cut to the steps there are, evaluations included; a log axis has no place for step 0.

    Every run must have a step in it.
    """
    for run in runs:
        if not stats.values_between(run.steps, run.steps, wanted):
            last = "" if wanted[1] == math.inf else wanted[1]
            raise CompareError(f"--steps={wanted[0]}:{last}: {run.path} has no step in this range; "
                               f"its steps are {run.steps[0]} to {run.steps[-1]}")
    steps = [step for run in runs for step in run.steps + run.eval_steps]
    first = 1 if log_x else 0
    return max(wanted[0], min(steps), first), min(wanted[1], max(steps))


def zoom_range(runs, steps, wanted):
    """The enlarged steps: those asked for, or the last quarter of the steps drawn that all runs have."""
    if wanted is None:
        last = max(steps[0], min([steps[1]] + [run.steps[-1] for run in runs]))
        return last - (last - steps[0]) // 4, last
    zoom = max(wanted[0], steps[0]), min(wanted[1], steps[1])
    if zoom[0] >= zoom[1]:
        raise CompareError(f"--zoom: nothing to enlarge: the steps drawn are {steps[0]} to {steps[1]}")
    return zoom


def smoothing_width(steps, wanted):
    width = wanted if wanted is not None else min(101, max(1, (steps[1] - steps[0]) // 25))
    return width | 1


def compare(options, command):
    """Reads, checks, draws and writes; returns (comparison, tables)."""
    runs = read_runs(options.runs)
    steps = drawn_range(runs, options.steps, options.log_x)
    zoom = zoom_range(runs, steps, options.zoom)
    variants = make_variants(runs)
    grad_steps = options.grad_steps
    if grad_steps[1] == math.inf:
        grad_steps = grad_steps[0], max(run.steps[-1] for run in runs)
    findings = check(runs, variants, grad_steps)
    if options.entropy is not None:
        entropies = {"train": options.entropy, "val": options.entropy}
    else:
        entropies, notes = read_entropies(runs)
        findings += [Finding(NOTE, note) for note in notes]

    from compare_figures import FIGURES, Comparison, write_figures      # late, so that bad input is named even where matplotlib is missing
    from compare_diagnostics import DIAGNOSTIC_FIGURES
    import compare_report
    comparison = Comparison(runs, variants, findings, entropies, steps, grad_steps, zoom, smoothing_width(steps, options.smooth),
                            options.last, options.log_x, options.log_y, command)
    tables = compare_report.make_tables(comparison)
    os.makedirs(options.out, exist_ok=True)
    figures = write_figures(comparison, options.out, FIGURES + DIAGNOSTIC_FIGURES)
    compare_report.write_text(os.path.join(options.out, "tables.md"), compare_report.markdown_report(comparison, tables))
    compare_report.write_text(os.path.join(options.out, "report.html"),
                              compare_report.html_report(comparison, tables, figures, options.out))
    return comparison, tables


def print_results(comparison, tables, folder):
    from compare_figures import entropy_name
    from compare_report import text_table
    for finding in comparison.findings:
        print(f"compare.py: {'WARNING' if finding.level == WARNING else 'note'}: {finding.text}", file=sys.stderr)
    sys.stderr.flush()
    for index, table in enumerate(tables):
        print(text_table(table) + "\n")
        if index == 0 and comparison.entropies:
            known = ", ".join(f"{name} {comparison.entropies[split]:.4f}" for split, name in (("train", "training"), ("val", "validation"))
                              if split in comparison.entropies)
            print(f"{entropy_name(comparison)} (nats): {known}\n")
    print(f"report: {os.path.join(folder, 'report.html')}")


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")        # a terminal without the sign ± still gets its table
    options = parse_arguments(argv)
    try:
        if os.path.exists(options.out) and not os.path.isdir(options.out):
            raise CompareError(f"--out={options.out}: is a file; name a directory")
        comparison, tables = compare(options, " ".join(["scripts/compare.py", *map(shlex.quote, argv)]))
    except CompareError as error:
        print(f"compare.py: error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"compare.py: error: Python module {error.name} is missing; run scripts/setup.sh, then .venv/bin/python scripts/compare.py",
              file=sys.stderr)
        return 1
    except OSError as error:
        print(f"compare.py: error: {error.filename or options.out}: {error.strerror}", file=sys.stderr)
        return 1
    try:
        print_results(comparison, tables, options.out)
        sys.stdout.flush()
    except BrokenPipeError:         # the reader had enough, as head does; all files are written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
