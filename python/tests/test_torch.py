# SPDX-License-Identifier: MIT
"""Tensors of PyTorch: the same bits as arrays of NumPy, gradients, and what PyTorch does with functions."""

import contextlib
import copy
import gc
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_functions import ALL, LOCAL, USUAL, Data, output, strange

import loam_attn as la

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch._inductor.config  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

# Graphs that Inductor keeps on disk have the shapes of operators as another version of them said.
torch._inductor.config.force_disable_caches = True
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
OVER = [name for name in ALL if name.startswith("over")]
KINDS = [
    "features_all",
    "hybrid",
    "over_mesa",
    "softmax",
    "parallax",
    "lla_token",
    "lla_scale",
    "forgetting",
    "path_g",
    "gla",
    "gated_delta",
    "kda",
    "mesa_head",
]


class Tensors(Data):
    """The data as tensors, which want gradients where `differentiable`."""

    def __init__(self, dtype="f4", differentiable=False, **sizes):
        super().__init__(dtype, **sizes)
        for name, x in vars(self).items():
            if isinstance(x, np.ndarray):
                setattr(self, name, torch.tensor(x, requires_grad=differentiable))
        self.ridge = [torch.tensor(x, requires_grad=differentiable) for x in self.ridge]
        self.fixed = [torch.tensor(x) for x in self.fixed]

    def to(self, change):
        for name, x in vars(self).items():
            if isinstance(x, torch.Tensor):
                setattr(self, name, change(x))
        self.ridge = [change(x) for x in self.ridge]
        self.fixed = [change(x).detach() for x in self.fixed]
        return self

    def leaves(self):
        named = {name: x for name, x in vars(self).items() if isinstance(x, torch.Tensor)}
        return named | {f"ridge{i}": x for i, x in enumerate(self.ridge)}

    def grads(self):
        return {name: x.grad for name, x in self.leaves().items() if x.grad is not None}


def gradients(call, d):
    o = output(call(d))
    weight = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o)
    (o * weight).sum().backward()
    return d.grads()


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
@pytest.mark.parametrize("name", ALL)
def test_the_same_bits_as_numpy(name, dtype):
    o, want = output(ALL[name](Tensors(dtype))), output(ALL[name](Data(dtype)))
    assert isinstance(o, torch.Tensor) and np.array_equal(o.numpy(), want)


@pytest.mark.parametrize("name", USUAL)
def test_results_that_are_wanted(name):
    options = dict(return_info=True)
    options["return_lse" if name in LOCAL else "output_final_state"] = True
    rows = [3, 2] if name in OVER else [2]
    found, want = ALL[name](Tensors(), **options), ALL[name](Data("f4"), **options)
    assert np.array_equal(found[1].numpy(), want[1])
    for wanting in Tensors(differentiable=True), Tensors():
        results = ALL[name](wanting, **options)
        assert len(results) == len(want)
        if name == "lla_path" and wanting.q.requires_grad:
            # Its rows are solved otherwise where a backward follows (docs/scores.md).
            assert all(torch.allclose(x, y, atol=1e-4) for x, y in zip(results[:2], found))
            continue
        assert all(torch.equal(x, y) for x, y in zip(results[:2], found))
        for i in rows:
            for field in want[i].dtype.names:
                assert np.array_equal(getattr(results[i], field).numpy(), want[i][field])


def test_bfloat16():
    d = Tensors()
    low = [x.bfloat16() for x in (d.q, d.k, d.v)]
    o = la.softmax_attention(*low)
    assert o.dtype == torch.bfloat16
    assert (o.float() - la.softmax_attention(d.q, d.k, d.v)).abs().max() < 2e-2


@pytest.mark.parametrize("name", ALL)
def test_gradients_are_those_of_numpy(name):
    d, n = Tensors(differentiable=True), Data("f4")
    o = output(ALL[name](d))
    o.backward(torch.ones_like(o))

    def taped(q):
        n.q = q
        return ALL[name](n)

    result, pullback = la.vjp(taped, n.q)
    want = pullback(np.ones_like(output(result)))
    found = d.grads()
    pairs = {"gk": "g", "beta_kv": "beta", "sink": "sink_bias"}
    found = {pairs.get(key, "ridge" if key[:5] == "ridge" else key): x for key, x in found.items()}
    if name == "retention":
        # RetNet's decay, which is no argument here.
        del want["g"]
    if name == "retention_g":
        found["g"] = -found.pop("slope")
    if name in OVER:
        linear = {"g", "beta"} | ({"ridge"} if name == "over_mesa" else set())
        found = {f"linear_{key}" if key in linear else key: x for key, x in found.items()}
    assert found.keys() == want.keys()
    assert all(np.array_equal(found[key].numpy(), want[key]) for key in found)


@pytest.mark.parametrize("name", ALL)
def test_gradcheck(name):
    d = Tensors("f8", tokens=4, batch=1)
    # Room for differences at both ends.
    d.g, d.gk, d.beta, d.slope = d.g - 0.01, d.gk - 0.01, 0.9 * d.beta + 0.01, d.slope + 0.01
    d.beta_kv = d.beta.clone()
    used = [n for n, x in gradients(ALL[name], leafed(d)).items() if n != "w"]

    def call(*inputs):
        return output(ALL[name](changed(d, dict(zip(used, inputs)))))

    inputs = [d.leaves()[n].detach().requires_grad_() for n in used]
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)


def changed(d, members):
    other = copy.copy(d)
    other.ridge = list(d.ridge)
    for name, x in members.items():
        if name.startswith("ridge"):
            other.ridge[int(name[-1])] = x
        else:
            setattr(other, name, x)
    return other


def leafed(d):
    return changed(d, {name: x.detach().clone().requires_grad_() for name, x in d.leaves().items()})


def test_gradients_of_states():
    d = Tensors("f8", tokens=5, batch=1)
    first = torch.randn(1, 4, 8, 6, dtype=torch.float64, requires_grad=True)
    q = d.q.clone().requires_grad_()

    def call(q, first):
        return la.gla(q, d.k, d.v, d.gk, initial_state=first, output_final_state=True)

    assert torch.autograd.gradcheck(call, (q, first))


@pytest.mark.parametrize("name", KINDS)
def test_compile_is_the_same(name):
    torch._dynamo.reset()
    d, c = Tensors(differentiable=True), Tensors(differentiable=True)
    compiled = torch.compile(lambda d: output(ALL[name](d)), fullgraph=True, backend="aot_eager")
    want, found = gradients(ALL[name], d), gradients(compiled, c)
    assert want.keys() == found.keys()
    assert all(torch.equal(found[key], want[key]) for key in want)
    with torch.no_grad():
        assert torch.equal(compiled(c), output(ALL[name](d)))


@pytest.mark.parametrize("name", ALL)
def test_operators_are_the_same(name, monkeypatch):
    """More rows than the slack of what an operator saves would hide."""
    want = gradients(ALL[name], Tensors(differentiable=True, tokens=80))
    monkeypatch.setattr(la._torch, "_is_traced", lambda q: True)
    found = gradients(ALL[name], Tensors(differentiable=True, tokens=80))
    assert want.keys() == found.keys()
    assert all(torch.equal(found[key], want[key]) for key in want)


@pytest.mark.parametrize("name", ["gla", "mesa", "over_mesa", "features_all"])
def test_compile_with_states(name):
    torch._dynamo.reset()
    call = lambda d, state: ALL[name](d, initial_state=state, output_final_state=True)
    d = Tensors()
    _, first = ALL[name](d, output_final_state=True)
    results = torch.compile(call, fullgraph=True, backend="aot_eager")(d, first)
    assert all(torch.equal(x, y) for x, y in zip(results, call(d, first)))


@pytest.mark.parametrize("name", ["softmax", "lla_head", "gla", "mesa_head", "over_mesa", "features"])
def test_compiled_sizes_are_symbols(name):
    torch._dynamo.reset()
    options = {} if name in LOCAL else dict(output_final_state=True)
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda d: ALL[name](d, **options), fullgraph=True, backend=count, dynamic=True)
    for tokens in 5, 9, 17, 33:
        d, c = (Tensors(differentiable=True, tokens=tokens) for _ in range(2))
        for call, data in ((ALL[name], d), (compiled, c)):
            results = call(data, **options) if call is not compiled else call(data)
            results = results if isinstance(results, tuple) else (results,)
            sum(x.square().sum() for x in results).backward()
        want, found = d.grads(), c.grads()
        assert want.keys() == found.keys() and all(torch.equal(want[key], found[key]) for key in want)
    assert len(graphs) == 1


@pytest.mark.parametrize("name", ["lla", "kda"])
def test_compile_with_packed_sequences(name):
    torch._dynamo.reset()
    ends = torch.tensor([0, 20, 23])
    call = lambda d: output(ALL[name](d, cu_seqlens=ends))
    d, c = (Tensors(differentiable=True, batch=1) for _ in range(2))
    want, found = gradients(call, d), gradients(torch.compile(call, fullgraph=True, backend="aot_eager"), c)
    assert all(torch.equal(found[key], want[key]) for key in want)


def test_weights_and_probes():
    torch._dynamo.reset()
    options = dict(return_lse=True, return_probe=True, return_weights=True, return_info=True)
    call = lambda d: la.lla(d.q, d.k[:, :20], d.v[:, :20], **options)
    want, d = call(Data("f4")), Tensors(differentiable=True)
    for found in call(Tensors()), call(d), torch.compile(call, fullgraph=True, backend="aot_eager")(d):
        assert all(np.array_equal(x.detach().numpy(), y) for x, y in zip(found[:4], want))
        assert np.array_equal(found[4].code.numpy(), want[4]["code"])
        assert [x.requires_grad for x in found[:4]] == [found[0].requires_grad, False, False, False]
    found = torch.func.vmap(lambda q: la.lla(q, d.k, d.v, return_weights=True)[1])(torch.stack([d.q, d.q]))
    assert torch.equal(found[1], la.lla(d.q, d.k, d.v, return_weights=True)[1])


def test_compile_with_inductor():
    torch._dynamo.reset()
    d, c = Tensors(differentiable=True), Tensors(differentiable=True)
    call = lambda d: la.lla(d.q.sin(), d.k, d.v, return_lse=True)[0].cos()
    want, found = gradients(call, d), gradients(torch.compile(call, fullgraph=True), c)
    assert all(torch.allclose(found[key], want[key], atol=1e-5) for key in want)


@pytest.mark.parametrize("how", ["checkpoint", "reentrant"])
@pytest.mark.parametrize("name", KINDS)
def test_checkpointing(name, how):
    d, c = Tensors(differentiable=True), Tensors(differentiable=True)
    again = lambda d: checkpoint(
        lambda q: output(ALL[name](changed(d, dict(q=q)))), d.q, use_reentrant=how == "reentrant"
    )
    want, found = gradients(ALL[name], d), gradients(again, c)
    assert all(torch.equal(found[key], want[key]) for key in want)


@pytest.mark.parametrize("name", KINDS)
def test_autocast(name):
    d = Tensors(differentiable=True)
    with torch.autocast("cpu", torch.bfloat16):
        o = output(ALL[name](d))
    o.float().sum().backward()
    assert o.dtype == torch.bfloat16 and d.q.grad.dtype == torch.float32
    assert (o.float() - output(ALL[name](d))).abs().max() < 0.1


@pytest.mark.parametrize("how", ["sliced", "heads_first", "fortran"])
@pytest.mark.parametrize("name", ALL)
def test_strides_change_no_bit(name, how):
    want = output(ALL[name](Tensors()))
    d = Tensors().to(lambda x: strange_tensor(x, how))
    assert torch.equal(output(ALL[name](d)), want)


def strange_tensor(x, how):
    return torch.from_numpy(strange(x.numpy(), how))


def test_broadcast_gradient():
    d = Tensors(differentiable=True)
    k = d.k[:1].detach().requires_grad_()
    la.softmax_attention(d.q, k.expand_as(d.k), d.v).sum().backward()
    la.softmax_attention(d.q, torch.cat([k, k]).detach().requires_grad_(), d.v)
    dense = k.detach().repeat(2, 1, 1, 1).requires_grad_()
    la.softmax_attention(d.q, dense, d.v).sum().backward()
    assert torch.allclose(k.grad, dense.grad.sum(0, keepdim=True), atol=1e-6)


@pytest.mark.parametrize(
    "name", ["softmax", "parallax", "lla_token", "path_g", "gla", "mesa", "over_mesa", "features_all"]
)
def test_vmap_is_a_loop(name):
    parts = [Tensors() for _ in range(3)]
    for i, part in enumerate(parts):
        part.q, part.v = part.q * (1 + i / 8), part.v.roll(i)
    fixed = Tensors()

    def call(q, v):
        return output(ALL[name](changed(fixed, dict(q=q, v=v))))

    stacked = [torch.stack([getattr(part, x) for part in parts], 1) for x in "qv"]
    found = torch.func.vmap(call, in_dims=1)(*stacked)
    assert all(torch.equal(x, call(part.q, part.v)) for x, part in zip(found, parts))
    grad = torch.func.grad(lambda q, v: call(q, v).square().sum())
    found = torch.func.vmap(grad, in_dims=1)(*stacked)
    for x, part in zip(found, parts):
        q = part.q.clone().requires_grad_()
        call(q, part.v).square().sum().backward()
        assert torch.equal(x, q.grad)


def test_vmap_over_what_has_no_batch():
    d = Tensors()
    call = lambda slope: la.softmax_attention(d.q, d.k, d.v, slope=slope)
    with pytest.raises(ValueError, match="slope: has no batch axis"):
        torch.func.vmap(call)(torch.stack([d.slope, d.slope]))


@pytest.mark.parametrize("mechanism", ["lla", "gla", "softmax on gla"])
def test_operators_are_sound(mechanism):
    d = Tensors(differentiable=True)
    from loam_attn import _operators

    gated, mechanism = mechanism == "gla", mechanism.split()[0]
    more = {"gla": dict(g=d.gk), "lla": dict(ridge_number=0.5), "softmax": dict(linear="gla", linear_g=d.gk)}
    values = dict(q=d.q, k=d.k, v=d.v, **more[mechanism])
    call = [values.get(name) for name in _operators._NAMES]
    # What is saved has padding, which no two calls need agree in.
    args = (mechanism, *call, gated, *[not gated] * 3, True, False)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    with torch.no_grad():
        torch.library.opcheck(torch.ops.loam.forward.default, args, test_utils=checks)
        wanted = [x is not None and x.is_floating_point() for x in call[: len(_operators.INPUTS)]]
        saved = None if gated else torch.ops.loam.forward(mechanism, *call, *[False] * 5, True)[-1]
        args = (mechanism, *call, saved, torch.ones_like(d.v), None, wanted)
        torch.library.opcheck(torch.ops.loam.backward.default, args, test_utils=checks)


def test_second_gradients_are_refused():
    d = Tensors(differentiable=True)
    (grad,) = torch.autograd.grad(la.softmax_attention(d.q, d.k, d.v).square().sum(), d.q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_threads_are_those_of_torch():
    code = """
import os, torch, loam_attn
x = torch.ones((1, 256, 4, 8))
for n in 1, 3:
    torch.set_num_threads(n)
    before = len(os.listdir("/proc/self/task"))
    loam_attn.softmax_attention(x, x, x)
    print(len(os.listdir("/proc/self/task")) - before)
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.split() == ["0", "2"]


def test_two_openmp_runtimes():
    """PyTorch's wheels bring a libgomp of their own: the pools of both compute by turns, and at once."""
    code = """
import threading, numpy, torch, loam_attn
x = torch.ones((1, 256, 4, 8))
torch.set_num_threads(3)
y = torch.rand(100, 1000)
want = loam_attn.softmax_attention(x, x, x), y.sin()
equal = []

def call():
    for _ in range(5):
        found = loam_attn.softmax_attention(x, x, x), y.sin()
        equal.append(all(map(torch.equal, found, want)))

threads = [threading.Thread(target=call) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(all(equal), len(equal))
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert out.stdout.split() == ["True", "10"]


TYPE = {
    "k: <class 'numpy.ndarray'>, expected a tensor": lambda d: la.softmax_attention(d.q, d.k.numpy(), d.v),
    "k: dtype torch.float64, expected torch.float32": lambda d: la.softmax_attention(d.q, d.k.double(), d.v),
    "q: <class 'list'>, expected an array": lambda d: la.softmax_attention([1], d.k, d.v),
    "g: dtype torch.bfloat16": lambda d: la.forgetting_attention(d.q, d.k, d.v, d.g.bfloat16()),
}
VALUE = {
    "k: shape [2, 23, 4, 3]": lambda d: la.softmax_attention(d.q, d.k[..., :3], d.v),
    "backend: 'cuda', expected": lambda d: la.softmax_attention(d.q, d.k, d.v, backend="cuda"),
    "k: on device meta, expected cpu": lambda d: la.softmax_attention(d.q, d.k.to("meta"), d.v),
    "shift: requires a gradient and has none": lambda d: la.linear_attention(
        d.q, d.k, d.v, feature_map="positive", z=d.z, shift=d.fixed[0].requires_grad_()
    ),
    "cache: has no gradients": lambda d: la.softmax_attention(
        d.q.requires_grad_(), d.k, d.v, cache=la.Cache()
    ),
}


@pytest.mark.parametrize("text", [*TYPE, *VALUE])
def test_refused(text):
    with pytest.raises(TypeError if text in TYPE else ValueError) as caught:
        (TYPE | VALUE)[text](Tensors())
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("name", ["softmax", "gla"])
def test_packed_sequences(name):
    d = Tensors(batch=1, differentiable=True)
    ends = torch.tensor([0, 5, 5, 14, 23])
    o = output(ALL[name](d, cu_seqlens=ends))
    o.sum().backward()
    assert np.array_equal(
        o.detach().numpy(), output(ALL[name](Data("f4", batch=1), cu_seqlens=ends.int().numpy()))
    )
    q = d.q[:, 5:14].detach().requires_grad_()
    part = changed(
        d, {n: x[:, 5:14].detach() for n, x in d.leaves().items() if x.dim() > 2 and x.shape[0] == 1}
    )
    part.q = q
    output(ALL[name](part)).sum().backward()
    assert torch.allclose(d.q.grad[:, 5:14], q.grad, atol=1e-6)


def test_the_page_runs():
    page = Path(__file__).parents[2] / "docs" / "python.md"
    blocks = re.findall("```python\n(.*?)```", page.read_text(), re.S)
    ours = [block for block in blocks if "torch" in block]
    assert len(ours) == 2
    exec("import loam_attn\n" + "\n".join(ours), {})


def test_calls_leave_nothing():
    d = Tensors(differentiable=True)
    calls = [lambda name=name: ALL[name](d) for name in KINDS]
    calls += [lambda call=call: call(Tensors()) for call in (TYPE | VALUE).values()]
    alive = []
    for _ in range(12):
        for _ in range(20):
            for call in calls:
                with contextlib.suppress(TypeError, ValueError):
                    output(call()).sum().backward()
        gc.collect()
        tensors = sum(type(x) is torch.Tensor for x in gc.get_objects())
        alive.append((tensors, sys.getallocatedblocks()))
    # PyTorch fills caches of its own, less and less. A leak of one call would be of 20 blocks in every round.
    grown = [after[1] - before[1] for before, after in zip(alive, alive[1:])]
    assert alive[-1][0] == alive[1][0] and min(grown) < 15, grown


@cuda
@pytest.mark.parametrize("name", ALL)
def test_a_gpu_is_near_the_cpu(name):
    want_o, d = output(ALL[name](Tensors())), Tensors(differentiable=True)
    want = gradients(ALL[name], d)
    on = Tensors().to(lambda x: x.cuda().requires_grad_())
    o = output(ALL[name](on))
    assert o.is_cuda and (o.cpu() - want_o).abs().max() < 1e-3 * want_o.abs().max()
    weight = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o)
    (o * weight).sum().backward()
    found = on.grads()
    for key, x in want.items():
        assert (found[key].cpu() - x).abs().max() < 2e-3 * (1 + x.abs().max())


@cuda
def test_the_current_stream_and_graphs():
    d = Tensors("f2", tokens=64).to(lambda x: x.cuda())
    want = la.softmax_attention(d.q, d.k, d.v)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert torch.equal(la.softmax_attention(d.q, d.k, d.v), want)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = la.softmax_attention(d.q, d.k, d.v)
    d.q.mul_(0.5)
    graph.replay()
    assert torch.equal(o, la.softmax_attention(d.q, d.k, d.v))


@cuda
def test_devices_are_not_mixed():
    d = Tensors()
    with pytest.raises(ValueError, match="k: on device cpu, expected cuda:0"):
        la.softmax_attention(d.q.cuda(), d.k, d.v)
    with pytest.raises(ValueError, match="backend: 'cpu', expected one of auto, cuda"):
        la.softmax_attention(d.q.cuda(), d.k.cuda(), d.v.cuda(), backend="cpu")
