# SPDX-License-Identifier: MIT
"""On a GPU: layers, caches, models of transformers, and what PyTorch does with functions there. That each
function is near the CPU's is in test_torch.py."""

import pytest

import loam_attn as la

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
from test_functions import ALL, output  # noqa: E402
from test_nn import LAYERS, T, made, tokens  # noqa: E402
from test_torch import Tensors  # noqa: E402

torch.backends.cuda.matmul.allow_tf32 = False


def near(found, want, part=2e-3):
    assert found.is_cuda
    assert (found.cpu() - want).abs().max() < part * (1 + want.abs().max())


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_near_the_cpu(name):
    layer, x = made(name), tokens()
    want = layer(x)
    want.square().sum().backward()
    gradients = {key: p.grad for key, p in layer.named_parameters()}
    layer.zero_grad()
    layer.cuda()
    y = layer(x.cuda())
    near(y, want)
    y.square().sum().backward()
    for key, p in layer.named_parameters():
        near(p.grad, gradients[key], 5e-3)


@pytest.mark.parametrize("name", LAYERS)
def test_a_cache_has_the_tokens_before(name):
    layer, x, cache = made(name).cuda(), tokens().cuda(), la.Cache()
    with torch.no_grad():
        parts = [layer(x[:, a:b], cache) for a, b in ((0, 12), (12, 13), (13, T))]
        near(torch.cat(parts, 1), layer(x).cpu())


def test_a_hybrid_goes_on_from_its_state():
    d, cache = Tensors().to(lambda x: x.cuda()), la.Cache()
    parts = []
    with torch.no_grad():
        for a, b in (0, 12), (12, 13), (13, 23):
            part = Tensors().to(lambda x: x.cuda())
            part.q, part.k, part.v = (x[:, a:b] for x in (d.q, d.k, d.v))
            parts.append(ALL["hybrid"](part, cache=cache))
    near(torch.cat(parts, 1), ALL["hybrid"](Tensors()))


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_a_scale_that_is_learnt(place):
    d, on = Tensors(differentiable=True), Tensors().to(lambda x: x.cuda().requires_grad_())
    on.scale = on.scale.detach().to(place).requires_grad_()
    for x in d, on:
        output(ALL["ssd_scale"](x)).square().sum().backward()
    assert on.scale.grad.device.type == place and on.scale.grad.shape == ()
    assert abs(float(on.scale.grad) - float(d.scale.grad)) < 2e-3 * (1 + abs(float(d.scale.grad)))


def test_what_a_plan_says():
    q = torch.zeros((1, 512, 8, 64), dtype=torch.bfloat16, device="cuda")
    found = la.plan(la.softmax_attention, q, q, q)
    assert (
        found.kernel in (row.name for row in la.kernels() if row.backend == "cuda")
        and found.fallback != found.kernel
    )


@pytest.mark.parametrize("name", ["softmax", "lla_token", "gated_delta", "features_all", "over_mesa"])
def test_a_graph_of_a_forward_and_its_backward(name):
    d = Tensors(tokens=64).to(lambda x: x.cuda().requires_grad_())

    def step():
        d.q.grad = None
        output(ALL[name](d)).square().sum().backward()
        return d.q.grad

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grad = step()
    with torch.no_grad():
        d.q.mul_(0.5)
    graph.replay()
    assert torch.equal(grad.clone(), step())


def test_autocast():
    d = Tensors(tokens=64).to(lambda x: x.cuda().requires_grad_())
    with torch.autocast("cuda", torch.bfloat16):
        o = la.forgetting_attention(d.q, d.k, d.v, d.g)
    assert o.dtype == torch.bfloat16
    o.sum().backward()
    assert d.q.grad.dtype == torch.float32 and d.g.grad.dtype == torch.float32


def test_vmap():
    d = Tensors().to(lambda x: x.cuda())
    q, k, v = (x.unsqueeze(1).repeat(1, 3, 1, 1, 1) for x in (d.q, d.k, d.v))
    o = torch.func.vmap(la.softmax_attention, in_dims=1, out_dims=1)(q, k, v)
    assert torch.equal(o[:, 2], la.softmax_attention(d.q, d.k, d.v))


def test_packed_sequences_by_lengths_of_either_memory():
    d = Tensors(batch=1).to(lambda x: x.cuda())
    ends = torch.tensor([0, 5, 5, 14, 23])
    for name in "softmax", "gla":
        on, off = (output(ALL[name](d, cu_seqlens=x)) for x in (ends.cuda(), ends))
        assert torch.equal(on, off)
        near(on, output(ALL[name](Tensors(batch=1), cu_seqlens=ends)))


def test_keys_that_are_not_in_use():
    d = Tensors()
    lengths = torch.tensor([T - 4, T])
    want = la.softmax_attention(d.q, d.k, d.v, key_lengths=lengths)
    d.to(lambda x: x.cuda())
    for x in lengths, lengths.cuda():
        near(la.softmax_attention(d.q, d.k, d.v, key_lengths=x), want)


@pytest.mark.parametrize("kind", ["normal", "orthogonal"])
def test_projections_estimate_softmax(kind):
    d = Tensors(tokens=64).to(lambda x: (x / 2).cuda())
    z = torch.from_numpy(la.projection(4, 512, 8, kind)).cuda()
    o, _ = la.linear_attention(d.q, d.k, d.v, feature_map="positive", z=z)
    assert (o - la.softmax_attention(d.q, d.k, d.v)).abs().mean() < 0.03


def test_rotary_positions():
    x = tokens().unflatten(-1, (4, 8)).clone().requires_grad_()
    y = x.detach().cuda().requires_grad_()
    want, found = la.rope(x, offset=3), la.rope(y, offset=3)
    near(found, want, 1e-5)
    (want**3).sum().backward()
    (found**3).sum().backward()
    near(y.grad, x.grad, 1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_models_of_transformers(name):
    pytest.importorskip("transformers", reason="transformers is not installed")
    import test_hf as hf

    eager, loam = (hf.made(name, kind).cuda() for kind in ("eager", "loam_softmax"))
    with torch.no_grad():
        on = hf.TOKENS.cuda()
        near(loam(on).logits, eager(on).logits.cpu())
    kept = dict(max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert torch.equal(loam.generate(on, **kept), eager.generate(on, **kept))


@pytest.mark.parametrize("name", ["softmax", "kda"])
def test_compiled_in_one_graph(name):
    layer, x = made(name).cuda(), tokens().cuda()
    compiled = torch.compile(layer, fullgraph=True)
    near(compiled(x), layer(x).detach().cpu())
    compiled(x).square().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
