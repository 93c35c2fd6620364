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

SCRIPTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scripts")
sys.path.insert(0, SCRIPTS)

import compare                          # noqa: E402
import compare_figures as figures       # noqa: E402
import compare_referee as referee       # noqa: E402
import compare_runs as runs             # noqa: E402
import compare_statistics as stats      # noqa: E402

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
                (json.dumps(dict(good, step=2.5)), "metrics.jsonl:3: step: 2.5 is not an integer"))):
            with self.subTest(line=line):
                path = self.make_run(f"run{number}", events=[step_event(1)], end=False, tail=line + "\n" + json.dumps(step_event(3)) + "\n")
                self.assert_refused(pattern, path)

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
