"""The GPTs of train_gpt for Hugging Face's transformers: gpt2, llama and qwen2 whose attention is not stock softmax.

    AutoModelForCausalLM.from_pretrained(CHECKPOINT, trust_remote_code=True)

train_gpt puts this file into every checkpoint directory whose attention stock transformers does not have: the types off_by_one, sink and
affine (arXiv 2602.23057), and each type with an output gate. Names of tensors and of config keys are those of Hugging Face's own GPT-2,
Llama and Qwen2, with config.json's section "attention" beside them, so that train_gpt takes what save_pretrained writes. The file needs
nothing but torch and transformers (4.46 or later); T x S matrices of weights are formed as the formulas say, so it is for evaluation, text
and inspection (output_attentions=True gives the effective weights), not for long training runs.

Of one head, query row i over its causal keys j that are no padding, z_ij = q_i.k_j / sqrt(D), P the softmax of z (with the sink's outcome
inside it), x_i the input of the attention:
    baseline    a_ij = P_ij
    off_by_one  a_ij = P_ij, 1 added to the denominator
    sink        a_ij = P_ij, exp(s_h) added to the denominator
    affine      a_ij = alpha_i P_ij + beta_i, alpha_i = phi(w_h.x_i), beta_i = (alpha_ma_h - alpha_i) / N
    gate        the head's output times sigmoid(W_g x_i): one value a head, or one an element
"""
import math

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

TYPES = ("baseline", "off_by_one", "sink", "affine")
GATES = ("none", "headwise", "elementwise")


# ---------------------------------------------------------------------------------------------------------------------
# Configuration


class SelectableConfig(PretrainedConfig):
    """What the three architectures share: the section "attention", and its defaults."""

    model_type = "train_gpt"
    keys_to_ignore_at_inference = ["past_key_values"]
    defaults = {}

    def __init__(self, attention=None, tie_word_embeddings=None, rope_theta=None, rope_scaling=None, rope_parameters=None, **kwargs):
        attention = {"type": "baseline", "gate": "none", **(attention or {})}
        if attention["type"] not in TYPES or attention["gate"] not in GATES:
            raise ValueError(f"attention: type {attention['type']!r} (one of {', '.join(TYPES)}), gate {attention['gate']!r} "
                             f"(one of {', '.join(GATES)})")
        super().__init__(**{**self.defaults, **kwargs})
        self.attention = attention
        self.tie_word_embeddings = self.tied_by_default if tie_word_embeddings is None else tie_word_embeddings
        if self.rotary:  # transformers 5 keeps both in rope_parameters; train_gpt reads either
            rope = dict(rope_scaling or rope_parameters or {})
            self.rope_theta = rope.pop("rope_theta", None) or rope_theta or 10000.0
            plain = rope.get("rope_type", rope.get("type", "default")) == "default"
            self.rope_parameters = None if plain else {**rope, "rope_theta": self.rope_theta}

    def to_diff_dict(self):
        """The keys that save_pretrained writes; the base class would leave out what has the same default there, not here."""
        return {**super().to_diff_dict(), "tie_word_embeddings": self.tie_word_embeddings}


class SelectableGPT2Config(SelectableConfig):
    """GPT-2's keys, and the section "attention"."""

    model_type = "train_gpt_gpt2"
    attribute_map = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
                     "max_position_embeddings": "n_positions"}
    defaults = {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "n_inner": None,
                "layer_norm_epsilon": 1e-5, "initializer_range": 0.02}
    rotary, biased, tied_by_default = False, True, True

    head_dim = property(lambda self: self.n_embd // self.n_head)
    num_key_value_heads = property(lambda self: self.n_head)


class SelectableLlamaConfig(SelectableConfig):
    """Llama's keys, and the section "attention"."""

    model_type = "train_gpt_llama"
    defaults = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
                "num_key_value_heads": None, "head_dim": None, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
                "initializer_range": 0.02}
    rotary, biased, tied_by_default = True, False, False

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads


class SelectableQwen2Config(SelectableLlamaConfig):
    """Qwen2's keys, and the section "attention"."""

    model_type = "train_gpt_qwen2"
    defaults = {**SelectableLlamaConfig.defaults, "max_position_embeddings": 32768}
    biased = True


# ---------------------------------------------------------------------------------------------------------------------
# Parts


def widened(x):
    """float32 at least: norms, softmax and alpha are computed in that."""
    return x if x.dtype == torch.float64 else x.float()


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight"""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        wide = widened(x)
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class Conv1D(nn.Module):
    """A linear layer whose weight is stored [in, out], as GPT-2's are."""

    def __init__(self, inputs, outputs, adds_to_residual=False):
        super().__init__()
        self.adds_to_residual = adds_to_residual  # then its initial weights are smaller
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class GPT2MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        inner = config.n_inner or 4 * config.n_embd
        self.c_fc = Conv1D(config.n_embd, inner)
        self.c_proj = Conv1D(inner, config.n_embd, adds_to_residual=True)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class SwiGLU(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rotary_frequencies(config, device):
    """[D/2] radians a position, double; rope_scaling llama3 stretches the long wavelengths."""
    wide = torch.float32 if device.type == "mps" else torch.float64
    rope = config.rope_parameters or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", config.rope_theta)
    frequency = theta ** (-torch.arange(0, config.head_dim, 2, dtype=wide, device=device) / config.head_dim)
    if kind == "default":
        return frequency
    if kind != "llama3":
        raise ValueError(f"rope_scaling: {kind} is not known here; llama3 or default was wanted")
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)  # over the original context
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequency / rope["factor"] + smooth * frequency


def rotate(x, cos, sin):
    """x [B, heads, T, D] turned by the angles [B, 1, T, D/2]: element j with element j + D/2."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Attention(nn.Module):
    """Every type and gate; the subclasses say where q, k and v come from."""

    def __init__(self, config, layer):
        super().__init__()
        self.layer, self.rules = layer, config.attention
        self.H, self.K, self.D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        C = config.hidden_size
        if self.rules["type"] == "sink":
            self.sinks = nn.Parameter(torch.zeros(self.H))
        if self.rules["type"] == "affine":
            self.alpha_proj = nn.Linear(C, self.H, bias=False)
            self.register_buffer("alpha_ma", torch.zeros(self.H))
        if self.rules["gate"] != "none":
            self.gate_proj = nn.Linear(C, self.H if self.rules["gate"] == "headwise" else self.H * self.D, bias=False)

    def split(self, x, heads):
        """[B, T, heads * width] -> [B, heads, T, width]"""
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    def probabilities(self, q, k, allowed):
        """The softmax over the allowed keys [B, H, T, S]; rows without any are 0."""
        z = widened(q @ k.transpose(2, 3)) / math.sqrt(self.D)
        z = z.masked_fill(~allowed, torch.finfo(z.dtype).min)
        if self.rules["type"] in ("sink", "off_by_one"):  # one more outcome, "nothing", which is dropped again
            nothing = widened(self.sinks) if self.rules["type"] == "sink" else z.new_zeros(self.H)
            z = torch.cat((z, nothing.view(1, -1, 1, 1).expand(*z.shape[:3], 1)), -1)
        return z.softmax(-1)[..., : allowed.shape[-1]] * allowed

    def effective_weights(self, x, q, k, allowed):
        """What the values are multiplied with [B, H, T, S]."""
        p = self.probabilities(q, k, allowed)
        if self.rules["type"] != "affine":
            return p
        projected = widened(self.alpha_proj(x)).transpose(1, 2).unsqueeze(-1)
        sigmoid = self.rules["affine_activation"] == "sigmoid"
        alpha = projected.sigmoid() if sigmoid else (0.1 * projected + 0.5).clamp(0, 1)
        prefix = self.rules["affine_n"] == "prefix"
        n = allowed.sum(-1, keepdim=True).clamp(min=1) if prefix else self.rules["affine_length"]
        beta = (widened(self.alpha_ma).view(1, -1, 1, 1) - alpha) / n
        return alpha * p + beta * allowed

    def forward(self, x, allowed, angles, cache):
        """x [B, T, C], allowed [B, 1, T, S] -> the attention's output [B, T, C], and the effective weights."""
        q, k, v = self.project(x)
        if angles is not None:
            q, k = rotate(q, *angles), rotate(k, *angles)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        group = self.H // self.K
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        weights = self.effective_weights(x, q, k, allowed)
        out = weights.to(v.dtype) @ v
        if self.rules["gate"] != "none":  # [B, H, T, 1 or D]
            out = out * self.split(self.gate_proj(x), self.H).sigmoid()
        return self.join(out.transpose(1, 2).flatten(2)), weights


class GPT2Attention(Attention):
    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.c_attn = Conv1D(config.n_embd, 3 * config.n_embd)
        self.c_proj = Conv1D(config.n_embd, config.n_embd, adds_to_residual=True)

    def project(self, x):
        return [self.split(part, self.H) for part in self.c_attn(x).chunk(3, -1)]

    def join(self, x):
        return self.c_proj(x)


class LlamaAttention(Attention):
    def __init__(self, config, layer):
        super().__init__(config, layer)
        C, D = config.hidden_size, self.D
        self.q_proj = nn.Linear(C, self.H * D, bias=config.biased)
        self.k_proj = nn.Linear(C, self.K * D, bias=config.biased)
        self.v_proj = nn.Linear(C, self.K * D, bias=config.biased)
        self.o_proj = nn.Linear(self.H * D, C, bias=False)

    def project(self, x):
        return self.split(self.q_proj(x), self.H), self.split(self.k_proj(x), self.K), self.split(self.v_proj(x), self.K)

    def join(self, x):
        return self.o_proj(x)


class GPT2Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = GPT2Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = GPT2MLP(config)

    def forward(self, x, *context):
        attended, weights = self.attn(self.ln_1(x), *context)
        x = x + attended
        return x + self.mlp(self.ln_2(x)), weights


class LlamaBlock(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = LlamaAttention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x, *context):
        attended, weights = self.self_attn(self.input_layernorm(x), *context)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), weights


class GPT2Body(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList([GPT2Block(config, layer) for layer in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)


class LlamaBody(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([LlamaBlock(config, layer) for layer in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


# ---------------------------------------------------------------------------------------------------------------------
# Models


class SelectablePreTrainedModel(PreTrainedModel):
    """A GPT whose attention is selectable: token ids to logits, with a cache of keys and values, padding on either side, and generate().

    Affine's bias is summed over the cached values, so nothing but keys and values needs to be kept with the cache."""

    config_class = SelectableConfig
    _no_split_modules = ["GPT2Block", "LlamaBlock"]
    _supports_cache_class = True
    _supports_static_cache = False
    _auto_class = "AutoModelForCausalLM"  # save_pretrained copies this file

    def __init__(self, config):
        super().__init__(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def _init_weights(self, module):
        residual = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
        if isinstance(module, (nn.Linear, nn.Embedding, Conv1D)):
            nn.init.normal_(module.weight, std=residual if getattr(module, "adds_to_residual", False) else self.config.initializer_range)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, (nn.LayerNorm, RMSNorm)):
            nn.init.ones_(module.weight)
        if hasattr(module, "sinks"):
            nn.init.zeros_(module.sinks)

    def classify(self, x):
        return F.linear(x, self.get_input_embeddings().weight) if self.config.tie_word_embeddings else self.lm_head(x)

    def get_output_embeddings(self):
        """None where the classifier is the embedding: there is no second tensor to tie."""
        return None if self.config.tie_word_embeddings else self.lm_head

    def set_output_embeddings(self, module):
        if self.config.tie_word_embeddings:
            self.set_input_embeddings(module)
        else:
            self.lm_head = module

    def look_around(self, attention_mask, past, B, T, device):
        """allowed [B, 1, T, S] and the positions [B, T] that follow from the mask [B, S]."""
        S = past + T
        if attention_mask is None:
            attention_mask = torch.ones(B, S, dtype=torch.bool, device=device)
        if attention_mask.shape != (B, S):
            raise ValueError(f"attention_mask: its shape is {list(attention_mask.shape)}; {[B, S]} was wanted, "
                             "one value for each token and each token in the cache")
        real = attention_mask.to(device=device, dtype=torch.bool)
        key, query = torch.arange(S, device=device), torch.arange(past, S, device=device)
        allowed = real[:, None, None, :] & (key <= query[:, None])
        positions = (real.long().cumsum(-1) - 1).clamp(min=0)[:, past:]
        return allowed, positions

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None, labels=None,
                use_cache=None, output_attentions=None, output_hidden_states=None, return_dict=None, logits_to_keep=0, cache=None,
                **kwargs):
        """attention_mask [B, cached + T]: 1 for tokens, 0 for padding, wherever it stands. Positions follow from it unless position_ids
        says otherwise. labels [B, T]: token ids, -100 is not counted; the loss is that of each next token."""
        x = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        B, T = x.shape[:2]
        if use_cache is None:
            use_cache = getattr(self.config, "use_cache", True)  # transformers 5 moves it to generation_config
        cache = past_key_values if cache is None else cache  # its name in transformers 5
        if cache is None and use_cache:
            cache = DynamicCache()
        past = 0 if cache is None else cache.get_seq_length()
        allowed, positions = self.look_around(attention_mask, past, B, T, x.device)
        x, angles = self.place(x, positions if position_ids is None else position_ids)
        hidden, attentions = (), ()
        for block in self.blocks():
            hidden += (x,) if output_hidden_states else ()
            x, weights = block(x, allowed, angles, cache)
            attentions += (weights,) if output_attentions else ()
        x = self.final_norm(x)
        logits = self.classify(x[:, -logits_to_keep:] if isinstance(logits_to_keep, int) else x[:, logits_to_keep])
        out = CausalLMOutputWithPast(
            loss=None if labels is None else self.next_token_loss(logits, labels, kwargs.get("num_items_in_batch")),
            logits=logits, past_key_values=cache if use_cache else None,
            hidden_states=(*hidden, x) if output_hidden_states else None, attentions=attentions if output_attentions else None)
        return out.to_tuple() if return_dict is False else out

    def next_token_loss(self, logits, labels, num_items_in_batch):
        logits, targets = widened(logits[:, :-1]).flatten(0, 1), labels[:, 1:].to(logits.device).flatten()
        if num_items_in_batch is None:
            return F.cross_entropy(logits, targets)
        return F.cross_entropy(logits, targets, reduction="sum") / num_items_in_batch


class SelectableGPT2ForCausalLM(SelectablePreTrainedModel, GenerationMixin):
    """GPT-2 with selectable attention."""

    config_class = SelectableGPT2Config

    def __init__(self, config):
        super().__init__(config)
        self.transformer = GPT2Body(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.transformer.wte

    def set_input_embeddings(self, module):
        self.transformer.wte = module

    def blocks(self):
        return self.transformer.h

    def final_norm(self, x):
        return self.transformer.ln_f(x)

    def place(self, x, positions):
        """Learned positions are added to the embeddings."""
        return x + self.transformer.wpe(positions), None


class SelectableLlamaForCausalLM(SelectablePreTrainedModel, GenerationMixin):
    """Llama with selectable attention."""

    config_class = SelectableLlamaConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = LlamaBody(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def set_input_embeddings(self, module):
        self.model.embed_tokens = module

    def blocks(self):
        return self.model.layers

    def final_norm(self, x):
        return self.model.norm(x)

    def place(self, x, positions):
        """Rotary positions: the cosines and sines [B, 1, T, D/2] that turn queries and keys."""
        frequencies = rotary_frequencies(self.config, x.device)
        angles = positions[:, None, :, None].to(frequencies.dtype) * frequencies
        return x, (angles.cos().to(x.dtype), angles.sin().to(x.dtype))


class SelectableQwen2ForCausalLM(SelectableLlamaForCausalLM, GenerationMixin):
    """Qwen2 with selectable attention."""

    config_class = SelectableQwen2Config


for config_class in (SelectableGPT2Config, SelectableLlamaConfig, SelectableQwen2Config):
    config_class.register_for_auto_class()
