#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes data/ beside itself: tiny random models of each architecture and switch, as the Hugging Face library
saves them, and what it makes of tokens.npy: logits, of BERT the last hidden states. The forward pass is in
float64 from the weights as the file has them.

    python3 -m venv /somewhere/else && /somewhere/else/bin/pip install torch transformers gguf
    /somewhere/else/bin/python tests/lm/make_models.py
"""
import json
import pathlib
import shutil

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import (BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig,
                          GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM)

HERE = pathlib.Path(__file__).resolve().parent / 'data'
TOKENS = [3, 17, 17, 60, 0, 41, 5, 63, 22, 9, 3, 30]
VOCABULARY = 64


def filled(kind, config, seed, dtype=torch.float32):
    """A model whose numbers are large enough for every part to matter."""
    config._attn_implementation = 'eager'
    model = kind(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in sorted(model.named_parameters()):
            noise = torch.randn(value.shape, generator=generator) * (.1 if value.dim() == 1 else .3)
            is_scale = value.dim() == 1 and name.endswith('weight')
            value.copy_(noise + 1 if is_scale else noise)
    return model.to(dtype)


def outcome(model):
    """Logits or last hidden states, in float64."""
    with torch.no_grad():
        out = model.double()(torch.tensor([TOKENS]))
    found = out.logits if hasattr(out, 'logits') else out.last_hidden_state
    return found[0].numpy().astype(np.float32)


def save(name, model, shard='1GB'):
    folder = HERE / name
    model.save_pretrained(folder, max_shard_size=shard)
    (folder / 'generation_config.json').unlink(missing_ok=True)
    # As a reader has it: in memory a 16-bit model's rotary frequencies are rounded, in its file they are not.
    np.save(folder / 'expected.npy', outcome(type(model).from_pretrained(folder, dtype=torch.float64)))
    return folder


def edit_config(folder, change):
    path = folder / 'config.json'
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + '\n')


def small(layers='num_hidden_layers', width='hidden_size', heads='num_attention_heads',
          context='max_position_embeddings'):
    return {'vocab_size': VOCABULARY, layers: 2, width: 16, heads: 2, context: 32}


def gpt2():
    names = small('n_layer', 'n_embd', 'n_head', 'n_positions')
    save('gpt2', filled(GPT2LMHeadModel, GPT2Config(**names), 1))
    config = GPT2Config(**names, n_inner=24, scale_attn_by_inverse_layer_idx=True, layer_norm_epsilon=1e-3,
                        activation_function='relu')
    model = filled(GPT2LMHeadModel, config, 2)
    folder = save('gpt2-scaled', model)
    model.config.scale_attn_by_inverse_layer_idx = False
    for block in model.transformer.h:
        block.attn.scale_attn_by_inverse_layer_idx = False
        block.attn.scaling = block.attn.head_dim**-.5
    assert np.abs(outcome(model) - np.load(folder / 'expected.npy')).max() > 1e-3
    # As the first files of GPT-2: no prefix, and the causal mask beside the weights.
    tensors = {key.removeprefix('transformer.'): value
               for key, value in load_file(folder / 'model.safetensors').items()}
    for layer in range(2):
        tensors[f'h.{layer}.attn.bias'] = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
        tensors[f'h.{layer}.attn.masked_bias'] = torch.tensor(-1e4)
    save_file(tensors, folder / 'model.safetensors', {'format': 'pt'})


def neox():
    names = small() | {'hidden_size': 32, 'intermediate_size': 48}
    save('neox', filled(GPTNeoXForCausalLM, GPTNeoXConfig(**names), 3, torch.float16))
    config = GPTNeoXConfig(**names, use_parallel_residual=False, rotary_pct=.5, rotary_emb_base=500)
    folder = save('neox-serial', filled(GPTNeoXForCausalLM, config, 4, torch.bfloat16))

    def old_names(config):
        rope = config.pop('rope_parameters')
        assert rope['rope_theta'] == 500 and rope['partial_rotary_factor'] == .5
        config |= {'rotary_pct': .5, 'rotary_emb_base': 500, 'rope_scaling': None}
    edit_config(folder, old_names)


def llama():
    names = small() | {'intermediate_size': 24}
    config = LlamaConfig(**names | {'num_attention_heads': 4}, num_key_value_heads=2, head_dim=8,
                         tie_word_embeddings=True, eos_token_id=[2, 7])
    save('llama', filled(LlamaForCausalLM, config, 5))
    config = LlamaConfig(**names, rope_parameters={'rope_type': 'default', 'rope_theta': 100000.0},
                         rms_norm_eps=1e-3)
    save('llama-sharded', filled(LlamaForCausalLM, config, 6), shard='10KB')


def bert():
    save('bert', filled(BertModel, BertConfig(**small(), intermediate_size=24), 7))


def adjacent(weight, heads):
    """Rows for RoPE on adjacent pairs, as .gguf files of llama have them."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def halves(weight, heads):
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


GGUF_NAMES = {'input_layernorm': 'attn_norm', 'self_attn.q_proj': 'attn_q', 'self_attn.k_proj': 'attn_k',
              'self_attn.v_proj': 'attn_v', 'self_attn.o_proj': 'attn_output',
              'post_attention_layernorm': 'ffn_norm', 'mlp.gate_proj': 'ffn_gate', 'mlp.up_proj': 'ffn_up',
              'mlp.down_proj': 'ffn_down'}
GGUF_TYPES = {'self_attn.q_proj': 'Q4_1', 'self_attn.k_proj': 'Q8_0', 'self_attn.v_proj': 'F16',
              'self_attn.o_proj': 'BF16', 'mlp.gate_proj': 'Q4_0', 'mlp.up_proj': 'Q4_1',
              'mlp.down_proj': 'Q4_1', 'model.embed_tokens': 'Q8_0'}


def gguf_name(name):
    stem = name.removesuffix('.weight')
    if stem in ('model.embed_tokens', 'model.norm'):
        return {'model.embed_tokens': 'token_embd', 'model.norm': 'output_norm'}[stem] + '.weight', stem
    _, _, layer, part = stem.split('.', 3)
    return f'blk.{layer}.{GGUF_NAMES[part]}.weight', part


def llama_gguf():
    heads = {'self_attn.q_proj': 2, 'self_attn.k_proj': 1}
    config = LlamaConfig(**small() | {'hidden_size': 32, 'intermediate_size': 64}, num_key_value_heads=1,
                         tie_word_embeddings=True,
                         rope_parameters={'rope_type': 'default', 'rope_theta': 20000.0})
    model = filled(LlamaForCausalLM, config, 8)
    folder = HERE / 'llama-gguf'
    folder.mkdir()
    writer = gguf.GGUFWriter(folder / 'model.gguf', 'llama')
    writer.add_context_length(32)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(20000.0)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(VOCABULARY)
    writer.add_token_list([f't{i}' for i in range(VOCABULARY)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    with torch.no_grad():
        for name, value in model.named_parameters():
            stored, part = gguf_name(name)
            kind = gguf.GGMLQuantizationType[GGUF_TYPES.get(part, 'F32')]
            rows = value.numpy()
            data = gguf.quantize(adjacent(rows, heads[part]) if part in heads else rows, kind)
            writer.add_tensor(stored, data, raw_dtype=kind)
            back = gguf.dequantize(data, kind).reshape(rows.shape).astype(np.float32)
            value.copy_(torch.from_numpy((halves(back, heads[part]) if part in heads else back).copy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    # The same model as the library saves it: what reading the .gguf file must come to.
    model.save_pretrained(folder)
    (folder / 'generation_config.json').unlink()
    np.save(folder / 'expected.npy', outcome(model))


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    np.save(HERE / 'tokens.npy', np.array(TOKENS))
    for make in (gpt2, neox, llama, bert, llama_gguf):
        make()


if __name__ == '__main__':
    main()
