# SPDX-License-Identifier: MIT
"""All of loam.h is reached from here: each of its functions, and each member of its structs."""

import inspect
import re
from pathlib import Path

import pytest

import loam_attn as la

HEADER = (Path(__file__).parents[2] / "include" / "loam.h").read_text()
# What a shape, a dtype, the function that is called or the setting of all calls says.
SAID_OTHERWISE = set(
    """stamp mechanism pass dtype batch heads_q heads_kv len_q len_kv dim_qk dim_v total_q total_kv decay path
    ridge_axes kernel threads heads_v features work stream o saved grad_o""".split()
)
# Members of loam_problem and of the structs of arguments by the arguments that they are.
ARGUMENTS = {
    "window": "window_size",
    "normalise": "normalize",
    "sink": "sink_bias",
    "cu_q": "cu_seqlens",
    "cu_kv": "cu_seqlens_k",
    "lens_kv": "key_lengths",
    "lse": "return_lse",
    "rho": "return_probe",
    "weights": "return_weights",
    "info": "return_info",
    "log_decay": "g",
    "state_in": "initial_state",
    "state_out": "output_final_state",
    "keys": "cache",
    "values": "cache",
    "seen": "cache",
}
# Of rope, members that are named otherwise.
TURN = {"positions_batch": "positions", "layout": "interleaved", "channels": "x", "tokens": "x", "heads": "x"}
# Functions by what calls them: of the package, or of Python by itself.
CALLED = {
    "loam_status_text": "exceptions",
    "loam_version": "__version__",
    "loam_plan_create": "plan",
    "loam_plan_destroy": "plan",
    "loam_plan_name": "plan",
    "loam_plan_problem": "plan",
    "loam_plan_work_bytes": "plan",
    "loam_plan_saved_bytes": "plan",
    "loam_plan_state_rows": "gla",
    "loam_plan_fallback": "plan",
    "loam_plan_kernel_for": "plan",
    "loam_args_keep": "vjp",
    "loam_run": "lla",
    "loam_state_doubles": "part",
    "loam_states_doubles": "part",
    "loam_state_partial": "part",
    "loam_state_merge": "Part",
    "loam_state_finish": "Part",
    "loam_rope_apply": "rope",
    "loam_projection_draw": "projection",
    "loam_kernel_at": "kernels",
    "loam_mechanism_at": "mechanisms",
    "loam_row_code_name": "ROW_CODES",
    "loam_solver_name": "SOLVERS",
    "loam_cpu_features": "cpu_features",
    "loam_max_threads": "get_num_threads",
}


def members(struct):
    body = re.search(rf"typedef struct {struct} \{{(.*?)\n\}} {struct};", HEADER, re.S)[1]
    lines = re.sub(r"/\*.*?\*/", "", body, flags=re.S).split(";")
    return {name for line in lines for name in re.findall(r"\*?(\w+)\s*(?:,|$)", line.strip())}


def arguments():
    """Of all functions of attention."""
    functions = [f for name in la.__all__ if inspect.isfunction(f := getattr(la, name))]
    return {name for f in functions for name in inspect.signature(f).parameters}


@pytest.mark.parametrize("struct", ["loam_problem", "loam_args", "loam_hybrid_args"])
def test_members_are_arguments(struct):
    known = arguments()
    for name in members(struct) - SAID_OTHERWISE:
        # A gradient is that of an argument.
        own = name.removeprefix("grad_")
        own = ARGUMENTS.get(own, own)
        assert own in known, name
    assert {"scale", "ridge", "q"} <= known and len(members("loam_args")) > 40


def test_turns():
    known = set(inspect.signature(la.rope).parameters)
    for name in members("loam_rope") - SAID_OTHERWISE - {"backend"}:
        assert TURN.get(name, name) in known, name


def test_functions_are_called():
    for name in re.findall(r"^LOAM_API [\w *]*?(loam_\w+)\(", HEADER, re.M):
        family = next((x for x in ("interpolation", "hybrid") if name.startswith(f"loam_{x}_")), None)
        of = f"{family}_attention" if family == "hybrid" else family or CALLED.get(name)
        if not of and name.endswith("_name"):
            continue  # of an enumeration: words of an option, which errors list
        assert of == "exceptions" or hasattr(la, of), name


def test_members_of_what_is_listed():
    for struct, listed in ("loam_kernel_info", la.Kernel), ("loam_mechanism_info", la.Mechanism):
        named = {"normalise": "normalize", "pass": "pass_"}
        assert {named.get(name, name) for name in members(struct)} <= {*listed._fields, "ridge"}
    assert {*la.plan.__globals__["Plan"]._fields} >= {
        "name",
        "kernel",
        "fallback",
        "work_bytes",
        "saved_bytes",
    }
