"""Language models: tokenizers, weights of Hugging Face's folders, low-rank updates, tokens and perplexity."""

from __future__ import annotations

import copy
import io
import json
import sys

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

import raybench
from raybench.core.errors import InputError
from raybench.data import text
from raybench.problems import build
from raybench.problems.networks.adapted import LowRankUpdate

SAID = "to be or not to be, that is the question: whether 'tis nobler in the mind to suffer\n"


@pytest.fixture
def said(tmp_path):
    (tmp_path / "said.txt").write_text(SAID * 40)
    return str(tmp_path / "said.txt")


def section(said, **more):
    """Return the problem of a small language model of a text."""
    given = {"model": "transformer:width=8,layers=2,heads=2", "dataset": said, "length": 8}
    return {"name": "network", **given, "clients": 2, "batch": 4, **more}


def language(said, **more):
    given = section(said, **{"dtype": "float64", **more})
    return build(given.pop("name"), given)


# Tokens ---------------------------------------------------------------------------------------------


def test_pairs_of_bytes_are_joined_and_give_the_text_back(said, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra raybench[text]")
    pair = text(said, 8, {"bpe": 300}, test_share=0.25)
    assert pair.train.classes <= 300
    assert pair.train.inputs.max() >= 256, "some pairs are joined"
    np.testing.assert_array_equal(
        pair.train.inputs.ravel()[1:], pair.train.targets.ravel()[:-1]
    )  # nothing is left out, nothing is there twice
    raw = text(said, 8, "byte", test_share=0.25)
    assert pair.train.inputs.size < 0.6 * raw.train.inputs.size
    # the same by the library, learnt from the training share alone
    made = tokenizers.ByteLevelBPETokenizer(add_prefix_space=False)
    whole = SAID * 40
    share = whole[: round(0.75 * len(whole))].splitlines(True)
    made.train_from_iterator(share, vocab_size=300, min_frequency=0, show_progress=False)
    begin = made.decode(pair.train.inputs.ravel()[:40].tolist())
    assert whole.startswith(begin)
    # of a file
    made.save(str(tmp_path / "tokenizer.json"))
    again = text(said, 8, tokenizer=str(tmp_path / "tokenizer.json"), test_share=0.25)
    np.testing.assert_array_equal(again.train.inputs, pair.train.inputs)


def test_without_the_library_the_extra_is_named(said, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match="raybench\\[text\\]"):
        text(said, 8, {"bpe": 301})
    with pytest.raises(InputError, match="unknown level"):
        text(said, 8, {"bpf": 300})


def test_perplexity_and_tokens_are_of_the_next_token(said):
    config = {"problem": section(said), "algorithm": "sgd", "step_size": {"value": 0.5}}
    frame = raybench.run({**config, "rounds": 20})
    perplexity, loss = frame["extra.perplexity"], frame["test_loss"]
    np.testing.assert_allclose(perplexity, np.exp(loss), rtol=1e-12)
    assert perplexity.iloc[-1] < perplexity.iloc[0]
    assert frame["extra.tokens"].iloc[-1] == 20 * 4 * 8


# Weights of others ----------------------------------------------------------------------------------


def test_weights_of_a_folder_are_read_by_name_and_pickles_are_not(said, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="needs raybench[text]")
    other = language(said, init_seed=5)
    weights = torch.load(io.BytesIO(other.weights(other.start(), {})), weights_only=True)
    folder = tmp_path / "model"
    folder.mkdir()
    names = sorted(weights)
    parts = names[:5], names[5:]
    for i, part in enumerate(parts):  # large ones are in several files
        file = folder / f"model-0000{i}-of-00002.safetensors"
        safetensors.save_file({n: weights[n].contiguous() for n in part}, str(file))
    with pytest.raises(InputError, match=r"has no config\.json"):
        language(said, init_from=str(folder))
    (folder / "config.json").write_text("{}")
    assert torch.equal(language(said, init_from=str(folder)).start(), other.start())
    for file in folder.glob("*.safetensors"):
        file.unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickles may run code and are not read"):
        language(said, init_from=str(folder))


def test_a_language_model_of_hugging_face(said, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra raybench[text]")
    sizes = {"vocab_size": 256, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    net = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    net.save_pretrained(tmp_path / "gpt2")
    with pytest.raises(InputError, match=r"problem\.init_from: causal_lm needs it"):
        language(said, model="causal_lm", level="byte")
    given = {"model": "causal_lm", "level": "byte", "init_from": str(tmp_path / "gpt2")}
    problem = language(said, **given)
    inputs, targets = problem.examples(problem.test, torch.arange(len(problem.test)))
    with torch.no_grad():
        want = F.cross_entropy(net(input_ids=inputs).logits.flatten(0, 1), targets.flatten())
    found = problem.evaluate(problem.start()[None])["test_loss"]
    assert float(found[0]) == pytest.approx(float(want), rel=1e-5)
    low = language(said, **given, match=["*c_attn.weight"], lora=2)
    assert low.dim == 2 * (8 + 24)
    torch.testing.assert_close(low.evaluate(low.start()[None])["test_loss"], found)


# Some parameters alone ------------------------------------------------------------------------------


def test_only_what_matches_is_trained(said):
    whole = language(said)
    some = language(said, match=["*.qkv.weight", "norm.*"])
    names = [name for name, _ in some.layout]
    want = [n for n, _ in whole.layout if n.endswith("qkv.weight") or n.startswith("norm.")]
    assert names == want
    assert len(names) == 4
    x = some.start()[None]
    of_whole = whole.layout.views(whole.grad(whole.start()[None])[0, 1])
    of_whole = dict(zip([n for n, _ in whole.layout], of_whole, strict=True))
    got = some.layout.views(some.grad(x)[0, 1])
    for name, g in zip(names, got, strict=True):
        torch.testing.assert_close(g, of_whole[name], rtol=1e-9, atol=1e-12)


def test_low_rank_updates_are_nothing_at_first_and_their_gradient_is_that_of_the_sum(said):
    base, low = language(said), language(said, match=["*.qkv.weight"], lora=2, lora_alpha=6)
    assert low.dim == 2 * 2 * (8 + 24)
    assert [shape for _, shape in low.layout][:2] == [(2, 8), (24, 2)]
    x = low.start()[None]
    start = base.start()[None]
    torch.testing.assert_close(low.losses(x), base.losses(start), rtol=1e-12, atol=0)
    x = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x)
    model = copy.deepcopy(base.passes.model)
    factors = [v.clone().requires_grad_() for v in low.layout.views(x[0])]
    matrices = {
        f"blocks.{i}.qkv.weight": model.blocks[i].qkv.weight
        + 3 * factors[2 * i + 1] @ factors[2 * i]
        for i in range(2)
    }
    rows = low.rows[1]
    inputs, targets = low.examples(low.train, rows)
    out = functional_call(model, matrices, (inputs,))
    loss = F.cross_entropy(out.flatten(0, 1), targets.flatten())
    want = torch.cat([g.flatten() for g in torch.autograd.grad(loss, factors)])
    torch.testing.assert_close(low.grad(x)[0, 1], want, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_matrix_that_is_stored_the_other_way_round(transposed):
    layer = torch.nn.Linear(3, 5)
    x = torch.randn(4, 3)
    want = layer(x)
    if transposed:
        layer.weight = torch.nn.Parameter(layer.weight.detach().T.contiguous())
    low = LowRankUpdate(layer, 2, 0.5, transposed)
    torch.testing.assert_close(low(x), want)
    low.lora_b.data.normal_()
    whole = low.whole(low.lora_a, low.lora_b)
    assert whole.shape == layer.weight.shape
    plain = F.linear(x, whole.T if transposed else whole, layer.bias)
    torch.testing.assert_close(low(x), plain)


def test_saved_weights_are_those_of_the_plain_network(said, tmp_path):
    low = language(said, match=["*.qkv.weight", "head.weight"], lora=2)
    x = low.start() + 0.3
    (tmp_path / "w.pt").write_bytes(low.weights(x, {}))
    plain = language(said, init_from=str(tmp_path / "w.pt"))
    torch.testing.assert_close(plain.losses(plain.start()[None]), low.losses(x[None]))
    assert not torch.equal(plain.start(), language(said).start())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"match": ["*.qvk.weight"]}, "names no parameter"),
        ({"lora": 2}, "says which matrices lora is for"),
        ({"lora": 2, "match": ["position"]}, "names none"),
        ({"lora": 2, "match": ["*.qkv.weight"], "freeze": ["*"]}, "every parameter is frozen"),
    ],
)
def test_patterns_that_do_not_fit_are_told(said, more, says):
    with pytest.raises(InputError) as told:
        language(said, **more)
    assert says in str(told.value)
    assert len(json.dumps(str(told.value))) < 600
