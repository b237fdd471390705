# SPDX-License-Identifier: MIT
"""Results and gradients against the naive references of flash-linear-attention, where it is installed. They
are read from their files: the package itself wants Triton and a GPU."""

import importlib.metadata
import importlib.util

import pytest

import loam_attn as la

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("einops", reason="einops, of flash-linear-attention, is not installed")
try:
    FILES = {str(path): path.locate() for path in importlib.metadata.files("fla-core")}
except importlib.metadata.PackageNotFoundError:
    pytest.skip("flash-linear-attention is not installed", allow_module_level=True)

B, T, H, K = 2, 37, 4, 16


def naive(name, function):
    spec = importlib.util.spec_from_file_location(f"naive_{name}", FILES[f"fla/ops/{name}/naive.py"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def data(heads_kv=H):
    torch.manual_seed(0)
    d = {name: torch.randn(B, T, H, K) for name in ("q", "r")}
    d |= {name: torch.randn(B, T, heads_kv, K) for name in ("k", "v", "w")}
    d["w"] = torch.nn.functional.normalize(d["w"], dim=-1)
    d["unit"] = torch.nn.functional.normalize(torch.randn(B, T, H, K), dim=-1)
    d |= {"g": -torch.rand(B, T, H), "gk": -torch.rand(B, T, H, K), "beta": torch.rand(B, T, H)}
    d["beta_kv"], d["lamb"] = torch.rand(B, T, heads_kv), 0.25 + torch.rand(H, K)
    return {name: x.requires_grad_() for name, x in d.items()}


def swapped(*tensors):
    return [x.transpose(1, 2) for x in tensors]


# name: (its module and function there, the call of it, Loam's call); each of the data.
CASES = {
    "forgetting": (
        ("forgetting_attn", "naive_forgetting_attn"),
        lambda f, d: f(d["q"], d["k"], d["v"], d["g"], window_size=9),
        lambda d: la.forgetting_attention(d["q"], d["k"], d["v"], d["g"], window_size=9),
    ),
    "path": (
        ("path_attn", "naive_path_attn"),
        # There the scale is of the gates too.
        lambda f, d: f(d["q"], d["k"], d["v"], d["w"], d["beta_kv"], d["g"] * K**0.5, K**-0.5),
        lambda d: la.path_attention(d["q"], d["k"], d["v"], d["w"], d["beta_kv"], d["g"]),
    ),
    "parallax": (
        ("parallax", "naive_parallax"),
        lambda f, d: f(d["q"], d["r"], d["k"], d["v"], window_size=9),
        lambda d: la.parallax(d["q"], d["k"], d["v"], d["r"], window_size=9),
    ),
    "linear": (
        ("linear_attn", "naive_recurrent_linear_attn"),
        lambda f, d: f(d["q"], d["k"], d["v"], scale=0.3, normalize=False)[0],
        lambda d: la.linear_attention(d["q"], d["k"], d["v"], 0.3, normalize=False)[0],
    ),
    "ssd": (
        ("simple_gla", "naive_recurrent_simple_gla"),
        lambda f, d: f(d["q"], d["k"], d["beta"][..., None] * d["v"], d["g"])[0],
        lambda d: la.ssd(d["q"], d["k"], d["v"], d["g"], d["beta"])[0],
    ),
    "gla": (
        ("gla", "naive_recurrent_gla"),
        lambda f, d: f(d["q"], d["k"], d["v"], d["gk"])[0],
        lambda d: la.gla(d["q"], d["k"], d["v"], d["gk"])[0],
    ),
    "delta": (
        ("delta_rule", "delta_rule_recurrence"),
        lambda f, d: f(*swapped(d["q"], d["unit"], d["v"], d["beta"]))[0].transpose(1, 2),
        lambda d: la.delta_rule(d["q"], d["unit"], d["v"], d["beta"])[0],
    ),
    "gated_delta": (
        ("gated_delta_rule", "naive_recurrent_gated_delta_rule"),
        lambda f, d: f(d["q"], d["unit"], d["v"], d["beta"], d["g"])[0],
        lambda d: la.gated_delta_rule(d["q"], d["unit"], d["v"], d["g"], d["beta"])[0],
    ),
    "kda": (
        ("kda", "naive_recurrent_kda"),
        lambda f, d: f(d["q"], d["unit"], d["v"], d["gk"], d["beta"])[0],
        lambda d: la.kda(d["q"], d["unit"], d["v"], d["gk"], d["beta"])[0],
    ),
    "mesa": (
        ("mesa_net", "naive_mesa_net_exact"),
        lambda f, d: f(d["q"], d["unit"], d["v"], d["g"], d["lamb"], d["beta"])[0],
        lambda d: la.mesa(d["q"], d["unit"], d["v"], d["g"], d["beta"], d["lamb"])[0],
    ),
}
GROUPED = ("forgetting", "path", "parallax")


@pytest.mark.parametrize("name", CASES)
def test_parity(name):
    (folder, function), there, here = CASES[name]
    reference = naive(folder, function)
    found = []
    for call in (lambda d: there(reference, d)), here:
        d = data(2 if name in GROUPED else H)
        o = call(d)
        weight = torch.randn(o.shape, generator=torch.Generator().manual_seed(1))
        (o * weight).sum().backward()
        found.append({"o": o.detach()} | {n: x.grad for n, x in d.items() if x.grad is not None})
    assert found[0].keys() == found[1].keys()
    for key, want in found[0].items():
        # Sums of 37 terms in float32 on both sides.
        assert (found[1][key] - want).abs().max() < 1e-4 * (1 + want.abs().max()), key


def test_states_are_put_together_as_the_migration_page_says():
    d = {name: x.detach() for name, x in data().items()}
    h_kk, h_kv = torch.eye(K).expand(B, H, K, K), torch.randn(B, H, K, K)
    exact = naive("mesa_net", "naive_mesa_net_exact")
    want, last_kk, last_kv = exact(d["q"], d["unit"], d["v"], d["g"], d["lamb"], d["beta"], h_kk, h_kv)
    gates = (d["g"], d["beta"], d["lamb"])
    first = torch.cat([h_kv, h_kk], -1)
    o, last = la.mesa(d["q"], d["unit"], d["v"], *gates, initial_state=first, output_final_state=True)
    for found, there in (o, want), (last, torch.cat([last_kv, last_kk], -1)):
        assert (found - there).abs().max() < 1e-4 * (1 + there.abs().max())

    k, q = d["k"].exp(), d["q"].exp()
    kv, z = torch.rand(B, H, K, K), torch.rand(B, 1, H, K)
    recurrent = naive("linear_attn", "naive_recurrent_linear_attn")
    want, (last_kv, last_z) = recurrent(q, k, d["v"], None, (kv, z), True, True)
    together = lambda kv, z: torch.cat([kv, z.permute(0, 2, 3, 1)], -1)
    o, last = la.linear_attention(q, k, d["v"], initial_state=together(kv, z), output_final_state=True)
    for found, there in (o, want), (last, together(last_kv, last_z)):
        assert (found - there).abs().max() < 1e-4 * (1 + there.abs().max())
