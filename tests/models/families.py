# SPDX-License-Identifier: Apache-2.0
"""Tiny models of every family: their config.json, the tensors that Hugging Face's checkpoints of them hold, and the same tensors in the
spelling of Megatron and of Paddle, made by the rules in words. Nothing here reads a mapping text: this is what the texts are judged by.

A tensor is a nested list of its elements, whatever these are. A model is a dict from key to tensor.
"""

# ---- tensors ----


def shape_of(tensor):
    shape = []
    while isinstance(tensor, list):
        shape.append(len(tensor))
        tensor = tensor[0]
    return shape


def flat(tensor):
    return [x for part in tensor for x in flat(part)] if isinstance(tensor, list) else [tensor]


def fill(shape, elements):
    """A tensor of that shape from an iterator."""
    return [fill(shape[1:], elements) for _ in range(shape[0])] if shape else next(elements)


def transposed(matrix):
    return [list(column) for column in zip(*matrix)]


def by_groups(q, k, v, heads, groups):
    """Rows of q, k and v, group of heads by group: its query heads, its key head, its value head."""
    head = len(q) // heads
    rows = []
    for group in range(groups):
        first, last = group * heads // groups, (group + 1) * heads // groups
        rows += q[first * head:last * head] + k[group * head:(group + 1) * head] + v[group * head:(group + 1) * head]
    return rows


# ---- Hugging Face's tensors ----


class Shapes(dict):
    def linear(self, key, rows, columns, bias=False):
        self[key + ".weight"] = [rows, columns]
        if bias:
            self[key + ".bias"] = [rows]

    def norms(self, layer, width, *names):
        for name in names:
            self[f"{layer}.{name}.weight"] = [width]

    def gated(self, key, width, inner, names=("gate_proj", "up_proj", "down_proj"), bias=False):
        self.linear(f"{key}.{names[0]}", inner, width, bias)
        self.linear(f"{key}.{names[1]}", inner, width, bias)
        self.linear(f"{key}.{names[2]}", width, inner, bias)


def attention_shapes(out, layer, c, qkv_bias=False, out_bias=False, norms=False):
    heads, head = c["num_attention_heads"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    groups = c.get("num_key_value_heads", heads)
    for name, count in (("q", heads), ("k", groups), ("v", groups)):
        out.linear(f"{layer}.self_attn.{name}_proj", count * head, c["hidden_size"], qkv_bias)
    out.linear(f"{layer}.self_attn.o_proj", c["hidden_size"], heads * head, out_bias)
    if norms:
        out.norms(layer, head, "self_attn.q_norm", "self_attn.k_norm")


def latent_shapes(out, layer, c):
    heads, hidden, rope, nope = c["num_attention_heads"], c["hidden_size"], c["qk_rope_head_dim"], c["qk_nope_head_dim"]
    if c["q_lora_rank"]:
        out.linear(f"{layer}.self_attn.q_a_proj", c["q_lora_rank"], hidden)
        out.norms(layer, c["q_lora_rank"], "self_attn.q_a_layernorm")
        out.linear(f"{layer}.self_attn.q_b_proj", heads * (nope + rope), c["q_lora_rank"])
    else:
        out.linear(f"{layer}.self_attn.q_proj", heads * (nope + rope), hidden)
    out.linear(f"{layer}.self_attn.kv_a_proj_with_mqa", c["kv_lora_rank"] + rope, hidden)
    out.norms(layer, c["kv_lora_rank"], "self_attn.kv_a_layernorm")
    out.linear(f"{layer}.self_attn.kv_b_proj", heads * (nope + c["v_head_dim"]), c["kv_lora_rank"])
    out.linear(f"{layer}.self_attn.o_proj", hidden, heads * c["v_head_dim"])


def expert_count(c):
    return next(c[name] for name in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") if name in c)


def has_experts(c, layer):
    kind = c["model_type"]
    if kind in ("deepseek_v2", "deepseek_v3", "glm4_moe"):
        return layer >= c["first_k_dense_replace"]
    if kind in ("qwen2_moe", "qwen3_moe"):
        return layer not in c["mlp_only_layers"] and (layer + 1) % c["decoder_sparse_step"] == 0
    if kind == "ernie4_5_moe":
        return (layer + 1) % c["moe_layer_interval"] == 0 and c["moe_layer_start_index"] <= layer <= c["moe_layer_end_index"]
    return kind in ("mixtral", "gpt_oss")


def expert_shapes(out, layer, c):
    kind, hidden, count = c["model_type"], c["hidden_size"], expert_count(c)
    if kind == "mixtral":
        out.linear(f"{layer}.block_sparse_moe.gate", count, hidden)
        for e in range(count):
            out.gated(f"{layer}.block_sparse_moe.experts.{e}", hidden, c["intermediate_size"], ("w1", "w3", "w2"))
        return
    if kind == "gpt_oss":
        out.linear(f"{layer}.mlp.router", count, hidden, True)
        for name, shape in (("gate_up_proj", [hidden, 2 * c["intermediate_size"]]), ("down_proj", [c["intermediate_size"], hidden])):
            out[f"{layer}.mlp.experts.{name}"], out[f"{layer}.mlp.experts.{name}_bias"] = [count, *shape], [count, shape[1]]
        return
    out.linear(f"{layer}.mlp.gate", count, hidden)
    for e in range(count):
        out.gated(f"{layer}.mlp.experts.{e}", hidden, c["moe_intermediate_size"])
    if kind in ("deepseek_v3", "glm4_moe"):
        out[f"{layer}.mlp.gate.e_score_correction_bias"] = [count]
    if kind == "ernie4_5_moe":
        out[f"{layer}.mlp.moe_statics.e_score_correction_bias"] = [1, count]
    if kind == "qwen2_moe":
        out.gated(f"{layer}.mlp.shared_expert", hidden, c["shared_expert_intermediate_size"])
        out.linear(f"{layer}.mlp.shared_expert_gate", 1, hidden)
    shared = c.get("n_shared_experts") or c.get("moe_num_shared_experts")
    if shared:
        out.gated(f"{layer}.mlp.shared_experts", hidden, c["moe_intermediate_size"] * shared)


def layer_shapes(out, index, c):
    layer, kind, hidden = f"model.layers.{index}", c["model_type"], c["hidden_size"]
    out.norms(layer, hidden, "input_layernorm", "post_attention_layernorm")
    if kind == "glm4":
        out.norms(layer, hidden, "post_self_attn_layernorm", "post_mlp_layernorm")
    if kind == "nemotron":
        out[f"{layer}.input_layernorm.bias"] = out[f"{layer}.post_attention_layernorm.bias"] = [hidden]
    if kind in ("deepseek_v2", "deepseek_v3"):
        latent_shapes(out, layer, c)
    else:
        qkv_bias = c.get("attention_bias") or c.get("use_bias") or kind in ("qwen2", "qwen2_moe")
        out_bias = c.get("use_bias") or (c.get("attention_bias") and kind in ("llama", "nemotron", "gpt_oss"))
        if kind == "gpt_oss":
            out[f"{layer}.self_attn.sinks"] = [c["num_attention_heads"]]
        attention_shapes(out, layer, c, qkv_bias, out_bias, c.get("use_qk_norm") or kind in ("qwen3", "qwen3_moe"))
    if has_experts(c, index):
        expert_shapes(out, layer, c)
    elif kind == "nemotron":
        out.linear(f"{layer}.mlp.up_proj", c["intermediate_size"], hidden, c.get("mlp_bias"))
        out.linear(f"{layer}.mlp.down_proj", hidden, c["intermediate_size"], c.get("mlp_bias"))
    elif kind in ("glm", "glm4"):
        out.linear(f"{layer}.mlp.gate_up_proj", 2 * c["intermediate_size"], hidden)
        out.linear(f"{layer}.mlp.down_proj", hidden, c["intermediate_size"])
    else:
        out.gated(f"{layer}.mlp", hidden, c["intermediate_size"], bias=c.get("mlp_bias") or c.get("use_bias"))


def prediction_shapes(out, c):
    """Layers of multi-token prediction: whole layers behind the last one, or ERNIE's blocks."""
    hidden = c["hidden_size"]
    for i in range(c.get("num_nextn_predict_layers", 0)):
        if c["model_type"] == "ernie4_5_moe":
            block = Shapes()
            block.norms("model.mtp_block." + str(i), hidden, "input_layernorm", "post_attention_layernorm")
            attention_shapes(block, f"model.mtp_block.{i}", c)
            block.gated(f"model.mtp_block.{i}.mlp", hidden, c["intermediate_size"])
            out.update(block)
            out[f"model.mtp_emb_norm.{i}.weight"] = out[f"model.mtp_hidden_norm.{i}.weight"] = [hidden]
            out.linear(f"model.mtp_linear_proj.{i}", hidden, 2 * hidden)
            continue
        layer = c["num_hidden_layers"] + i
        layer_shapes(out, layer, c)
        out.norms(f"model.layers.{layer}", hidden, "enorm", "hnorm", "shared_head.norm")
        out.linear(f"model.layers.{layer}.eh_proj", hidden, 2 * hidden)
        if c["copies"]:
            for name in ("embed_tokens", "shared_head.head"):
                out[f"model.layers.{layer}.{name}.weight"] = [c["vocab_size"], hidden]


def gpt2_shapes(c):
    out, width = Shapes(), c["n_embd"]
    inner = c.get("n_inner") or 4 * width
    out["transformer.wte.weight"] = [c["vocab_size"], width]
    out["transformer.wpe.weight"] = [c["n_positions"], width]
    for i in range(c["n_layer"]):
        layer = f"transformer.h.{i}"
        for name in ("ln_1", "ln_2"):
            out[f"{layer}.{name}.weight"] = out[f"{layer}.{name}.bias"] = [width]
        for name, rows, columns in (("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width), ("mlp.c_fc", width, inner),
                                    ("mlp.c_proj", inner, width)):
            out[f"{layer}.{name}.weight"], out[f"{layer}.{name}.bias"] = [rows, columns], [columns]
        if c["copies"]:
            out[f"{layer}.attn.bias"], out[f"{layer}.attn.masked_bias"] = [1, 1, c["n_positions"], c["n_positions"]], []
    out["transformer.ln_f.weight"] = out["transformer.ln_f.bias"] = [width]
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = [c["vocab_size"], width]
    return out


def chatglm_shapes(c):
    out, hidden, heads, groups = Shapes(), c["hidden_size"], c["num_attention_heads"], c["multi_query_group_num"]
    out["transformer.embedding.word_embeddings.weight"] = [c["padded_vocab_size"], hidden]
    for i in range(c["num_layers"]):
        layer = f"transformer.encoder.layers.{i}"
        out.norms(layer, hidden, "input_layernorm", "post_attention_layernorm")
        out.linear(f"{layer}.self_attention.query_key_value", (heads + 2 * groups) * c["kv_channels"], hidden, c["add_qkv_bias"])
        out.linear(f"{layer}.self_attention.dense", hidden, heads * c["kv_channels"])
        out.linear(f"{layer}.mlp.dense_h_to_4h", 2 * c["ffn_hidden_size"], hidden)
        out.linear(f"{layer}.mlp.dense_4h_to_h", hidden, c["ffn_hidden_size"])
    out["transformer.encoder.final_layernorm.weight"] = [hidden]
    out["transformer.output_layer.weight"] = [c["padded_vocab_size"], hidden]
    if c["copies"]:
        out["transformer.rotary_pos_emb.inv_freq"] = [c["kv_channels"] // 4]
    return out


def hf_shapes(c):
    """Keys and shapes of the checkpoint that Hugging Face writes for this config.json."""
    if c["model_type"] == "gpt2":
        return gpt2_shapes(c)
    if c["model_type"] == "chatglm":
        return chatglm_shapes(c)
    out = Shapes()
    out["model.embed_tokens.weight"] = [c["vocab_size"], c["hidden_size"]]
    for i in range(c["num_hidden_layers"]):
        layer_shapes(out, i, c)
        if c["copies"] and c["model_type"] in ("llama", "mixtral"):
            out[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = [c["hidden_size"] // c["num_attention_heads"] // 2]
    out["model.norm.weight"] = [c["hidden_size"]]
    if c["model_type"] == "nemotron":
        out["model.norm.bias"] = [c["hidden_size"]]
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = [c["vocab_size"], c["hidden_size"]]
    prediction_shapes(out, c)
    return out


def without_prefix(hf):
    """GPT-2 saved as the model without its head."""
    return {key.replace("transformer.", "", 1): tensor for key, tensor in hf.items()}


def hf_model(c, elements):
    return {key: fill(shape, elements) for key, shape in hf_shapes(c).items()}


def is_left_behind(c, key):
    """Tensors that another framework has no place for, or has elsewhere already."""
    ends = (".rotary_emb.inv_freq", ".rotary_pos_emb.inv_freq", ".embed_tokens.weight", ".shared_head.head.weight", ".attn.bias",
            ".attn.masked_bias")
    return key != "model.embed_tokens.weight" and key.endswith(ends)


# ---- Megatron ----


class Megatron:
    """Megatron's names of one pipeline and tensor rank; te: with the modules of Transformer Engine."""

    def __init__(self, c, hf, te):
        self.c, self.hf, self.te, self.out = c, hf, te, {}

    def copy(self, source, target):
        if source in self.hf:
            self.out[target] = self.hf[source]

    def norm(self, source, fused, module):
        """A norm in front of a matrix: inside of it, or a module of its own."""
        for part in ("weight", "bias"):
            if f"{source}.{part}" in self.hf:
                self.out[f"{fused}.layer_norm_{part}" if self.te else f"{module}.{part}"] = self.hf[f"{source}.{part}"]

    def attention(self, layer, to):
        c = self.c
        heads, groups = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
        self.norm(f"{layer}.input_layernorm", f"{to}.self_attention.linear_qkv", f"{to}.input_layernorm")
        for part in ("weight", "bias"):
            if f"{layer}.self_attn.q_proj.{part}" in self.hf:
                q, k, v = (self.hf[f"{layer}.self_attn.{x}_proj.{part}"] for x in "qkv")
                self.out[f"{to}.self_attention.linear_qkv.{part}"] = by_groups(q, k, v, heads, groups)
            self.copy(f"{layer}.self_attn.o_proj.{part}", f"{to}.self_attention.linear_proj.{part}")
        for x in "qk":
            self.copy(f"{layer}.self_attn.{x}_norm.weight", f"{to}.self_attention.{x}_layernorm.weight")
        self.copy(f"{layer}.self_attn.sinks", f"{to}.self_attention.core_attention.softmax_offset")
        self.copy(f"{layer}.post_self_attn_layernorm.weight", f"{to}.self_attention.linear_proj.post_layernorm.weight")

    def latent(self, layer, to):
        self.copy(f"{layer}.input_layernorm.weight", f"{to}.input_layernorm.weight")
        for source, target in (("q_proj", "linear_q_proj"), ("q_a_proj", "linear_q_down_proj"), ("q_b_proj", "linear_q_up_proj"),
                               ("kv_a_proj_with_mqa", "linear_kv_down_proj"), ("kv_b_proj", "linear_kv_up_proj"),
                               ("o_proj", "linear_proj")):
            self.copy(f"{layer}.self_attn.{source}.weight", f"{to}.self_attention.{target}.weight")
        self.norm(f"{layer}.self_attn.q_a_layernorm", f"{to}.self_attention.linear_q_up_proj", f"{to}.self_attention.q_layernorm")
        self.norm(f"{layer}.self_attn.kv_a_layernorm", f"{to}.self_attention.linear_kv_up_proj", f"{to}.self_attention.kv_layernorm")

    def gated(self, source, fc1, fc2, names=("gate_proj", "up_proj", "down_proj")):
        for part in ("weight", "bias"):
            if f"{source}.{names[0]}.{part}" in self.hf:
                self.out[fc1.replace("weight", part)] = self.hf[f"{source}.{names[0]}.{part}"] + self.hf[f"{source}.{names[1]}.{part}"]
                self.out[fc2.replace("weight", part)] = self.hf[f"{source}.{names[2]}.{part}"]

    def turned_experts(self, layer, to):
        """Experts in one tensor, [in, out], with gate and up in turns."""
        for part in ("weight", "bias"):
            self.copy(f"{layer}.mlp.router.{part}", f"{to}.mlp.router.{part}")
            for i, name in ((1, "gate_up_proj"), (2, "down_proj")):
                for e, rows in enumerate(self.hf[f"{layer}.mlp.experts.{name}" + ("_bias" if part == "bias" else "")]):
                    rows = transposed(rows) if part == "weight" else rows
                    key = f"linear_fc{i}.{part}{e}" if self.te else f"local_experts.{e}.linear_fc{i}.{part}"
                    self.out[f"{to}.mlp.experts.{key}"] = rows[::2] + rows[1::2] if i == 1 else rows

    def experts(self, layer, to):
        c, mixtral = self.c, self.c["model_type"] == "mixtral"
        block = f"{layer}.block_sparse_moe" if mixtral else f"{layer}.mlp"
        self.copy(f"{layer}.post_attention_layernorm.weight", f"{to}.pre_mlp_layernorm.weight")
        if c["model_type"] == "gpt_oss":
            self.turned_experts(layer, to)
            return
        self.copy(f"{block}.gate.weight", f"{to}.mlp.router.weight")
        self.copy(f"{block}.gate.e_score_correction_bias", f"{to}.mlp.router.expert_bias")
        if f"{block}.moe_statics.e_score_correction_bias" in self.hf:
            self.out[f"{to}.mlp.router.expert_bias"] = self.hf[f"{block}.moe_statics.e_score_correction_bias"][0]
        for e in range(expert_count(c)):
            fc1, fc2 = ((f"{to}.mlp.experts.linear_fc{i}.weight{e}" if self.te
                         else f"{to}.mlp.experts.local_experts.{e}.linear_fc{i}.weight") for i in (1, 2))
            self.gated(f"{block}.experts.{e}", fc1, fc2, ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj"))
        for shared in ("shared_expert", "shared_experts"):
            self.gated(f"{block}.{shared}", f"{to}.mlp.shared_experts.linear_fc1.weight", f"{to}.mlp.shared_experts.linear_fc2.weight")
        self.copy(f"{block}.shared_expert_gate.weight", f"{to}.mlp.shared_experts.gate_weight")

    def layer(self, index, layer, to):
        (self.latent if f"{layer}.self_attn.kv_b_proj.weight" in self.hf else self.attention)(layer, to)
        if has_experts(self.c, index):
            self.experts(layer, to)
            return
        self.norm(f"{layer}.post_attention_layernorm", f"{to}.mlp.linear_fc1", f"{to}.pre_mlp_layernorm")
        self.gated(f"{layer}.mlp", f"{to}.mlp.linear_fc1.weight", f"{to}.mlp.linear_fc2.weight")
        self.copy(f"{layer}.mlp.gate_up_proj.weight", f"{to}.mlp.linear_fc1.weight")
        if self.c["model_type"] == "nemotron":
            for part in ("weight", "bias"):
                self.copy(f"{layer}.mlp.up_proj.{part}", f"{to}.mlp.linear_fc1.{part}")
                self.copy(f"{layer}.mlp.down_proj.{part}", f"{to}.mlp.linear_fc2.{part}")
        self.copy(f"{layer}.mlp.down_proj.weight", f"{to}.mlp.linear_fc2.weight")
        self.copy(f"{layer}.post_mlp_layernorm.weight", f"{to}.mlp.linear_fc2.post_layernorm.weight")

    def predictions(self):
        c = self.c
        for i in range(c.get("num_nextn_predict_layers", 0) if c["model_type"] != "ernie4_5_moe" else 0):
            layer, to = f"model.layers.{c['num_hidden_layers'] + i}", f"mtp.layers.{i}"
            for source, target in (("enorm", "enorm"), ("hnorm", "hnorm"), ("eh_proj", "eh_proj"), ("shared_head.norm", "final_layernorm")):
                self.copy(f"{layer}.{source}.weight", f"{to}.{target}.weight")
            self.layer(c["num_hidden_layers"] + i, layer, f"{to}.transformer_layer")

    def decoder(self):
        for source, target in (("model.embed_tokens", "embedding.word_embeddings"), ("model.norm", "decoder.final_layernorm"),
                               ("lm_head", "output_layer")):
            self.copy(f"{source}.weight", f"{target}.weight")
        self.copy("model.norm.bias", "decoder.final_layernorm.bias")
        for i in range(self.c["num_hidden_layers"]):
            self.layer(i, f"model.layers.{i}", f"decoder.layers.{i}")
        self.predictions()
        return self.out

    def gpt2(self):
        c, hf, out = self.c, self.hf, self.out
        width, heads = c["n_embd"], c["n_head"]
        for source, target in (("transformer.wte.weight", "embedding.word_embeddings.weight"),
                               ("transformer.wpe.weight", "embedding.position_embeddings.weight"),
                               ("lm_head.weight", "output_layer.weight"), ("transformer.ln_f.weight", "decoder.final_layernorm.weight"),
                               ("transformer.ln_f.bias", "decoder.final_layernorm.bias")):
            self.copy(source, target)
        for i in range(c["n_layer"]):
            layer, to = f"transformer.h.{i}", f"decoder.layers.{i}"
            self.norm(f"{layer}.ln_1", f"{to}.self_attention.linear_qkv", f"{to}.input_layernorm")
            self.norm(f"{layer}.ln_2", f"{to}.mlp.linear_fc1", f"{to}.pre_mlp_layernorm")
            for part in ("weight", "bias"):
                fused = transposed(hf[f"{layer}.attn.c_attn.weight"]) if part == "weight" else hf[f"{layer}.attn.c_attn.bias"]
                out[f"{to}.self_attention.linear_qkv.{part}"] = by_groups(fused[:width], fused[width:2 * width], fused[2 * width:],
                                                                          heads, heads)
            for source, target in (("attn.c_proj", "self_attention.linear_proj"), ("mlp.c_fc", "mlp.linear_fc1"),
                                   ("mlp.c_proj", "mlp.linear_fc2")):
                out[f"{to}.{target}.weight"] = transposed(hf[f"{layer}.{source}.weight"])
                out[f"{to}.{target}.bias"] = hf[f"{layer}.{source}.bias"]
        return out

    def chatglm(self):
        c, hf, out = self.c, self.hf, self.out
        heads, groups, head = c["num_attention_heads"], c["multi_query_group_num"], c["kv_channels"]
        for source, target in (("transformer.embedding.word_embeddings", "embedding.word_embeddings"),
                               ("transformer.output_layer", "output_layer"),
                               ("transformer.encoder.final_layernorm", "decoder.final_layernorm")):
            self.copy(f"{source}.weight", f"{target}.weight")
        for i in range(c["num_layers"]):
            layer, to = f"transformer.encoder.layers.{i}", f"decoder.layers.{i}"
            self.norm(f"{layer}.input_layernorm", f"{to}.self_attention.linear_qkv", f"{to}.input_layernorm")
            self.norm(f"{layer}.post_attention_layernorm", f"{to}.mlp.linear_fc1", f"{to}.pre_mlp_layernorm")
            for part in ("weight", "bias"):
                fused = hf.get(f"{layer}.self_attention.query_key_value.{part}")
                if fused:
                    k, v = heads * head, (heads + groups) * head
                    out[f"{to}.self_attention.linear_qkv.{part}"] = by_groups(fused[:k], fused[k:v], fused[v:], heads, groups)
            for source, target in (("self_attention.dense", "self_attention.linear_proj"), ("mlp.dense_h_to_4h", "mlp.linear_fc1"),
                                   ("mlp.dense_4h_to_h", "mlp.linear_fc2")):
                self.copy(f"{layer}.{source}.weight", f"{to}.{target}.weight")
        return out


def megatron_model(c, hf, te=True):
    model = Megatron(c, hf, te)
    return {"gpt2": model.gpt2, "chatglm": model.chatglm}.get(c["model_type"], model.decoder)()


# Names of Megatron-LM's modules from before Megatron Core: of the stack, the norms, the attention.
OLD_NAMES = {
    "of 2022": ("encoder", "input_norm", "post_attention_norm", "final_norm", "self_attention"),
    "of 2021": ("encoder", "input_layernorm", "post_attention_layernorm", "final_layernorm", "self_attention"),
    "of 2020": ("transformer", "input_layernorm", "post_attention_layernorm", "final_layernorm", "attention"),
}


def megatron_old_model(model, names):
    """A dense model in those names, from one in the names of Transformer Engine's modules."""
    stack, before, after, last, attention = names
    renamed = (("self_attention.linear_qkv.layer_norm_", before + "."), ("mlp.linear_fc1.layer_norm_", after + "."),
               ("self_attention.linear_qkv.", attention + ".query_key_value."), ("self_attention.linear_proj.", attention + ".dense."),
               ("linear_fc1.", "dense_h_to_4h."), ("linear_fc2.", "dense_4h_to_h."), ("decoder.final_layernorm.", f"{stack}.{last}."),
               ("decoder.", stack + "."))
    out = {}
    for key, tensor in model.items():
        for name, old in renamed:
            key = key.replace(name, old)
        out["language_model." + key] = tensor
    return out


# ---- Paddle ----

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "gate_proj", "up_proj",
           "down_proj", "eh_proj", "w1", "w2", "w3")


def is_linear(c, key):
    parts = key.split(".")
    if parts[-1] != "weight":
        return False
    kind = c["model_type"]
    if kind == "mixtral" and (key.endswith("block_sparse_moe.gate.weight") or key == "lm_head.weight"):
        return True
    if kind in ("qwen2_moe", "qwen3_moe") and parts[-2] in ("gate", "shared_expert_gate"):
        return True
    return parts[-2] in LINEARS or parts[1] == "mtp_linear_proj"


def paddle_name(c, key):
    if c["model_type"] == "mixtral":
        return key.replace("model.", "mixtral.", 1)
    parts = key.split(".")
    if key.startswith("model.layers.") and int(parts[2]) >= c["num_hidden_layers"]:
        if parts[3] == "shared_head":
            return ".".join(parts[:3] + ["norm.weight"])
        if parts[3] not in ("enorm", "hnorm", "eh_proj"):
            return ".".join(parts[:3] + ["transformer_layer"] + parts[3:])
    return key


def gpt2_paddle(c, hf):
    width, heads, out = c["n_embd"], c["n_head"], {}
    names = {"wte": "gpt.embeddings.word_embeddings", "wpe": "gpt.embeddings.position_embeddings", "ln_f": "gpt.decoder.norm"}
    inner = {"ln_1": "norm1", "ln_2": "norm2", "attn.c_proj": "self_attn.out_proj", "mlp.c_fc": "linear1", "mlp.c_proj": "linear2",
             "attn.c_attn": "self_attn.qkv_proj"}
    for key, tensor in hf.items():
        parts = key.split(".")
        if parts[1] != "h":
            out[f"{names[parts[1]]}.{parts[-1]}"] = tensor
            continue
        name = ".".join(parts[3:-1])
        if name == "attn.c_attn":
            rows = transposed(tensor) if parts[-1] == "weight" else tensor
            rows = by_groups(rows[:width], rows[width:2 * width], rows[2 * width:], heads, heads)
            tensor = transposed(rows) if parts[-1] == "weight" else rows
        out[f"gpt.decoder.layers.{parts[2]}.{inner[name]}.{parts[-1]}"] = tensor
    return out


def paddle_model(c, hf, fused=True):
    hf = {key: tensor for key, tensor in hf.items() if not is_left_behind(c, key)}
    if c["model_type"] == "gpt2":
        return gpt2_paddle(c, hf)
    out = {}
    heads, groups = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
    for key, tensor in hf.items():
        to, turn = paddle_name(c, key), transposed if is_linear(c, key) else lambda x: x
        stem, part = key.rsplit(".", 1)
        fused = fused and c["model_type"] != "mixtral"
        if fused and stem.endswith((".k_proj", ".v_proj", ".up_proj")):
            continue
        if fused and stem.endswith(".self_attn.q_proj") and stem[:-6] + "k_proj.weight" in hf:
            q, k, v = (hf[f"{stem[:-6]}{x}_proj.{part}"] for x in "qkv")
            out[to.replace("q_proj", "qkv_proj")] = turn(by_groups(q, k, v, heads, groups))
        elif fused and stem.endswith(".gate_proj"):
            out[to.replace("gate_proj", "up_gate_proj")] = turn(tensor + hf[f"{stem[:-9]}up_proj.{part}"])
        else:
            out[to] = turn(tensor)
    return out


# ---- the models ----

BASE = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 10,
        "vocab_size": 13, "tie_word_embeddings": False, "copies": False}
LATENT = {"num_attention_heads": 3, "num_key_value_heads": 3, "q_lora_rank": 7, "kv_lora_rank": 5, "qk_nope_head_dim": 4,
          "qk_rope_head_dim": 2, "v_head_dim": 3, "first_k_dense_replace": 1, "n_routed_experts": 3, "moe_intermediate_size": 5,
          "n_shared_experts": 2}


def config(kind, **more):
    """None for num_key_value_heads: an old config.json, which does not say it."""
    c = {**BASE, "model_type": kind, **more}
    return c if c["num_key_value_heads"] else {key: value for key, value in c.items() if key != "num_key_value_heads"}


# name: config, mapping text to Megatron, to fused Paddle, to Paddle where nothing is fused. `copies` (ours, no word of Hugging Face's) adds
# the tensors that old or complete checkpoints also have, and that a mapping leaves behind.
CASES = {
    "llama": (config("llama"), "llama", "llama", "decoders"),
    "llama-heads-alike": (config("llama", num_hidden_layers=11, hidden_size=12, num_attention_heads=3, num_key_value_heads=None,
                                 attention_bias=True, mlp_bias=True, copies=True), "llama", "llama", None),
    "llama-tied": (config("llama", tie_word_embeddings=True, num_hidden_layers=1), "llama", "llama", "decoders"),
    "mistral": (config("mistral", head_dim=6), "llama", "llama", "decoders"),
    "qwen2": (config("qwen2", tie_word_embeddings=True), "llama", "llama", "decoders"),
    "qwen3": (config("qwen3", head_dim=8, num_key_value_heads=3), "llama", "llama", "decoders"),
    "ernie4_5": (config("ernie4_5", head_dim=6, use_bias=True), "llama", "llama", "decoders"),
    "mixtral": (config("mixtral", num_local_experts=11), "mixtral", "mixtral", None),
    "mixtral-old": (config("mixtral", num_local_experts=2, copies=True), "mixtral", "mixtral", None),
    "qwen2-moe": (config("qwen2_moe", num_hidden_layers=3, num_experts=3, moe_intermediate_size=5, shared_expert_intermediate_size=7,
                         mlp_only_layers=[1], decoder_sparse_step=1), "qwen-moe", "qwen-moe", "decoders"),
    "qwen3-moe": (config("qwen3_moe", num_experts=5, moe_intermediate_size=3, mlp_only_layers=[], decoder_sparse_step=1, head_dim=6),
                  "qwen-moe", "qwen-moe", "decoders"),
    "deepseek-v2-lite": (config("deepseek_v2", **{**LATENT, "q_lora_rank": None}), "deepseek", "deepseek", "decoders"),
    "deepseek-v3": (config("deepseek_v3", **LATENT, num_nextn_predict_layers=1), "deepseek", "deepseek", "decoders"),
    "deepseek-v3-copies": (config("deepseek_v3", **{**LATENT, "num_hidden_layers": 9, "first_k_dense_replace": 3},
                                  num_nextn_predict_layers=2, copies=True), "deepseek", "deepseek", "decoders"),
    "ernie4_5-moe": (config("ernie4_5_moe", head_dim=6, num_hidden_layers=3, moe_num_experts=3, moe_intermediate_size=5,
                            moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=2, moe_layer_interval=1, use_bias=False),
                     "ernie4_5-moe", "ernie4_5-moe", "decoders"),
    "ernie4_5-moe-mtp": (config("ernie4_5_moe", head_dim=6, moe_num_experts=2, moe_intermediate_size=5, moe_num_shared_experts=1,
                                moe_layer_start_index=0, moe_layer_end_index=1, moe_layer_interval=1, use_bias=False,
                                num_nextn_predict_layers=1), "ernie4_5-moe", "ernie4_5-moe", "decoders"),
    "glm": (config("glm", head_dim=6, attention_bias=True), "glm4", None, None),
    "glm4": (config("glm4", head_dim=6, attention_bias=True), "glm4", None, None),
    "glm4-moe": (config("glm4_moe", head_dim=6, num_hidden_layers=3, first_k_dense_replace=1, n_routed_experts=3, moe_intermediate_size=5,
                        n_shared_experts=1, use_qk_norm=True, attention_bias=True, num_nextn_predict_layers=1), "glm4-moe", "glm4-moe",
                 "decoders"),
    "gpt-oss": (config("gpt_oss", head_dim=6, num_local_experts=3, attention_bias=True), "gpt-oss", None, None),
    "nemotron": (config("nemotron", head_dim=6, partial_rotary_factor=0.5), "nemotron", None, None),
    "nemotron-biases": (config("nemotron", num_key_value_heads=6, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
                        "nemotron", None, None),
    "chatglm": ({"model_type": "chatglm", "hidden_size": 16, "num_layers": 2, "num_attention_heads": 4, "multi_query_group_num": 2,
                 "kv_channels": 4, "ffn_hidden_size": 6, "padded_vocab_size": 13, "add_qkv_bias": True, "copies": True}, "chatglm",
                None, None),
    "gpt2": ({"model_type": "gpt2", "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 7, "vocab_size": 13,
              "tie_word_embeddings": True, "copies": False}, "gpt2", "gpt2", None),
    "gpt2-old": ({"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 3, "n_inner": 5, "vocab_size": 13,
                  "tie_word_embeddings": True, "copies": True},
                 "gpt2", "gpt2", None),
    "gpt2-untied": ({"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 3, "vocab_size": 13,
                     "tie_word_embeddings": False, "copies": False},
                    "gpt2", None, None),
}

