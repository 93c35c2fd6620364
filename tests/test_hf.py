#!/usr/bin/env python3
"""Hugging Face's transformers on train_gpt's checkpoints, and train_gpt on what transformers saves.

Models are small and made here. What is compared with: the logits that tests/fixtures holds (PyTorch in float64, of another author than the
modeling file), and the losses that train_gpt itself evaluates. Needs .venv-hf (scripts/setup.sh --hf), and nothing from a network.
"""
import contextlib
import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRATCH = tempfile.TemporaryDirectory(prefix="train_gpt-test-hf-")
os.environ["HF_HOME"] = os.path.join(SCRATCH.name, "hf-home")  # where transformers copies a checkpoint's own code: before it is imported
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "2")

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
warnings.filterwarnings("ignore", category=FutureWarning)
with contextlib.suppress(ImportError):
    try:  # Debian's torch 1.13 cannot import its FSDP under Python 3.11, and generate() asks it whether it is in use
        import torch.distributed.fsdp  # noqa: F401
    except ValueError:
        import transformers.generation.utils
        transformers.generation.utils.is_fsdp_managed_module = lambda module: False

PROGRAM = os.environ.get("TRAIN_GPT", str(ROOT / "train_gpt"))
FIXTURES = sorted(path for path in (ROOT / "tests/fixtures").glob("*.json") if ".teacher" not in path.name)
ARCHS = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
TYPES = ("baseline", "off_by_one", "sink", "affine")
GATES = ("none", "headwise", "elementwise")
VOCABULARY, T = 23, 12


def train_gpt(*arguments):
    """What the program prints; fails with what it says."""
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{' '.join(map(str, arguments))} ended with status {done.returncode}: {done.stderr}")
    return done.stdout


def write_shard(path, tokens):
    header = struct.pack("<256i", 20240520, 1, len(tokens), *([0] * 253))
    path.write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))


def load(directory, **options):
    model, info = AutoModelForCausalLM.from_pretrained(str(directory), trust_remote_code=True, output_loading_info=True, **options)
    problems = {what: names for what, names in info.items() if names}
    if problems:
        raise AssertionError(f"{directory}: {problems}")
    return model.eval()


def windows(tokens):
    """The windows that train_gpt evaluates, [n, T + 1]."""
    count = (len(tokens) - 1) // T
    return torch.tensor([tokens[i * T: i * T + T + 1] for i in range(count)])


def mean_loss(model, tokens):
    rows = windows(tokens)
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits.double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


def difference(found, wanted):
    return ((found.double() - wanted.double()).abs().max() / wanted.double().abs().max()).item()


class HuggingFaceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH.name))
        generator = torch.Generator().manual_seed(5)
        noise = torch.randint(0, VOCABULARY, (4000,), generator=generator).tolist()
        cls.tokens = [value if i % 5 == 0 else (noise[i - i % 5] * 3 + i % 5) % VOCABULARY for i, value in enumerate(noise)]
        write_shard(cls.directory / "train.bin", cls.tokens[:3000])
        write_shard(cls.directory / "val.bin", cls.tokens[3000:])
        cls.validation = cls.tokens[3000:]

    def config(self, arch, tied, name="config.json", **sections):
        """A small model's config: for llama and qwen2 grouped queries, for llama wider heads and scaled positions too."""
        model = {"arch": arch, "vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "tie_word_embeddings": tied, "initializer_range": 0.15, "max_position_embeddings": 40}
        if arch != "gpt2":
            model.update(num_key_value_heads=2, intermediate_size=40, rope_theta=500.0, norm_eps=1e-6)
        if arch == "llama":  # of qwen2 the stock class of this transformers knows no other width of a head
            model["head_dim"] = 8
            model["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                     "original_max_position_embeddings": 64}
        config = {"model": model, "data": {"train": str(self.directory / "train.bin"), "shuffle": False},
                  "train": {"steps": 12, "batch_size": 8, "sequence_length": T}, "optimizer": {"lr": 0.02},
                  "schedule": {"type": "constant", "warmup_steps": 0}, "checkpoint": {"every": 0}, "diagnostics": {"every": 0}, **sections}
        path = self.directory / name
        path.write_text(json.dumps(config))
        return path

    def train(self, arch, attention, tied):
        """The checkpoint of a few steps."""
        run = pathlib.Path(tempfile.mkdtemp(dir=self.directory))
        train_gpt(self.config(arch, tied, attention=attention), f"--run_dir={run}/run")
        return run / "run/checkpoints/step-00000012"

    def evaluate(self, checkpoint, length=T):
        return json.loads(train_gpt("eval", checkpoint, f"--data={self.directory / 'val.bin'}", f"--length={length}"))["loss"]

    def assert_same_loss(self, model, checkpoint):
        ours = self.evaluate(checkpoint)
        self.assertLess(ours, 0.95 * torch.tensor(float(VOCABULARY)).log().item(), "it has learned something")
        self.assertAlmostEqual(mean_loss(model, self.validation) / ours, 1, delta=3e-6)

    # ---- out ----

    def test_every_arch_type_and_gate_comes_out_and_goes_back(self):
        """transformers computes train_gpt's loss, and train_gpt that of what transformers saves, single and in several files."""
        for number, (arch, kind, gate) in enumerate((a, t, g) for a in ARCHS for t in TYPES for g in GATES):
            attention = {"type": kind, "gate": gate, "affine_rho": 0.5, "affine_length": 9 + number,
                         "affine_n": "prefix" if gate == "headwise" else "sequence",
                         "affine_activation": "sigmoid" if gate == "elementwise" else "linear_clipping"}
            with self.subTest(arch=arch, type=kind, gate=gate):
                checkpoint = self.train(arch, attention, tied=number % 2 == 0)
                stock = kind == "baseline" and gate == "none"
                self.assertEqual((checkpoint / "modeling_train_gpt.py").exists(), not stock)
                model = load(checkpoint)
                self.assertEqual(type(model).__module__.startswith("transformers."), stock)
                self.assert_same_loss(model, checkpoint)
                saved = checkpoint.parent / "saved"
                model.save_pretrained(saved, max_shard_size="8KB" if number % 3 == 0 else "5GB")
                self.assertEqual((saved / "model.safetensors.index.json").exists(), number % 3 == 0)
                self.assertEqual(self.evaluate(saved), self.evaluate(checkpoint))
                self.assert_same_loss(load(saved), checkpoint)  # the file went with it
                self.begin_from(saved, checkpoint, attention)

    def begin_from(self, saved, checkpoint, attention):
        """A run that begins from the directory has the checkpoint's weights."""
        run = pathlib.Path(tempfile.mkdtemp(dir=self.directory)) / "run"
        config = self.directory / "begin.json"
        config.write_text(json.dumps({"model": {"init_from": str(saved)}, "attention": attention, "train": {"steps": 0}}))
        train_gpt(config, f"--run_dir={run}", "--train.sequence_length=8")
        before, after = load_file(checkpoint / "model.safetensors"), load_file(run / "checkpoints/step-00000000/model.safetensors")
        self.assertEqual(set(before), set(after))
        for name, value in before.items():
            self.assertTrue(torch.equal(value, after[name]), name)

    def test_stock_needs_no_code_of_ours(self):
        """Baseline without a gate loads with the stock class, tied and untied; what is not stock never passes for it."""
        for arch, name in ARCHS.items():
            for tied in (False, True):
                with self.subTest(arch=arch, tied=tied):
                    checkpoint = self.train(arch, {"type": "baseline"}, tied)
                    model = getattr(transformers, name).from_pretrained(checkpoint).eval()
                    self.assert_same_loss(model, checkpoint)
            affine = self.train(arch, {"type": "affine"}, True)
            with self.assertRaises(ValueError), contextlib.redirect_stdout(io.StringIO()):
                AutoModelForCausalLM.from_pretrained(affine, trust_remote_code=False)

    # ---- logits, against the fixtures ----

    def fixture(self, path):
        """The fixture's model as loaded from a checkpoint directory that train_gpt wrote, and the fixture's tensors."""
        run = pathlib.Path(tempfile.mkdtemp(dir=self.directory)) / "run"
        train_gpt(path, f"--run_dir={run}", "--train.steps=0")
        checkpoint, tensors = run / "checkpoints/step-00000000", load_file(path.with_suffix(".safetensors"))
        weights = {name[len("weights/"):]: value.float().contiguous() for name, value in tensors.items() if name.startswith("weights/")}
        self.assertEqual({name: list(value.shape) for name, value in weights.items()},
                         {name: list(value.shape) for name, value in load_file(checkpoint / "model.safetensors").items()})
        save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
        return load(checkpoint), tensors["tokens.0"].long(), tensors["logits"]

    def test_fixtures(self):
        """Logits of every fixture: whole, a token at a time and in pieces with the cache, and padded on either side."""
        self.assertGreater(len(FIXTURES), 12)
        for path in FIXTURES:
            with self.subTest(case=path.stem), torch.no_grad():
                model, tokens, wanted = self.fixture(path)
                ours = not type(model).__module__.startswith("transformers.")
                self.assertLess(difference(model(tokens).logits, wanted), 1e-5)
                self.assertLess(difference(self.in_pieces(model, tokens, [1] * tokens.shape[1]), wanted), 1e-5)
                self.assertLess(difference(self.in_pieces(model, tokens, [3, 1, tokens.shape[1] - 4]), wanted), 1e-5)
                self.check_padding(model, tokens, wanted)
                if ours:
                    self.assertLess(difference(model.double()(tokens).logits, wanted), 1e-12)

    @staticmethod
    def in_pieces(model, tokens, sizes):
        """Logits of the tokens, that many at a time, with the cache."""
        out, cache, first = [], None, 0
        for size in sizes:
            step = model(tokens[:, first:first + size], past_key_values=cache, use_cache=True)
            out.append(step.logits)
            cache, first = step.past_key_values, first + size
        return torch.cat(out, 1)

    def check_padding(self, model, tokens, wanted):
        """Rows cut to different lengths and padded: the logits at real tokens stay. On the left also with the cache."""
        B, length = tokens.shape
        for side in ("left", "right"):
            padded = torch.full_like(tokens, 1)
            mask = torch.zeros_like(tokens)
            sizes = [max(2, length - 3 * b) for b in range(B)]
            for b, size in enumerate(sizes):
                where = slice(length - size, length) if side == "left" else slice(0, size)
                padded[b, where], mask[b, where] = tokens[b, :size], 1
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            found = model(padded, attention_mask=mask, position_ids=positions).logits
            cases = [found]
            if not type(model).__module__.startswith("transformers."):  # ours takes the positions from the mask
                cases.append(model(padded, attention_mask=mask).logits)
            half = length // 2
            first = model(padded[:, :half], attention_mask=mask[:, :half], position_ids=positions[:, :half], use_cache=True)
            second = model(padded[:, half:], attention_mask=mask, position_ids=positions[:, half:],
                           past_key_values=first.past_key_values, use_cache=True)
            cases.append(torch.cat((first.logits, second.logits), 1))
            for logits in cases:
                self.assertTrue(torch.isfinite(logits).all())
                for b, size in enumerate(sizes):
                    where = slice(length - size, length) if side == "left" else slice(0, size)
                    self.assertLess(difference(logits[b, where], wanted[b, :size]), 1e-5, side)

    def test_generates(self):
        """Greedy text of a padded batch is what the logits without a cache say, row by row; beams and sampling run."""
        for arch in ARCHS:
            for kind in ("affine", "sink"):
                with self.subTest(arch=arch, type=kind), torch.no_grad():
                    model = load(self.train(arch, {"type": kind, "gate": "headwise", "affine_n": "prefix"}, True))
                    prompts = [self.tokens[:6], self.tokens[7:10]]
                    ids = torch.tensor([prompts[0], [0] * 3 + prompts[1]])
                    mask = torch.tensor([[1] * 6, [0] * 3 + [1] * 3])
                    found = model.generate(ids, attention_mask=mask, max_new_tokens=9, do_sample=False, pad_token_id=0)
                    for row, prompt in enumerate(prompts):
                        wanted = list(prompt)
                        for _ in range(9):
                            wanted.append(model(torch.tensor([wanted]), use_cache=False).logits[0, -1].argmax().item())
                        self.assertEqual(found[row, 6:].tolist(), wanted[len(prompt):])
                    for options in ({"num_beams": 3, "do_sample": False}, {"do_sample": True}, {"use_cache": False, "do_sample": False}):
                        out = model.generate(ids, attention_mask=mask, max_new_tokens=4, pad_token_id=0, **options)
                        self.assertEqual(list(out.shape), [2, 10])

    def test_text_goes_in_and_out(self):
        """AutoTokenizer and generate as docs/hugging-face.md has them, on checkpoints of bytes."""
        folder = pathlib.Path(SCRATCH.name, "text")
        folder.mkdir()
        (folder / "a.txt").write_text("the cat sat on the mat. " * 40)
        subprocess.run([sys.executable, str(ROOT / "data/prepare.py"), "--train", str(folder / "a.txt"), "--out", str(folder)],
                       check=True, capture_output=True)
        for arch in ("gpt2", "llama"):
            for kind in ("baseline", "affine"):
                with self.subTest(arch=arch, type=kind):
                    run = folder / f"{arch}-{kind}"
                    config = folder / "config.json"
                    config.write_text(json.dumps({
                        "run_dir": str(run), "attention": {"type": kind}, "data": {"train": str(folder / "train*.bin")},
                        "model": {"arch": arch, "vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                                  "intermediate_size": 32, "max_position_embeddings": 32},
                        "train": {"steps": 1, "batch_size": 2, "sequence_length": 16}}))
                    train_gpt(config)
                    directory = str(run / "checkpoints/step-00000001")
                    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
                    prompt = tokenizer("It is é", return_tensors="pt")
                    self.assertEqual(prompt.input_ids[0].tolist(), list("It is é".encode()))
                    out = load(directory).generate(**prompt, max_new_tokens=5, do_sample=False, pad_token_id=0)
                    self.assertEqual(out.shape[1], prompt.input_ids.shape[1] + 5)
                    self.assertTrue(tokenizer.decode(out[0]).startswith("It is é"))

    # ---- the modeling file's other answers ----

    def test_effective_weights(self):
        """output_attentions gives the weights by which the values are multiplied: affine's rows sum to alpha + (i + 1) beta."""
        model = load(self.train("llama", {"type": "affine", "affine_length": 5}, True))
        rows = windows(self.validation)[:3, :-1]
        with torch.no_grad():
            out = model(rows, output_attentions=True, output_hidden_states=True)
        self.assertEqual((len(out.attentions), list(out.attentions[0].shape)), (2, [3, 4, T, T]))
        self.assertEqual((len(out.hidden_states), list(out.hidden_states[0].shape)), (3, [3, T, 24]))
        self.assertEqual(out.attentions[0].triu(1).abs().max().item(), 0)
        attention = model.model.layers[1].self_attn
        with torch.no_grad():
            x = model.model.layers[1].input_layernorm(out.hidden_states[1])
            alpha = (0.1 * attention.alpha_proj(x) + 0.5).clamp(0, 1).transpose(1, 2)
            wanted = alpha + torch.arange(1, T + 1) * (attention.alpha_ma.view(1, 4, 1) - alpha) / 5
        self.assertGreater(attention.alpha_ma.min().item(), 0.1)
        self.assertLess(difference(out.attentions[1].sum(-1), wanted), 1e-5)

    def test_loss_trains(self):
        """labels give the mean loss of the next tokens, which has gradients everywhere; masked labels are not counted."""
        model = load(self.train("gpt2", {"type": "affine", "gate": "elementwise"}, False)).train()
        rows = windows(self.validation)[:4]
        out = model(rows, labels=rows)
        wanted = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
        self.assertAlmostEqual(out.loss.item(), wanted.item(), places=5)
        out.loss.backward()
        self.assertEqual([name for name, value in model.named_parameters() if value.grad is None or not value.grad.abs().max() > 0], [])
        masked = rows.clone()
        masked[:, 3:] = -100
        self.assertAlmostEqual(model(rows, labels=masked).loss.item(), model(rows[:, :3], labels=rows[:, :3]).loss.item(), places=5)

    def test_new_models(self):
        """A model made from the config alone begins as train_gpt's do: the same distribution, no sinks, no alpha_ma."""
        checkpoint = self.train("gpt2", {"type": "affine"}, True)
        config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=True)
        config.initializer_range = 0.02
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
        attention = model.transformer.h[0].attn
        self.assertAlmostEqual(attention.c_attn.weight.std().item(), 0.02, delta=0.002)
        self.assertAlmostEqual(attention.c_proj.weight.std().item(), 0.01, delta=0.002)
        self.assertEqual(attention.alpha_ma.abs().max().item(), 0)
        self.assertEqual(attention.c_attn.bias.abs().max().item(), 0)

    def test_wrong_input_is_named(self):
        model = load(self.train("gpt2", {"type": "sink"}, True))
        with self.assertRaisesRegex(ValueError, "attention_mask: its shape is"):
            model(torch.tensor([[1, 2, 3]]), attention_mask=torch.ones(1, 2))
        config = AutoConfig.from_pretrained(self.train("llama", {"type": "sink"}, True), trust_remote_code=True)
        with self.assertRaisesRegex(ValueError, "attention: type 'wide'"):
            type(config)(attention={"type": "wide"})


if __name__ == "__main__":
    unittest.main()
