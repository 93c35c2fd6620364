"""Tests of scripts/compare.py on run directories made here: statistics against values worked out by hand, a warning for each kind of
difference, seeds, broken input, and what is written."""

import contextlib
import copy
import io
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest
from html.parser import HTMLParser
from unittest import mock

SCRIPTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scripts")
sys.path.insert(0, SCRIPTS)

import compare                          # noqa: E402
import compare_diagnostics as diagnostics   # noqa: E402
import compare_figures as figures       # noqa: E402
import compare_referee as referee       # noqa: E402
import compare_runs as runs             # noqa: E402
import compare_statistics as stats      # noqa: E402

DIAGNOSTIC_NAMES = ["logits", "row_sums", "focus", "layer_norms"]       # of every type; the others where a type has what they show
FIGURE_NAMES = ["training_loss", "training_loss_end", "validation_loss", "loss_difference", "gradient_norm", "overview"]

CONFIG = {
    "run_dir": "runs/x", "seed": 1,
    "model": {"arch": "gpt2", "vocab_size": 256, "hidden_size": 128, "rope_scaling": None},
    "attention": {"type": "baseline", "gate": "none", "affine_activation": "linear_clipping", "affine_rho": 0.9, "affine_n": "sequence",
                  "affine_length": 128},
    "data": {"train": "data/train*.bin", "val": "data/val*.bin", "shuffle": True, "tokenizer": None},
    "train": {"steps": 40, "batch_size": 16, "micro_batch_size": 8, "sequence_length": 128},
    "optimizer": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0},
    "schedule": {"type": "wsd", "warmup_steps": 10, "decay_fraction": 0.2, "min_lr_ratio": 0.0},
    "distill": {"teacher": None, "weight": 1.0, "temperature": 1.0},
    "eval": {"every": 10, "batches": 20}, "checkpoint": {"every": 250, "keep": 2}, "sample": {"every": 0},
    "diagnostics": {"every": 10}, "compute": {"threads": 0, "dtype": "fp32", "recompute": "none"},
}
START = {
    "event": "start", "version": "0.1.0 (git abc1234)", "time": "2026-12-01T01:02:03Z", "compiler": "gcc 12.2.0", "device": "a processor",
    "dtype": "fp32", "threads": 2, "processes": 1, "parameters": 854784, "attention_parameters": 0, "flops_per_token": 5.2e6,
    "tokens_per_step": 2048, "initial_weights": "00000000000000aa",
    "shards": [{"split": "train", "path": "data/train_000000.bin", "tokens": 3000000, "hash": "1111111111111111"},
               {"split": "val", "path": "data/val_000000.bin", "tokens": 400000, "hash": "2222222222222222"}],
}


def overlay(base, changes):
    """A deep copy of base with "section.key" changes; a value of ... removes the key."""
    result = copy.deepcopy(base)
    for key, value in changes.items():
        *sections, leaf = key.split(".")
        place = result
        for section in sections:
            place = place[section]
        if value is ...:
            del place[leaf]
        else:
            place[leaf] = value
    return result


def step_event(step, loss=None, grad_norm=None, **more):
    loss = 2.0 + 3.0 / step if loss is None else loss
    grad_norm = 1.0 + 1.0 / step if grad_norm is None else grad_norm
    return {"event": "step", "step": step, "tokens": 2048 * step, "loss": loss, "grad_norm": grad_norm, "lr": 1e-3, "seconds": 0.08,
            "tokens_per_second": 25000 + step, **more}


def eval_event(step, val_loss):
    return {"event": "eval", "step": step, "val_loss": val_loss, "val_perplexity": math.exp(val_loss)}


def layer_event(index, step, kind="baseline", gate="none", shift=0.0, **more):
    """One layer of a diagnostics event: values that are easy to add up by hand."""
    layer = {"layer": index, "logit_mean": index + step / 10 + shift, "logit_rms": 2.0 + index, "first_token_weight": 0.1 * (index + 1),
             "row_sum_mean": 0.5, "row_sum_std": 0.25, "entropy": 3.0 - index + shift, "grad_norm": 1.0 / step + index,
             "param_norm": 10.0 + index,
             "row_sum_histogram": {"first": 0.0, "width": 0.25, "counts": [0, 1 + index, 2, 1 - index, 0]}}
    if kind in ("sink", "off_by_one"):
        layer["sink_mass"] = 0.05 + index / 100
    if kind == "affine":
        layer.update(alpha_mean=0.4 + shift, alpha_std=0.1, alpha_at_0=0.01, alpha_at_1=0.02, alpha_ma=0.3,
                     alpha_histogram={"first": 0.25, "width": 0.5, "counts": [3, 1]})
    if gate != "none":
        layer["gate_mean"] = 0.45
    return {**layer, "heads": {"logit_mean": [0.0, 1.0]}, **more}


def diagnostics_event(step, kind="baseline", layers=2, **more):
    return {"event": "diagnostics", "step": step, "layers": [layer_event(index, step, kind, **more) for index in range(layers)]}


def setUpModule():
    figures.DOTS_PER_INCH = 40          # small pictures are as good here, and quick


class Case(unittest.TestCase):
    """A temporary folder to make runs in, and compare.py called within this process."""

    def setUp(self):
        self.new_folder()

    def new_folder(self):
        """Starts in an empty folder again, as subtests do."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = os.path.join(self.folder, "out")

    def make_run(self, name, kind="baseline", config=None, start=None, steps=40, shift=0.0, events=None, end=True, tail=""):
        """Writes a run directory; events replaces the steps and evaluations; tail is appended as it is."""
        path = os.path.join(self.folder, name)
        os.makedirs(path)
        whole = overlay(CONFIG, {"run_dir": name, "attention.type": kind, **(config or {})})
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
            json.dump(whole, file)
        lines = [overlay(START, {"initial_weights": f"weights of seed {whole['seed']}", **(start or {})})]
        if events is None:
            events = [eval_event(0, 5.5 + shift)]
            for step in range(1, steps + 1):
                events.append(step_event(step, loss=2.0 + 3.0 / step + shift))
                if step % 10 == 0:
                    events.append(eval_event(step, 2.1 + 3.0 / step + shift))
        lines += events
        if end:
            lines.append({"event": "end", "step": steps})
        with open(os.path.join(path, "metrics.jsonl"), "w", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines) + tail)
        return path

    def make_pair(self, **differences):
        """A baseline and an affine run that differs in `differences` too."""
        return [self.make_run("baseline"), self.make_run("affine", "affine", **differences)]

    def findings(self, paths, grad_steps=(0, 40)):
        read = runs.read_runs(paths)
        found = referee.check(read, runs.make_variants(read), grad_steps)
        return ([finding.text for finding in found if finding.level == referee.WARNING],
                [finding.text for finding in found if finding.level == referee.NOTE])

    def call(self, *arguments):
        """(status, stdout, stderr) of compare.main."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = compare.main(list(arguments))
            except SystemExit as leaving:
                status = leaving.code
        return status, out.getvalue(), err.getvalue()

    def read_out(self, name):
        with open(os.path.join(self.out, name), encoding="utf-8") as file:
            return file.read()


# ---------------------------------------------------------------------------------------------------------------- numbers

class Statistics(unittest.TestCase):
    def test_gradient_statistics_by_hand(self):
        # mean 22; squared deviations 441, 400, 361, 324, 6084: sum 7610; median 3; |g - 3| = 2, 1, 0, 1, 97, whose median is 1
        found = stats.gradient_statistics([1.0, 2.0, 3.0, 4.0, 100.0])
        self.assertEqual(found.count, 5)
        self.assertAlmostEqual(found.mean, 22.0, places=12)
        self.assertAlmostEqual(found.variance, 1522.0, places=9)
        self.assertAlmostEqual(found.std, 39.01281840626232, places=12)
        self.assertAlmostEqual(found.cv, 1.773309927557378, places=12)
        self.assertEqual(found.spikes, {6: 1, 9: 1})

    def test_spikes_are_strictly_above(self):
        # median 10 and MAD 1, so that k = 6 needs more than 16 and k = 9 more than 19
        norms = [9, 9, 9, 10, 10, 10, 11, 11, 11, 16, 16.01]      # deviations 1 1 1 0 0 0 1 1 1 6 6.01
        self.assertEqual(stats.gradient_statistics(norms).spikes, {6: 1, 9: 0})
        norms = [9, 9, 9, 10, 10, 10, 11, 11, 19, 19.01, 16]      # deviations 1 1 1 0 0 0 1 1 9 9.01 6
        self.assertEqual(stats.gradient_statistics(norms).spikes, {6: 2, 9: 1})

    def test_constant_norms_and_gaps(self):
        found = stats.gradient_statistics([2.0, None, 2.0, 2.0])
        self.assertEqual((found.count, found.mean, found.variance, found.cv, found.spikes), (3, 2.0, 0.0, 0.0, {6: 0, 9: 0}))
        self.assertIsNone(stats.gradient_statistics([None, None]))

    def test_step_range_is_inclusive(self):
        self.assertEqual(stats.values_between([1, 2, 3, 4], [10, 20, 30, 40], (2, 3)), [20, 30])
        self.assertEqual(stats.values_between([1, 2, 3, 4], [10, 20, 30, 40], (0, math.inf)), [10, 20, 30, 40])

    def test_smoothing(self):
        # width 3: the first value alone, then three, at the end the two that are left
        self.assertEqual(stats.smooth([3.0, 6.0, 0.0, 9.0], 3), [3.0, 3.0, 5.0, 4.5])
        self.assertEqual(stats.smooth([1.0, 2.0, 3.0, 4.0, 10.0, 6.0], 5), [1.0, 2.0, 4.0, 5.0, 5.75, 20 / 3])
        self.assertEqual(stats.smooth([1.0, None, 3.0], 3), [1.0, None, 3.0])       # a gap stays one and does not spread
        self.assertEqual(stats.smooth([5.0, 1.0], 1), [5.0, 1.0])
        self.assertEqual(stats.smooth([1.0, 1e30, 1.0, 1.0, 1.0], 3)[-1], 1.0)      # a huge value is forgotten again

    def test_seeds_combine_to_mean_and_sample_deviation(self):
        curve = stats.combine([([1, 2, 3], [1.0, 5.0, 9.0]), ([1, 2], [3.0, 5.0]), ([0, 1, 2], [7.0, 8.0, None])], (0, 10))
        self.assertEqual(curve.steps, [1, 2])
        self.assertEqual(curve.values, [4.0, None])
        self.assertAlmostEqual(curve.spread[0], math.sqrt(13))      # deviations -3, -1, 4: (9 + 1 + 16) / 2
        self.assertIsNone(curve.spread[1])
        self.assertIsNone(stats.combine([([1], [1.0])], (0, 10)).spread)

    def test_mean_std_and_error_over_seeds(self):
        self.assertEqual(stats.mean_and_std([1.0]), (1.0, None))
        self.assertEqual(stats.mean_and_std([None]), (None, None))
        average, std = stats.mean_and_std([2.0, 4.0, 9.0])          # deviations -3, -1, 4
        self.assertEqual(average, 5.0)
        self.assertAlmostEqual(std, math.sqrt(13))
        self.assertAlmostEqual(stats.mean_and_error([2.0, 4.0, 9.0])[1], math.sqrt(13 / 3))


class RunNumbers(Case):
    def test_results_of_a_run(self):
        path = self.make_run("a", start={"attention_parameters": 2048, "parameters": 856832}, events=[
            eval_event(0, 5.0), step_event(1, 9.0), step_event(2, 4.0), step_event(3, 2.0), eval_event(3, 1.0), step_event(4, 3.0),
            eval_event(4, 2.0)])
        run = runs.read_run(path)
        found = stats.run_results(run, (0, 4), 2)
        self.assertEqual(found.attention_parameters, 2048)
        self.assertEqual(found.train_loss, 2.5)
        self.assertEqual((found.val_loss, found.best_val_loss, found.best_val_step), (2.0, 1.0, 3))
        self.assertAlmostEqual(found.val_perplexity, 7.38905609893065)
        self.assertEqual(found.tokens_per_second, 25002.5)
        self.assertEqual(stats.run_results(run, (0, 3), 2).train_loss, 3.0)         # the range cuts the end off

    def test_paired_differences_use_common_steps(self):
        base, other = (runs.read_run(path) for path in (
            self.make_run("a", events=[step_event(1, 5.0), step_event(2, 4.0), eval_event(2, 4.0), step_event(3, 1.0), eval_event(3, 1.0)]),
            self.make_run("b", "sink", events=[step_event(1, 5.5), step_event(2, 4.25), eval_event(2, 4.5)])))
        one, two = stats.common_results(other, base, (0, 3), 1)
        self.assertEqual((one.train_loss, two.train_loss, one.val_loss, two.val_loss), (4.25, 4.0, 4.5, 4.0))
        curve = stats.difference_curve([(other, base)], "loss", (0, 3))
        self.assertEqual((curve.steps, curve.values), ([1, 2], [0.5, 0.25]))

    def test_table_values_reach_every_output(self):
        events = [eval_event(0, 5.0)] + [step_event(step, 2.0, [1.0, 2.0, 3.0, 4.0, 100.0][step - 1]) for step in range(1, 6)]
        path = self.make_run("a", events=events + [eval_event(5, 1.5)])
        status, out, _ = self.call(path, f"--out={self.out}")
        self.assertEqual(status, 0)
        row = r"baseline\D+5\D+22\.000\D+39\.013\D+1,522\.000\D+1\.77\D+1\D+1\D"
        for text in (out, self.read_out("tables.md"), re.sub("<[^>]*>", " ", self.read_out("report.html"))):
            self.assertRegex(text, row)
            self.assertRegex(text, r"baseline\D+1\D+0\D+2\.0000\D+1\.5000\D+1\.5000 \(step 5\)\D+4\.482\D+25,003")
        self.assertIn("divided by the count", self.read_out("tables.md"))

    def test_gradient_steps_option(self):
        path = self.make_run("a", events=[step_event(step, 2.0, float(step)) for step in range(1, 11)])
        _, out, _ = self.call(path, f"--out={self.out}", "--grad-steps=3:5", "--steps=1:8")
        self.assertRegex(out, r"baseline +3 +4\.000 +0\.816 +0\.667 +0\.20 ")       # 3, 4, 5: variance 2/3


# ---------------------------------------------------------------------------------------------------------------- referee

class Referee(Case):
    def assert_one(self, found, pattern):
        matching = [text for text in found if re.search(pattern, text)]
        self.assertEqual(len(matching), 1, f"{pattern} in {found}")

    def test_fair_comparison_is_silent(self):
        pair = self.make_pair(config={"attention.gate": "headwise", "seed": 1, "eval.every": 5, "checkpoint.every": 9,
                                      "diagnostics.every": 0, "sample.every": 3, "compute.recompute": "all"},
                              start={"parameters": 856832, "attention_parameters": 2048, "flops_per_token": 6e6, "time": "later"})
        self.assertEqual(self.findings(pair), ([], []))

    def test_every_config_difference_warns(self):
        for key, value in {"model.hidden_size": 64, "data.shuffle": False, "train.batch_size": 32,
                           "train.sequence_length": 64, "optimizer.lr": 2e-3, "optimizer.beta2": 0.99, "schedule.type": "cosine",
                           "schedule.warmup_steps": 20, "distill.teacher": "runs/teacher", "compute.dtype": "bf16",
                           "optimizer.weight_decay": ...}.items():
            with self.subTest(key=key):
                self.new_folder()
                warnings, notes = self.findings(self.make_pair(config={key: value}))
                self.assert_one(warnings, rf"^different {re.escape(key)}: .+ in baseline; .+ in affine$")
                self.assertEqual(notes, [])
        self.assertIn("different optimizer.weight_decay: 0.1 in baseline; (absent) in affine", warnings)

    def test_nested_config_difference_warns(self):
        warnings, _ = self.findings(self.make_pair(config={"model.rope_scaling": {"factor": 8}}))
        self.assertIn("different model.rope_scaling.factor: (absent) in baseline; 8 in affine", warnings)

    def test_every_start_event_difference_warns(self):
        other_shards = copy.deepcopy(START["shards"])
        other_shards[0]["hash"] = "3333333333333333"
        other_validation = copy.deepcopy(START["shards"])
        other_validation[1]["tokens"] = 5
        for start, pattern in (({"version": "0.1.0 (git fff)"}, r"^different code version: .*abc1234.* in baseline; .*fff.* in affine$"),
                               ({"dtype": "bf16"}, r"^different dtype: fp32 in baseline; bf16 in affine$"),
                               ({"initial_weights": "ff"}, r"^different initial shared weights of seed 1: "),
                               ({"shards": other_shards}, r"^different training data: .*1111111111111111.*; .*3333333333333333"),
                               ({"shards": other_validation}, r"^different validation data: .*400,000 tokens.*; .* 5 tokens"),
                               ({"parameters": 854785}, r"^different number of shared parameters: 854,784 in baseline; 854,785 in a")):
            with self.subTest(start=start):
                self.new_folder()
                warnings, notes = self.findings(self.make_pair(start=start))
                self.assert_one(warnings, pattern)
                self.assertEqual((len(warnings), notes), (1, []))

    def test_modified_source_is_noted(self):
        _, notes = self.findings(self.make_pair(start={"version": "0.1.0 (git abc1234, modified)"}))
        self.assert_one(notes, "^built from a modified source tree.*: affine$")

    def test_what_cannot_be_checked_warns(self):
        warnings, _ = self.findings(self.make_pair(start={"version": ..., "initial_weights": ..., "shards": [], "dtype": ...}))
        for pattern in ("code version cannot", "initial shared weights cannot", "training data cannot", "validation data cannot",
                        "dtype cannot"):
            self.assert_one(warnings, f"^{pattern} be checked: affine ")

    def test_run_without_validation_is_fair(self):
        pair = [self.make_run(name, kind, config={"data.val": None}, start={"shards": START["shards"][:1]})
                for name, kind in (("a", "baseline"), ("b", "sink"))]
        self.assertEqual(self.findings(pair), ([], []))

    def test_lower_grade_notes(self):
        for change, pattern in (({"start": {"device": "a GPU"}}, "^different device"),
                                ({"start": {"compiler": "clang 14"}}, "^different compiler"),
                                ({"start": {"threads": 8}, "config": {"compute.threads": 8}}, "^different number of threads: 2 in"),
                                ({"config": {"compute.threads": 8}}, "^different compute.threads: 0 in baseline; 8 in affine"),
                                ({"start": {"processes": 2}}, "^different number of processes"),
                                ({"config": {"train.micro_batch_size": 4}}, "^different train.micro_batch_size"),
                                ({"config": {"eval.batches": 5}}, "^different eval.batches"),
                                ({"config": {"data.train": "elsewhere/*.bin"}}, "^different data.train"),
                                ({"end": False}, "^affine is not complete: no end event, last step 40 of 40$"),
                                ({"tail": '{"event":"diagnostics","step":40,"lay'}, "metrics.jsonl: line 48, the last, is cut off")):
            with self.subTest(change=change):
                self.new_folder()
                warnings, notes = self.findings(self.make_pair(**change))
                self.assertEqual(warnings, [])
                self.assert_one(notes, pattern)
                self.assertEqual(len(notes), 1, notes)

    def test_different_number_of_steps(self):
        warnings, notes = self.findings(self.make_pair(config={"train.steps": 50}, steps=50))
        self.assertEqual(warnings, [])
        self.assert_one(notes, "^different train.steps: 40 in baseline; 50 in affine")
        self.assert_one(notes, "^different last step: 40 in baseline; 50 in affine")

    def test_learning_rate_as_logged(self):
        events = [step_event(step, lr=1e-3 if step < 33 else 5e-4) for step in range(1, 41)]
        warnings, _ = self.findings(self.make_pair(events=events))
        self.assertEqual(warnings, ["different learning rate as logged, from step 33 on: 0.001 in baseline; 0.0005 in affine"])

    def test_bad_steps(self):
        events = [step_event(step) for step in range(1, 41)]
        events[4].update(loss=None, grad_norm=None, bad=True)
        events[6].update(grad_norm=None, bad=True)
        pair = self.make_pair(events=events)
        _, notes = self.findings(pair)
        self.assert_one(notes, r"^affine has 2 bad steps .*: 5, 7$")
        status, out, _ = self.call(*pair, f"--out={self.out}")
        self.assertEqual(status, 0)
        self.assertRegex(out, r"affine +38 ")
        self.assertIn("Crosses at the top", self.read_out("report.html"))

    def test_resumed_run(self):
        more = {"event": "start", **START, "initial_weights": "weights of seed 1", "resumed_from": 20, "version": "0.2.0 (git 9999999)"}
        events = [step_event(step) for step in range(1, 21)] + [more] + [step_event(step) for step in range(21, 41)]
        warnings, _ = self.findings(self.make_pair(events=events))
        self.assert_one(warnings, "^affine was resumed with another code version: .*abc1234.*, then .*9999999")
        self.assert_one(warnings, "^different code version: ")
        self.new_folder()
        same = dict(more, version=START["version"])
        events[20] = same
        self.assertEqual(self.findings(self.make_pair(events=events)), ([], []))

    def test_seeds_that_do_not_match(self):
        paths = [self.make_run("a", config={"seed": 1}), self.make_run("b", "sink", config={"seed": 2})]
        warnings, notes = self.findings(paths)
        self.assertEqual(warnings, [])      # other seeds have other weights
        self.assert_one(notes, "not run with the same seeds.*: 1 in baseline; 2 in sink$")

    def test_too_few_steps_for_gradient_statistics(self):
        _, notes = self.findings(self.make_pair(), (0, 500))
        self.assert_one(notes, "^baseline has 40 of the 500 steps 1 to 500 ")

    def test_warnings_are_prominent(self):
        status, _, err = self.call(*self.make_pair(start={"version": "0.1.0 (git <b>)"}), f"--out={self.out}")
        self.assertEqual(status, 0)
        self.assertRegex(err, "(?m)^compare.py: WARNING: different code version: ")
        self.assertRegex(self.read_out("tables.md"), r"(?s)^# Comparison\s+\*\*Warning\.\*\*.*- different code version: .*## Results")
        report = self.read_out("report.html")
        self.assertLess(report.index('class="warnings"'), report.index("<h2>"))
        self.assertIn("git &lt;b&gt;", report)
        self.assertNotIn("git <b>", report)


# ---------------------------------------------------------------------------------------------------------------- variants

class Variants(Case):
    def variants(self, paths):
        return runs.make_variants(runs.read_runs(paths))

    def test_seeds_are_one_variant(self):
        paths = [self.make_run(f"{kind}-{seed}", kind, config={"seed": seed}, shift=shift * seed)
                 for kind, shift in (("affine", 0.1), ("baseline", 0.0)) for seed in (1, 2, 3)]
        found = self.variants(paths)
        self.assertEqual([(variant.label, variant.seeds) for variant in found], [("baseline", [1, 2, 3]), ("affine", [1, 2, 3])])
        self.assertEqual(self.findings(paths), ([], []))
        status, out, _ = self.call(*paths, f"--out={self.out}", "--last=1")
        self.assertEqual(status, 0)
        # affine's last losses are 2.075 + 0.1, + 0.2, + 0.3
        self.assertRegex(out, r"affine +3 +0 +2\.2750 ± 0\.1000 +2\.3750 ± 0\.1000")
        self.assertRegex(out, r"affine +3 +\+0\.2000 ± 0\.0577 +\+0\.2000 ± 0\.0577")       # 0.1 / sqrt(3)
        report = self.read_out("report.html")
        self.assertIn("band of one sample standard deviation over seeds", report)
        self.assertIn("standard error of the mean over seeds", report)

    def test_unused_options_do_not_split(self):
        paths = [self.make_run("a", config={"seed": 1, "attention.affine_rho": 0.5}), self.make_run("b", config={"seed": 2}),
                 self.make_run("c", "affine", config={"attention.affine_n": "prefix", "attention.affine_length": 64, "seed": 1}),
                 self.make_run("d", "affine", config={"attention.affine_n": "prefix", "seed": 2})]
        self.assertEqual([(variant.label, variant.seeds) for variant in self.variants(paths)], [("baseline", [1, 2]), ("affine", [1, 2])])

    def test_labels_tell_variants_apart(self):
        paths = [self.make_run("a"), self.make_run("b", "affine"),
                 self.make_run("c", "affine", config={"attention.affine_activation": "sigmoid"}),
                 self.make_run("d", "affine", config={"attention.gate": "elementwise"})]
        self.assertEqual([variant.label for variant in self.variants(paths)],
                         ["baseline", "affine, activation=linear_clipping", "affine, activation=sigmoid",
                          "affine + elementwise gate, activation=linear_clipping"])
        paths = [self.make_run(f"lr{rate}", config={"optimizer.lr": rate}) for rate in (1e-3, 3e-3)]
        self.assertEqual([variant.label for variant in self.variants(paths)], ["baseline, lr=0.001", "baseline, lr=0.003"])
        paths = [self.make_run("wsd"), self.make_run("cosine", config={"schedule.type": "cosine"})]
        self.assertEqual([variant.label for variant in self.variants(paths)],
                         ["baseline, schedule.type=wsd", "baseline, schedule.type=cosine"])

    def test_same_seed_twice_is_not_averaged(self):
        paths = [self.make_run("old"), self.make_run("new")]
        self.assertEqual([variant.label for variant in self.variants(paths)], ["baseline, old", "baseline, new"])
        self.assertRegex(self.findings(paths)[1][0], "same seed are drawn one by one, not averaged: old, new")

    def test_baseline_is_the_one_with_the_same_settings(self):
        paths = [self.make_run(f"{kind}{rate}", kind, config={"optimizer.lr": rate}) for kind in ("baseline", "sink")
                 for rate in (1e-3, 3e-3)]
        found = self.variants(paths)
        self.assertIs(stats.baseline_of(found[3], found), found[1])
        self.assertIsNone(stats.baseline_of(found[0], found))
        self.assertIsNone(stats.baseline_of(found[2], found[1:]))

    def test_styles(self):
        kinds = [(kind, gate) for kind in runs.ATTENTION_TYPES for gate in runs.GATES]
        found = self.variants([self.make_run(f"{kind}-{gate}", kind, config={"attention.gate": gate}) for kind, gate in kinds])
        styles = figures.make_styles(found)
        self.assertEqual(len({(style.colour, str(style.line)) for style in styles}), len(kinds))
        self.assertEqual(set(figures.COLOURS), set(runs.ATTENTION_TYPES))
        affine = [style for variant, style in zip(found, styles) if variant.attention_type == "affine"]
        self.assertEqual(len({style.colour for style in affine}), 1)
        alone = figures.make_styles([variant for variant in found if variant.attention_type == "affine"])
        self.assertEqual(alone[0].colour, affine[0].colour)         # whatever else is drawn
        sweep = self.variants([self.make_run(f"lr{rate}", config={"optimizer.lr": rate}) for rate in (1e-3, 2e-3, 3e-3)])
        self.assertEqual(len({(style.colour, style.marker) for style in figures.make_styles(sweep)}), 3)

    def test_names_are_short_and_distinct(self):
        self.assertEqual(runs.distinct_names(["x/a", "x/b/"]), ["a", "b"])
        self.assertEqual(runs.distinct_names(["x/a", "y/a"]), ["x/a", "y/a"])


# ---------------------------------------------------------------------------------------------------------------- diagnostics

class Diagnostics(Case):
    """Runs of 40 steps that look at the attention at steps 10, 20, 30 and 40."""

    def make_diagnosed(self, name, kind="baseline", config=None, teacher=False, last=40, **more):
        """more: of layer_event."""
        events = []
        for step in range(1, last + 1):
            events.append(step_event(step, **({"ce": 3.0, "kl": 2.0 / step, "teacher_entropy": 1.0} if teacher else {})))
            if step % 10 == 0:
                events.append(diagnostics_event(step, kind, **more))
        return self.make_run(name, kind, config, events=events)

    def compared(self, *arguments):
        """The comparison and its tables by title; no picture is written, for they take long."""
        with mock.patch.object(figures, "write_figures", return_value=[]):
            comparison, tables = compare.compare(compare.parse_arguments([*arguments, f"--out={self.out}"]), "")
        return comparison, {table.title: table for table in tables}

    def figure(self, name):
        (found,) = [figure for figure in figures.FIGURES + diagnostics.DIAGNOSTIC_FIGURES if figure.name == name]
        return found

    def draw(self, comparison, name):
        """The axes of one figure."""
        canvas = figures.draw_figure(comparison, self.figure(name))
        self.addCleanup(figures.pyplot.close, canvas)
        return canvas.axes

    def curve(self, axes, place=0):
        line = axes.get_lines()[place]
        return [round(value, 9) for value in line.get_xdata()], [round(value, 9) for value in line.get_ydata()]

    def test_means_over_layers_and_steps(self):
        run = runs.read_run(self.make_diagnosed("a"))
        steps, values = stats.layer_mean_series(run, "logit_mean")
        self.assertEqual(steps, [10, 20, 30, 40])
        self.assertEqual(values, [1.5, 2.5, 3.5, 4.5])              # of layers 0 and 1: step/10 and step/10 + 1
        self.assertEqual(stats.metric_series(run, "layers.entropy"), ([10, 20, 30, 40], [2.5] * 4))
        self.assertEqual(stats.layer_mean_series(run, "sink_mass"), ([], []))
        (variant,) = runs.make_variants([run])
        curve = stats.layer_curve(variant, "logit_mean", (0, 35))
        self.assertEqual((curve.steps, curve.values), ([0, 1], [3.0, 4.0]))         # the last step in range is 30
        curve = stats.layer_curve(variant, "grad_norm", (0, 40), stats.median)      # 1/10, 1/20, 1/30, 1/40: median of the middle two
        self.assertAlmostEqual(curve.values[0], (1 / 20 + 1 / 30) / 2)
        self.assertAlmostEqual(curve.values[1], 1 + (1 / 20 + 1 / 30) / 2)
        self.assertEqual(stats.layer_curve(variant, "alpha_mean", (0, 40)).values, [])

    def test_not_finite_is_a_gap(self):
        run = runs.read_run(self.make_diagnosed("a", logit_mean=None))
        self.assertEqual(stats.layer_mean_series(run, "logit_mean"), ([10, 20, 30, 40], [None] * 4))
        comparison, tables = self.compared(run.path)
        self.assertIn("no finite value", [text.get_text() for text in self.draw(comparison, "logits")[0].texts])
        self.assertEqual(tables["What the attention did"].rows[0][2], "–")

    def test_seeds(self):
        paths = [self.make_diagnosed(f"s{seed}", "sink", {"seed": seed}, shift=shift) for seed, shift in ((1, 0.0), (2, 0.1), (3, 0.5))]
        (variant,) = runs.make_variants(runs.read_runs(paths))
        curve = stats.layer_curve(variant, "entropy", (0, 40))
        self.assertAlmostEqual(curve.values[0], 3.2)
        self.assertAlmostEqual(curve.spread[0], math.sqrt(0.07))    # deviations -0.2, -0.1, 0.3: (0.04 + 0.01 + 0.09) / 2
        step, histogram = stats.pooled_histogram(variant, "row_sum_histogram", (0, 40))
        self.assertEqual((step, list(histogram.counts)), (40, [0, 9, 12, 3, 0]))    # three seeds of layers 1 2 1 and 2 2 0
        comparison, tables = self.compared(*paths)
        (axes, _) = self.draw(comparison, "sink_mass")
        self.assertEqual(len(axes.collections), 1)                  # the band
        self.assertRegex(tables["What the attention did"].rows[0][5], r"^2\.700 ± 0\.265$")
        self.assertIn("band of one sample standard deviation over seeds", self.figure("sink_mass").caption(comparison))

    def test_steps_that_seeds_share(self):
        paths = [self.make_diagnosed("a", config={"seed": 1}), self.make_diagnosed("b", config={"seed": 2}, last=29)]
        (variant,) = runs.make_variants(runs.read_runs(paths))
        self.assertEqual(stats.last_diagnostics(variant, "entropy", (0, 40))[0], 20)
        self.assertEqual(stats.layer_curve(variant, "logit_mean", (0, 40)).values, [2.0, 3.0])

    def test_histogram_median(self):
        def median(*counts):
            return stats.histogram_median(runs.Histogram(0.0, 0.5, counts))
        self.assertEqual(median(1, 1), 0.25)                        # where the two bins meet
        self.assertEqual(median(0, 4, 0), 0.5)                      # the middle of its bin
        self.assertEqual(median(1, 0, 3), 0.75 + 0.5 / 3)           # a third into the last
        self.assertIsNone(median(0, 0))

    def test_bins_that_differ_are_not_added_up(self):
        paths = [self.make_diagnosed("a", config={"seed": 1}),
                 self.make_diagnosed("b", config={"seed": 2}, row_sum_histogram={"first": 0.5, "width": 0.25, "counts": [1, 1, 1, 1, 1]})]
        (variant,) = runs.make_variants(runs.read_runs(paths))
        self.assertIsNone(stats.pooled_histogram(variant, "row_sum_histogram", (0, 40)))
        comparison, _ = self.compared(*paths)
        self.assertEqual(len(self.draw(comparison, "row_sums")[0].patches), 0)
        self.assertIn("Triangles", self.figure("row_sums").caption(comparison))

    def test_figures_stand_where_runs_have_what_they_show(self):
        for more, paths in (([], lambda: [self.make_run("a", events=[step_event(step) for step in range(1, 41)])]),
                            (DIAGNOSTIC_NAMES, lambda: [self.make_diagnosed("a")]),
                            (DIAGNOSTIC_NAMES + ["sink_mass"], lambda: [self.make_diagnosed("a", "off_by_one")]),
                            (DIAGNOSTIC_NAMES + ["alpha"], lambda: [self.make_diagnosed("a", "affine")]),
                            (DIAGNOSTIC_NAMES + ["alpha", "gate"], lambda: [self.make_diagnosed(
                                "a", "affine", {"attention.gate": "headwise"}, gate="headwise")]),
                            (DIAGNOSTIC_NAMES + ["distillation"], lambda: [self.make_diagnosed("a", teacher=True)])):
            with self.subTest(more=more):
                self.new_folder()
                comparison, _ = self.compared(*paths())
                found = [figure.name for figure in diagnostics.DIAGNOSTIC_FIGURES if figure.applies(comparison)]
                self.assertEqual(sorted(found), sorted(more))

    def test_what_is_drawn(self):
        paths = [self.make_diagnosed("base"), self.make_diagnosed("sunk", "sink"), self.make_diagnosed("scaled", "affine")]
        comparison, _ = self.compared(*paths, "--steps=1:35")
        mean, rms = self.draw(comparison, "logits")
        self.assertEqual(len(mean.get_lines()), 3)
        self.assertEqual(self.curve(mean), ([10, 20, 30], [1.5, 2.5, 3.5]))
        self.assertEqual(self.curve(rms), ([10, 20, 30], [2.5] * 3))
        first_layers, first_steps, entropy_layers, entropy_steps = self.draw(comparison, "focus")
        self.assertEqual(self.curve(first_layers), ([0, 1], [0.1, 0.2]))
        self.assertEqual(self.curve(first_steps, 2), ([10, 20, 30], [0.15] * 3))
        self.assertEqual(self.curve(entropy_layers, 1), ([0, 1], [3.0, 2.0]))
        self.assertEqual(self.curve(entropy_steps), ([10, 20, 30], [2.5] * 3))
        layers, _ = self.draw(comparison, "sink_mass")
        self.assertEqual(len(layers.get_lines()), 1)
        self.assertEqual(self.curve(layers), ([0, 1], [0.05, 0.06]))
        _, alphas, over_steps, clipped = self.draw(comparison, "alpha")
        self.assertEqual(self.curve(alphas), ([0, 1], [0.4, 0.4]))
        self.assertEqual([self.curve(over_steps, place)[1] for place in (0, 1)], [[0.4] * 3, [0.3] * 3])
        self.assertEqual([self.curve(clipped, place)[1] for place in (0, 1)], [[0.01] * 3, [0.02] * 3])
        gradient, parameters = self.draw(comparison, "layer_norms")
        self.assertEqual(self.curve(gradient), ([0, 1], [0.05, 1.05]))
        self.assertEqual(self.curve(parameters), ([0, 1], [10, 11]))

    def test_histograms_drawn(self):
        comparison, _ = self.compared(self.make_diagnosed("a", "affine"))
        histogram, _ = self.draw(comparison, "row_sums")
        values, edges, _ = histogram.patches[0].get_data()
        self.assertEqual([round(value, 9) for value in values], [0, 0.375, 0.5, 0.125, 0])      # counts 3, 4, 1 of both layers
        self.assertEqual(list(edges), [-0.125, 0.125, 0.375, 0.625, 0.875, 1.125])
        marks = [line.get_xdata()[0] for line in histogram.get_lines()]
        self.assertEqual(marks, [0.375 + 0.25 / 4, 0.5])            # median: one of four in the second bin; mean: as logged
        values, edges, _ = self.draw(comparison, "alpha")[0].patches[0].get_data()
        self.assertEqual((list(values), list(edges)), ([0.75, 0.25], [0, 0.5, 1]))

    def test_legends_and_captions_name_what_is_shown(self):
        paths = [self.make_diagnosed("base"), self.make_diagnosed("sunk", "sink"), self.make_diagnosed("scaled", "affine", last=30)]
        comparison, _ = self.compared(*paths)
        self.assertEqual([variant.label for variant, _ in self.figure("sink_mass").shows(comparison)], ["sink"])
        legend = self.draw(comparison, "alpha")[0].figure.legends[0]
        self.assertEqual([text.get_text() for text in legend.get_texts()], ["affine"])
        caption = self.figure("sink_mass").caption(comparison)
        self.assertIn("at step 40", caption)
        self.assertIn("Runs: sink (sunk, seed 1).", caption)
        self.assertNotIn("base", caption)
        self.assertIn("each variant's last logged step (30 to 40)", self.figure("row_sums").caption(comparison))

    def test_outermost_bins_are_explained(self):
        beyond = {"first": 0.0, "width": 0.25, "counts": [1, 0, 0, 0, 0]}
        for path, said in ((self.make_diagnosed("a"), False), (self.make_diagnosed("b", row_sum_histogram=beyond), True)):
            comparison, _ = self.compared(path)
            self.assertEqual("outermost bins also hold what lies beyond" in self.figure("row_sums").caption(comparison), said)

    def test_attention_table(self):
        paths = [self.make_diagnosed("base"), self.make_diagnosed("scaled", "affine", {"attention.gate": "headwise"}, gate="headwise")]
        _, tables = self.compared(*paths)
        table = tables["What the attention did"]
        self.assertEqual(table.header, ["variant", "step", "mean logit", "RMS logit", "first token", "entropy", "row sum", "row sum std",
                                        "alpha", "alpha std", "gate"])
        self.assertEqual(table.rows[0], ["baseline", "40", "4.500", "2.500", "0.1500", "2.500", "0.5000", "0.2500", "–", "–", "–"])
        self.assertEqual(table.rows[1][:3] + table.rows[1][-3:], ["affine + headwise gate", "40", "4.500", "0.4000", "0.1000", "0.4500"])
        self.assertIn("## What the attention did\n", self.read_out("tables.md"))
        self.assertNotIn("What the attention did", self.compared(self.make_run("without"))[1])

    def test_teacher(self):
        taught = self.make_diagnosed("taught", teacher=True)
        comparison, tables = self.compared(taught, "--last=1", "--smooth=1")
        self.assertEqual(tables["Results"].header[4:6], ["cross-entropy", "KL from teacher"])
        self.assertEqual(tables["Results"].rows[0][3:6], ["2.0750", "3.0000", "0.0500"])
        for name in ("training_loss", "training_loss_end", "overview"):
            self.assertIn("The training loss is (1 - w) cross-entropy", self.figure(name).caption(comparison))
        ce, kl = self.draw(comparison, "distillation")
        self.assertEqual(set(self.curve(ce)[1]), {3.0})
        self.assertEqual(self.curve(kl)[1], [round(2.0 / step, 9) for step in range(1, 41)])
        self.assertEqual(kl.get_yscale(), "log")                    # it falls by a factor of 40
        plain = self.make_diagnosed("plain", "sink")
        comparison, _ = self.compared(taught, plain)
        self.assertIn("The training loss of runs with a teacher is", self.figure("training_loss").caption(comparison))
        self.assertEqual(len(self.draw(comparison, "distillation")[0].figure.legends[0].get_texts()), 1)
        comparison, tables = self.compared(plain)
        self.assertNotIn("teacher", self.figure("training_loss").caption(comparison) + " ".join(tables["Results"].header))

    def test_report_stays_self_contained(self):
        paths = [self.make_diagnosed("a"), self.make_diagnosed("b", "affine", teacher=True)]
        self.assertEqual(self.call(*paths, f"--out={self.out}", "--log-x", "--log-y")[0], 0)
        written = sorted({name.split(".")[0] for name in os.listdir(self.out)} - {"report", "tables"})
        self.assertEqual(written, sorted(["training_loss", "training_loss_end", "loss_difference", "gradient_norm", "overview",
                                          "distillation", "alpha", *DIAGNOSTIC_NAMES]))
        report = self.read_out("report.html")
        page = References()
        page.feed(report)
        self.assertEqual(len(page.found), len(written) - 1)         # all but the overview
        self.assertTrue(all(reference.startswith("data:image/png;base64,") for reference in page.found))
        places = [report.index(text) for text in ("<h2>Figures</h2>", "Figure 5. Distillation", "<h2>What the attention did</h2>",
                                                  "Figure 6. Attention logits")]
        self.assertEqual(places, sorted(places))

    def test_every_curve_is_within_its_axes(self):
        paths = [self.make_diagnosed(f"{kind}{seed}", kind, {"seed": seed, "attention.gate": "headwise"}, gate="headwise", shift=seed / 9)
                 for kind in ("baseline", "sink", "affine") for seed in (1, 2)]
        comparison, _ = self.compared(*paths)
        for figure in diagnostics.DIAGNOSTIC_FIGURES:
            if not figure.applies(comparison):
                continue
            for axes in self.draw(comparison, figure.name):
                low, high = axes.get_ylim()
                for line in axes.get_lines():
                    if line.get_transform().contains_branch(axes.transData) and line.get_marker() != "v":
                        for value in line.get_ydata():
                            self.assertTrue(low <= value <= high, f"{figure.name}: {value} is outside {low} to {high}")


# ---------------------------------------------------------------------------------------------------------------- input

class BadInput(Case):
    def assert_refused(self, pattern, *arguments):
        status, out, err = self.call(*arguments, f"--out={self.out}")
        self.assertEqual((status, out), (2, ""), err)
        self.assertRegex(err, pattern)
        self.assertFalse(os.path.exists(self.out))

    def test_paths(self):
        self.assert_refused("absent: no such directory", os.path.join(self.folder, "absent"))
        empty = os.path.join(self.folder, "empty")
        os.makedirs(empty)
        self.assert_refused("empty: not a run directory: it has no config.json", empty)
        with open(os.path.join(empty, "config.json"), "w", encoding="utf-8") as file:
            json.dump(CONFIG, file)
        self.assert_refused("empty: not a run directory: it has no metrics.jsonl", empty)
        run = self.make_run("a")
        self.assert_refused("given twice", run, run + "/")

    def test_out_that_is_a_file(self):
        run = self.make_run("a")
        with open(self.out, "w", encoding="utf-8"):
            pass
        status, _, err = self.call(run, f"--out={self.out}")
        self.assertEqual(status, 2)
        self.assertIn("is a file", err)

    def test_runs_without_steps_or_start(self):
        self.assert_refused("metrics.jsonl: no step event", self.make_run("a", events=[eval_event(0, 5.0)]))
        path = self.make_run("b")
        with open(os.path.join(path, "metrics.jsonl"), "w", encoding="utf-8") as file:
            file.write(json.dumps(step_event(1)) + "\n")
        self.assert_refused("metrics.jsonl: no start event", path)

    def test_broken_lines(self):
        good = step_event(2)
        for number, (line, pattern) in enumerate((
                ('{"event":"step","step":2,', "metrics.jsonl:3: not one JSON object"),
                ("[1]", "metrics.jsonl:3: not one JSON object"),
                (json.dumps(dict(good, loss=math.nan)), "metrics.jsonl:3: not one JSON object: NaN is not JSON"),
                ("{}", 'metrics.jsonl:3: no "event" key'),
                (json.dumps(dict(good, loss="x")), 'metrics.jsonl:3: loss: "x" is not a number'),
                (json.dumps({"event": "step", "step": 2, "loss": 1.0}), "metrics.jsonl:3: grad_norm is missing"),
                (json.dumps(dict(good, step=1)), "metrics.jsonl:3: step 1 stands after step 1"),
                (json.dumps(dict(good, step=2.5)), "metrics.jsonl:3: step: 2.5 is not an integer"),
                (json.dumps(dict(good, ce=1.0)), "metrics.jsonl:3: ce and kl stand in every step of a run with a teacher, or in none"),
                (json.dumps(dict(good, ce=1.0, kl="x")), 'metrics.jsonl:3: kl: "x" is not a number'),
                (json.dumps({"event": "diagnostics", "layers": [{}]}), "metrics.jsonl:3: step: null is not an integer"),
                (json.dumps({"event": "diagnostics", "step": 1}), "metrics.jsonl:3: layers is no list of objects"),
                (json.dumps({"event": "diagnostics", "step": 1, "layers": []}), "metrics.jsonl:3: layers is no list of objects"),
                (json.dumps({"event": "diagnostics", "step": 1, "layers": [{"entropy": "x"}]}),
                 'metrics.jsonl:3: entropy: "x" is not a number'),
                (json.dumps({"event": "diagnostics", "step": 1, "layers": [{"alpha_histogram": {"counts": [1]}}]}),
                 "metrics.jsonl:3: alpha_histogram: first is missing"),
                (json.dumps({"event": "diagnostics", "step": 1, "layers": [{"alpha_histogram": {"first": 0, "width": 0, "counts": [1]}}]}),
                 "metrics.jsonl:3: alpha_histogram: not a histogram"),
                (json.dumps({"event": "diagnostics", "step": 1, "layers": [{"alpha_histogram": {"first": 0, "width": 1}}]}),
                 "metrics.jsonl:3: alpha_histogram: counts is no list"))):
            with self.subTest(line=line):
                path = self.make_run(f"run{number}", events=[step_event(1)], end=False, tail=line + "\n" + json.dumps(step_event(3)) + "\n")
                self.assert_refused(pattern, path)

    def test_layers_that_change_in_number(self):
        events = [step_event(1), diagnostics_event(1), diagnostics_event(2, layers=3)]
        self.assert_refused("metrics.jsonl:4: 3 layers, but 2 at step 1", self.make_run("a", events=events))
        self.assert_refused("metrics.jsonl:4: step 1 stands after step 1", self.make_run("b", events=events[:2] + events[1:2]))

    def test_broken_last_line_with_its_newline_is_no_cut_off(self):
        self.assert_refused("metrics.jsonl:3: not one JSON object", self.make_run("a", events=[step_event(1)], end=False, tail="{\n"))

    def test_truncated_last_line(self):
        path = self.make_run("a", end=False, tail='{"event":"step","step":41,"loss":1.2345')
        run = runs.read_run(path)
        self.assertEqual(run.steps[-1], 40)
        self.assertEqual(len(run.notes), 1)
        status, _, err = self.call(path, f"--out={self.out}")
        self.assertEqual(status, 0)
        self.assertIn("is cut off and was left out", err)
        whole = self.make_run("b", end=False, tail=json.dumps(step_event(41)))      # only the newline is missing
        self.assertEqual(runs.read_run(whole).steps[-1], 41)

    def test_configs(self):
        for number, (change, pattern) in enumerate((({"attention.type": ...}, "config.json: attention.type is missing"),
                                                    ({"seed": "1"}, 'config.json: seed: "1" is not an integer'),
                                                    ({"attention.gate": 3}, "config.json: attention.gate: 3 is not a string"))):
            with self.subTest(change=change):
                self.assert_refused(pattern, self.make_run(f"run{number}", config=change))
        path = self.make_run("a")
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
            file.write("{")
        self.assert_refused("config.json: ", path)

    def test_options(self):
        path = self.make_run("a")
        for option in ("--steps=5", "--steps=:", "--steps=9:2", "--grad-steps=a:b", "--smooth=0", "--last=x", "--entropy=-1",
                       "--entropy=nan", "--step=1:2", "--zoom=100:200", "--steps=100:"):
            with self.subTest(option=option):
                self.assert_refused(option.split("=")[0].lstrip("-"), path, option)
        self.assertEqual(self.call(path)[0], 2)             # no --out
        self.assertEqual(self.call(f"--out={self.out}")[0], 2)

    def test_status_of_the_program(self):
        call = subprocess.run([sys.executable, "-B", os.path.join(SCRIPTS, "compare.py"), os.path.join(self.folder, "absent"),
                               f"--out={self.out}"], capture_output=True, text=True, check=False)
        self.assertEqual((call.returncode, call.stdout), (2, ""))
        self.assertRegex(call.stderr, r"^compare\.py: error: .*absent: no such directory")


# ---------------------------------------------------------------------------------------------------------------- output

class References(HTMLParser):
    """Collects everything in a page that a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.tags = set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.found += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "poster", "action", "xlink:href")]


class Output(Case):
    def assert_pictures(self, names):
        written = sorted(name for name in os.listdir(self.out) if name not in ("report.html", "tables.md"))
        self.assertEqual(written, sorted(f"{name}.{kind}" for name in names for kind in ("png", "svg")))
        for name in written:
            with open(os.path.join(self.out, name), "rb") as file:
                start = file.read(600)
            self.assertTrue(start.startswith(b"\x89PNG\r\n") if name.endswith("png") else b"<svg" in start, name)

    def test_report_is_self_contained(self):
        paths = self.make_pair()
        status, out, err = self.call(*paths, f"--out={self.out}", "--entropy=3.14")
        self.assertEqual(status, 0)
        self.assertNotIn("WARNING", err)
        self.assertTrue(out.rstrip().endswith(f"report: {os.path.join(self.out, 'report.html')}"), out)
        self.assertIn("entropy of byte frequencies (nats): training 3.1400, validation 3.1400", out)
        self.assert_pictures(FIGURE_NAMES)
        report = self.read_out("report.html")
        page = References()
        page.feed(report)
        self.assertEqual(len(page.found), 5)
        self.assertTrue(all(reference.startswith("data:image/png;base64,") for reference in page.found))
        self.assertFalse(page.tags & {"script", "link", "iframe", "object", "embed"})
        self.assertNotRegex(report, r"https?://|url\(|@import")
        for text in ("Figure 5.", "baseline (seed 1)", "affine (seed 1)", "steps 0 to 40"):
            self.assertIn(text, report)
        for table in ("Results", "Paired differences from baseline", "Gradient norm", "Runs"):
            self.assertIn(f"<h2>{table}</h2>", report)
            self.assertIn(f"## {table}\n", self.read_out("tables.md"))

    def test_figures_that_do_not_apply_are_not_left_lying(self):
        self.assertEqual(self.call(*self.make_pair(), f"--out={self.out}")[0], 0)
        alone = self.make_run("alone", "sink", events=[step_event(step) for step in range(1, 6)])
        status, out, _ = self.call(alone, f"--out={self.out}")
        self.assertEqual(status, 0)
        self.assert_pictures([name for name in FIGURE_NAMES if name not in ("validation_loss", "loss_difference")])
        self.assertRegex(out, r"sink +1 +0 +\d\.\d{4} +– +– +– ")

    def test_same_input_same_output(self):
        paths = self.make_pair()
        self.call(*paths, f"--out={self.out}")
        first = self.contents()
        self.call(*paths, f"--out={self.out}")
        self.assertEqual(len(first), 14)
        for name, content in self.contents().items():
            self.assertEqual(content, first[name], name)

    def contents(self):
        found = {}
        for name in os.listdir(self.out):
            with open(os.path.join(self.out, name), "rb") as file:
                found[name] = file.read()
        return found

    def test_options_change_what_is_said(self):
        paths = self.make_pair()
        status, _, _ = self.call(*paths, f"--out={self.out}", "--steps=5:30", "--smooth=4", "--zoom=20:", "--log-x", "--log-y", "--last=7")
        self.assertEqual(status, 0)
        report = self.read_out("report.html")
        for text in ("steps 5 to 30", "centred mean over 5 steps", "steps 20 to 30", "The vertical axis is logarithmic.", "(last 7)"):
            self.assertIn(text, report)

    def test_log_axes_of_one_step(self):
        path = self.make_run("a", events=[eval_event(0, 5.0), step_event(1), eval_event(1, 4.0)])
        self.assertEqual(self.call(path, f"--out={self.out}", "--log-x", "--log-y")[0], 0)

    def test_run_without_a_finite_loss(self):
        events = [dict(step_event(step), loss=None, grad_norm=None, bad=True) for step in range(1, 41)]
        pair = self.make_pair(events=events)
        for options in ([], ["--log-y"]):
            status, out, _ = self.call(*pair, f"--out={self.out}", *options)
            self.assertEqual(status, 0)
            self.assertRegex(out, r"affine +1 +0 +– +– +– ")

    def test_one_of_many_that_diverged_at_once(self):
        events = [dict(step_event(step), loss=None, grad_norm=None, bad=True) for step in range(1, 41)]
        paths = [self.make_run(f"lr{i}", config={"optimizer.lr": 1e-3 * (i + 1)}, events=events if i == 3 else None) for i in range(8)]
        self.assertEqual(self.call(*paths, f"--out={self.out}")[0], 0)
        self.assertTrue(os.path.exists(os.path.join(self.out, "report.html")))

    def test_entropy_beside_the_shards(self):
        data = os.path.join(self.folder, "data")
        os.makedirs(data)
        shards = [dict(shard, path=os.path.join(data, os.path.basename(shard["path"]))) for shard in START["shards"]]
        pair = [self.make_run("a", start={"shards": shards}), self.make_run("b", "sink", start={"shards": shards})]
        read = runs.read_runs(pair)
        for content, expected in (
                ({"splits": {"train": {"entropy_nats": 3.1}, "val": {"entropy_nats": 3.2}}}, {"train": 3.1, "val": 3.2}),
                ({"train_entropy_nats": 3.1}, {"train": 3.1}), ({}, {}), ({"train_entropy_nats": "x"}, {})):
            with open(os.path.join(data, "prepare.json"), "w", encoding="utf-8") as file:
                json.dump(content, file)
            self.assertEqual(runs.read_entropies(read), (expected, []))
        with open(os.path.join(data, "prepare.json"), "w", encoding="utf-8") as file:
            file.write("{")
        entropies, notes = runs.read_entropies(read)
        self.assertEqual((entropies, len(notes)), ({}, 1))


if __name__ == "__main__":
    unittest.main()
