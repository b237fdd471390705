# SPDX-License-Identifier: MIT
"""Small random models of transformers on Loam against their eager attention: logits and generation."""

import copy
import doctest

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
from loam_attn import hf  # noqa: E402

SMALL = dict(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
GROUPED = SMALL | dict(num_key_value_heads=2, max_position_embeddings=64)
MODELS = {
    "gpt2": lambda: transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "neox": lambda: transformers.GPTNeoXConfig(**SMALL, max_position_embeddings=64),
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "qwen2": lambda: transformers.Qwen2Config(**GROUPED),
    "qwen2_window": lambda: transformers.Qwen2Config(
        **GROUPED, use_sliding_window=True, sliding_window=5, max_window_layers=0
    ),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED, head_dim=16),
}
TOKENS = torch.randint(0, 61, (2, 17), generator=torch.Generator().manual_seed(0))
LEFT = torch.ones_like(TOKENS).index_put((torch.tensor(0), torch.arange(4)), torch.tensor(0))


def made(name, implementation, **options):
    hf.register()
    torch.manual_seed(3)
    config = MODELS[name]()
    config.update(options)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            # Scores of about 1, of which a wrong mask would be seen.
            p.mul_(4)
    model.eval().generation_config.pad_token_id = 0
    if implementation == "loam_parallax":
        hf.add_probes(model)
    model.set_attn_implementation(implementation)
    return model


def logits(model, **options):
    with torch.no_grad():
        return model(TOKENS, **options).logits


def generate(model, mask=None, **options):
    options = dict(max_new_tokens=12, do_sample=False, attention_mask=mask) | options
    return model.generate(TOKENS, eos_token_id=None, **options)


@pytest.mark.parametrize("name", MODELS)
def test_softmax_is_eager(name):
    eager, loam = made(name, "eager"), made(name, "loam_softmax")
    want = logits(eager)
    assert (logits(loam) - want).abs().max() < 1e-4 * want.abs().max()
    want, found = (logits(model, attention_mask=LEFT) for model in (eager, loam))
    assert (found - want)[LEFT.bool()].abs().max() < 1e-4 * want.abs().max()
    assert not torch.equal(found[0, 4:], logits(loam)[0, 4:])
    assert torch.equal(generate(loam), generate(eager))
    assert torch.equal(generate(loam, LEFT), generate(eager, LEFT))
    assert torch.equal(generate(loam, num_beams=3), generate(eager, num_beams=3))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_eagers(name):
    eager, loam = made(name, "eager"), made(name, "loam_softmax")
    for model in eager, loam:
        model(TOKENS, labels=TOKENS).loss.backward()
    for (key, p), q in zip(eager.named_parameters(), loam.parameters()):
        assert (p.grad - q.grad).abs().max() < 1e-3 * (1e-3 + p.grad.abs().max()), key


@pytest.mark.parametrize("name", MODELS)
def test_lla(name):
    far, near = made(name, "loam_lla", loam_ridge=1e6), made(name, "loam_softmax")
    want = logits(near)
    assert (logits(far) - want).abs().max() < 1e-3 * want.abs().max()
    model = made(name, "loam_lla", loam_ridge=0.5, loam_ridge_unit="max")
    assert (logits(model) - want).abs().max() > 1e-2 * want.abs().max()
    assert torch.equal(generate(model), generate(model, use_cache=False))
    assert torch.equal(generate(model, LEFT), generate(model, LEFT, use_cache=False))


@pytest.mark.parametrize("name", MODELS)
def test_parallax(name):
    model, want = made(name, "loam_parallax"), logits(made(name, "loam_softmax"))
    assert (logits(model) - want).abs().max() < 1e-4 * want.abs().max()
    model(TOKENS, labels=TOKENS).loss.backward()
    probes = [p for key, p in model.named_parameters() if key.endswith("loam_probe")]
    assert len(probes) == 2 and all(p.grad.abs().max() > 0 for p in probes)
    with torch.no_grad():
        for p in probes:
            p.normal_(0, 0.1)
    assert (logits(model) - want).abs().max() > 1e-2 * want.abs().max()
    assert torch.equal(generate(model), generate(model, use_cache=False))


def test_refused():
    model = made("llama", "loam_softmax")
    with pytest.raises(ValueError, match="attention_mask: shape .*, expected that of padding"):
        logits(model, attention_mask=torch.zeros(2, 1, 17, 17))
    with pytest.raises(ValueError, match="no static caches"):
        generate(model, cache_implementation="static")
    model.config.attention_dropout = 0.1
    dropping = copy.deepcopy(model).train()
    for layer in dropping.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(ValueError, match="dropout: 0.1, but Loam's attention has none"):
        logits(dropping)
    model.set_attn_implementation("loam_parallax")
    with pytest.raises(ValueError, match="LlamaAttention: has no probe"):
        logits(model)
    with pytest.raises(ValueError, match="Loam has causal masks"):
        logits(
            made("llama", "loam_softmax"),
            position_ids=torch.cat([torch.arange(9), torch.arange(8)]).expand(2, -1),
            use_cache=False,
        )


def test_examples_of_docstrings():
    found = doctest.testmod(hf)
    assert found.attempted > 3 and found.failed == 0
