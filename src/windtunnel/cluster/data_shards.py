"""How many data shards a job has: the number of sets of ranks that read samples of their own.

    collectives of activations, sends ──> axes along which ranks share samples ──> world size / sizes of those axes

Ranks that exchange activations (tensor parallel, pipeline stages) work on the same samples; ranks that exchange only
weights and gradients do not. Exchanging tokens (all-to-all, context parallel) does not make samples shared either.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from windtunnel.cluster.mesh import mesh_of, pattern_of
from windtunnel.cluster.mesh_axes import axis_label
from windtunnel.cluster.program import StepProgram
from windtunnel.events.model import Kind, Phase, Recording, Role

__all__ = ["n_data_shards", "shared_groups"]

_OF_ACTIVATIONS = ("c10d.all_reduce", "c10d.all_gather", "c10d.reduce_scatter")
_OF_THE_MODEL = (Role.WEIGHT, Role.GRADIENT, Role.OPTIMIZER, Role.COMMUNICATION)
_FEW_ELEMENTS = 4096  # smaller tensors are a loss, a norm or a flag, which do not make samples shared
_OWN_TOKENS = ("cp", "ep")


def shared_groups(recording: Recording, program: StepProgram) -> frozenset[tuple[int, ...]]:
    """Return the groups in which a rank exchanged activations in its forward pass."""
    columns = recording.columns
    kind, role = columns["kind"], columns["role"]
    marked = ((kind == Kind.MARK) | (kind == Kind.ALLOC)) & np.isin(role, [int(r) for r in _OF_THE_MODEL])
    # Storages older than the first forward are no activations: libraries keep shards of weights without marking them.
    marked |= (kind == Kind.ALLOC) & (columns["phase"] == Phase.BUILD)
    of_model = set(np.unique(columns["subject"][marked]).tolist())
    offsets, storages = recording.inputs
    rows = program.row[(program.group >= 0) & (columns["phase"][program.row] == Phase.FORWARD)]
    group_at = dict(zip(program.row.tolist(), program.group.tolist(), strict=True))
    found: set[tuple[int, ...]] = set()
    seen: set[tuple[int, int]] = set()
    for row in rows.tolist():
        key = (group_at[row], int(columns["value"][row]))
        signature = recording.signatures[key[1]]
        given = storages[offsets[row] : offsets[row + 1]].tolist()
        if key in seen or signature.name not in _OF_ACTIVATIONS or not given:
            continue
        seen.add(key)
        n_elements = sum(prod(spec.shape) for spec in signature.inputs)
        ranks, name = program.groups[key[0]], program.group_names[key[0]]
        if (
            n_elements >= _FEW_ELEMENTS
            and not of_model & set(given)
            and axis_label(name, ranks) not in _OWN_TOKENS
        ):
            found.add(ranks)
    return frozenset(found)


def n_data_shards(
    programs: Mapping[int, StepProgram], shared: Mapping[int, frozenset[tuple[int, ...]]], world_size: int
) -> int:
    """Return the number of data shards, given the groups in which the rank of each program shares activations."""
    mesh = mesh_of(programs[min(programs)].groups, world_size)
    axes: set[int] = set()
    for rank, program in programs.items():
        for group in shared[rank]:
            axes |= set(pattern_of(group, mesh)[0])
        for peer in program.peers:
            axes |= set(pattern_of((rank, peer), mesh)[0])
    return world_size // prod(mesh.axes[i].size for i in axes)
