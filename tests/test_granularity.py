"""Messages per tensor, per bucket, or of the whole vector: what memory belongs to stays the same."""

from __future__ import annotations

from dataclasses import replace

import jsonschema
import pytest
import torch

import raybench
from raybench import spec
from raybench.compressors.block_top_k import DCTTopK
from raybench.compressors.composed import AsContractive
from raybench.compressors.per_tensor import PerPart, PerTensor
from raybench.compressors.selection import Masking
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.execution.resolve import Resolver
from raybench.testing.trial import TrialMethod, batch_of, finished
from raybench.testing.vectors import gaussian

LAYOUT = Layout(
    (
        ("a.weight", (4, 3)),
        ("a.bias", (4,)),
        ("a.scale", (2,)),
        ("b.weight", (2, 4)),
        ("b.bias", (2,)),
    )
)
PROBLEM = {"name": "network", "model": "mlp:hidden=[5]", "dataset": "digits", "clients": 2}
PROBLEM |= {"rows": 60, "batch": 4, "dtype": "float64"}
SWEEP = """
problem: {name: network, model: "mlp:hidden=[5]", dataset: digits, clients: 2, rows: 60, batch: 4}
algorithm: ef21
step_size: {value: 0.1}
rounds: 3
"""


def compressors(text):
    made = [cell.compressor for cell in spec.load(SWEEP + f"compressor: {text}\n").cells]
    return [(one.name, one.params.get("of"), one.params.get("bucket")) for one in made]


def test_granularity_of_an_operator():
    assert compressors("{name: top_k, k: [5%, 10%], granularity: [global, tensor]}") == [
        ("top_k", None, None),
        ("per_tensor", "top_k:k=5%", None),
        ("top_k", None, None),
        ("per_tensor", "top_k:k=10%", None),
    ]
    ((name, of, bucket),) = compressors("{name: natural, granularity: bucket}")
    assert (name, of, bucket) == ("per_tensor", "natural", 6_553_600)
    names = compressors("{name: [top_k, rand_k], k: 5%, granularity: tensor}")
    assert names == [("per_tensor", f"{name}:k=5%", None) for name in ("top_k", "rand_k")]
    texts = ("{name: per_tensor, of: 'top_k:k=5%'}", "{name: top_k, k: 5%, granularity: tensor}")
    one, same = (spec.load(f"{SWEEP}compressor: {text}\n").cells[0].id for text in texts)
    assert one == same


def test_a_wrong_granularity_is_told():
    says = r"compressor.granularity.*'layer'[\s\S]*bucket, global, tensor"
    with pytest.raises(InputError, match=says):
        spec.load(SWEEP + "compressor: {name: top_k, k: 5%, granularity: layer}\n")


def sizes(**params):
    return PerTensor("top_k:k=50%", **params).fit(28, 3, LAYOUT).tensors(28)


def test_tensors_and_buckets():
    assert sizes() == (12, 4, 2, 8, 2)
    assert sizes(bucket=100) == (28,)
    assert sizes(bucket=16) == (16, 12)
    assert sizes(bucket=5) == (12, 4, 2, 8, 2)
    # what is sent dense stands apart from matrices
    assert sizes(bucket=100, vectors="dense") == (12, 6, 8, 2)


@pytest.mark.parametrize("granularity", ["tensor", "bucket"])
def test_memory_belongs_to_parameters(granularity):
    """With the identity, whatever the granularity, EF14 is gradient descent, and bits are the same."""
    whole, parts = (
        finished(TrialMethod("ef14", {}, operator, PROBLEM, step=0.1, rounds=5).batch())
        for operator in ({"name": "identity"}, {"name": "identity", "granularity": granularity})
    )
    torch.testing.assert_close(parts.s.x, whole.s.x, rtol=1e-12, atol=0)
    assert (parts.bits("up") == whole.bits("up")).all()


# Groups ------------------------------------------------------------------------------------------

GROUPS = [
    {"match": "*.bias", "compressor": "identity"},
    {"match": "b.*", "compressor": {"name": "top_k", "k": 1}},
]


def test_a_tensor_has_the_operator_of_the_first_group_that_its_name_matches():
    groups = (("*.bias", "identity"), ("b.*", "top_k:k=1"))
    op = PerTensor("zero", groups=groups).fit(28, 3, LAYOUT)
    x = gaussian(28)
    value = LAYOUT.views(raybench.unpack(op.compress(x).pack()).decode())
    want = LAYOUT.views(x)
    assert torch.equal(value[1], want[1])
    assert torch.equal(value[4], want[4]), "a bias of b is a bias"
    assert int((value[3] != 0).sum()) == 1
    assert not value[0].any()
    assert not value[2].any()


def grouped(text, compressor="{name: top_k, k: 10%}"):
    return spec.load(SWEEP + f"compressor: {compressor}\ngroups: {text}\n")


def test_groups_of_a_sweep_are_operators_of_tensors():
    """Biases dense, the others top-k: what ``vectors: dense`` says for the same network."""
    groups = [{"match": "*.bias", "compressor": "none"}]
    top = {"name": "top_k", "k": "10%"}
    dense = {"name": "per_tensor", "of": "top_k:k=10%", "vectors": "dense"}
    runs = [
        finished(TrialMethod("ef21", {}, *rest, step=0.1, rounds=5, more=more).batch())
        for rest, more in (
            ((top, PROBLEM), {"groups": groups}),
            (({**top, "granularity": "tensor"}, PROBLEM), {"groups": groups}),
            ((dense, PROBLEM), {}),
        )
    ]
    for run in runs[:2]:
        assert torch.equal(run.s.x, runs[2].s.x)
        assert (run.bits("up") == runs[2].bits("up")).all()


def test_groups_add_up_on_the_way_where_all_their_operators_do():
    text = '[{match: "*.bias", compressor: %s}]'
    resolve = Resolver(allow_unproven=True).resolve
    (cell,) = grouped(text % "bf16", "{name: identity, collective: reduce}").cells
    assert resolve(cell).cell is cell
    assert finished(batch_of([resolve(cell)])).bits("down") > 0
    (cell,) = grouped(text % "natural", "{name: identity, collective: reduce}").cells
    with pytest.raises(InputError, match=r"compressor\.collective[\s\S]*do not add up"):
        resolve(cell)


NAMED = PerTensor("scaled_sign", groups=(("*.bias", "identity"),))


@pytest.mark.parametrize(
    "op", [NAMED, AsContractive(PerTensor("scaled_sign")), Masking("50%"), DCTTopK("50%", 3)]
)
def test_clients_own_a_piece_of_every_tensor_and_compress_it_by_itself(op):
    """By ``all_to_all`` as otherwise: groups and scales are of tensors, which parts of the vector would mix."""
    n, x = 3, gaussian(2, 3, 28, dtype=torch.float64)
    sent = PerPart(op).fit(28, n, LAYOUT).compress(x).decode()
    for (name, shape), got, piece in zip(LAYOUT, LAYOUT.views(sent), LAYOUT.views(x), strict=True):
        alone, size = Layout(((name, shape),)), got[0, 0].numel()
        one = PerPart(replace(op, groups=()) if op is NAMED else op).fit(size, n, alone)
        want = one.compress(piece.reshape(2, 3, size).contiguous()).decode().reshape(got.shape)
        exact = op is NAMED and name.endswith("bias")
        torch.testing.assert_close(got, piece if exact else want, rtol=1e-14, atol=0)


def test_vectors_of_a_model_stay_vectors_where_their_pieces_are_owned():
    x = gaussian(1, 3, 28)
    op = PerPart(PerTensor("zero", vectors="dense")).fit(28, 3, LAYOUT)
    for (_, shape), got, whole in zip(
        LAYOUT, LAYOUT.views(op.compress(x).decode()), LAYOUT.views(x), strict=True
    ):
        assert torch.equal(got, whole if len(shape) == 1 else torch.zeros_like(whole))


def test_groups_of_a_sweep_hold_by_all_to_all():
    """Biases dense, the rest lost: the weights stay where they began, the biases go as by gradient descent."""
    zero = {"name": "zero", "collective": "all_to_all"}
    more = {"groups": [{"match": "*.bias", "compressor": "none"}]}
    run = finished(TrialMethod("dcgd", {}, zero, PROBLEM, step=0.1, rounds=1, more=more).batch())
    whole = finished(TrialMethod("gd", {}, None, PROBLEM, step=0.1, rounds=1).batch())
    start, views = run.problem.start(), run.problem.layout.named
    for name, got in views(run.s.x).items():
        want = views(whole.s.x)[name] if name.endswith("bias") else views(start[None])[name]
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


def test_an_operator_of_one_s_own_in_a_group_is_part_of_the_id(tmp_path):
    """Its source may change, and then the cells are others."""
    file, ids = tmp_path / "halved.py", []
    for factor in (2, 3):
        file.write_text(
            "from raybench.plugins import Compressor, Dense, compressor\n"
            '@compressor("halved")\n'
            "class Halved(Compressor):\n"
            f"    '''C(x) = x/{factor}.'''\n"
            "    def encode(self, x, stream):\n"
            f"        return Dense(x / {factor})\n"
        )
        text = SWEEP + f"plugins: {file}\ncompressor: {{name: top_k, k: 10%}}\n"
        ids.append(spec.load(text + 'groups: [{match: "*", compressor: halved}]\n').cells[0].id)
    assert ids[0] != ids[1]


def test_groups_are_part_of_ids_and_of_labels():
    texts = ("[]", *(f'[{{match: "*.bias", compressor: {name}}}]' for name in ("identity", "bf16")))
    ids = {grouped(text).cells[0].id for text in texts}
    assert len(ids) == 3
    assert spec.load(SWEEP + "compressor: {name: top_k, k: 10%}\n").cells[0].id in ids
    (cell,) = grouped('[{match: "*.bias", compressor: bf16}]').cells
    assert "*.bias bf16" in Resolver().resolve(cell).label
    assert cell.config()["groups"] == [{"match": "*.bias", "compressor": "bf16"}]
    jsonschema.Draft202012Validator(spec.json_schema()).validate({"groups": GROUPS})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("identity", r"groups: expected a list"),
        ("[identity]", r"groups\[0\]: expected a mapping"),
        ('[{match: "*.bias"}]', r"groups\[0\]\.compressor: required"),
        ("[{match: 3, compressor: identity}]", r"groups\[0\]\.match"),
        ('[{match: "", compressor: identity}]', r"groups\[0\]\.match"),
        (
            '[{match: "*", compressor: identiy}]',
            r"groups\[0\]\.compressor[\s\S]*did you mean identity",
        ),
        (
            '[{match: "*", compressor: {name: top_k, k: [1, 2]}}]',
            r"groups\[0\]\.compressor: several values",
        ),
    ],
)
def test_wrong_groups_are_told(text, said):
    with pytest.raises(InputError, match=said):
        grouped(text)


def test_a_group_that_names_no_tensor_or_goes_with_buckets_is_told():
    (cell,) = grouped('[{match: "*.bais", compressor: identity}]').cells
    with pytest.raises(InputError, match=r"groups: '\*\.bais' names no tensor"):
        Resolver().resolve(cell)
    text = '[{match: "*.bias", compressor: identity}]'
    (cell,) = grouped(text, "{name: top_k, k: 10%, granularity: bucket}").cells
    with pytest.raises(InputError, match="buckets"):
        Resolver().resolve(cell)
