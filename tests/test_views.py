"""Views of the same samples, and their encoders: files and folders of one's own, frozen, trained, words and BERT."""

from __future__ import annotations

import sys
from pathlib import Path

import data_kit
import numpy as np
import pytest
import torch
import views_kit
from views_kit import ARRAYS, CLASSES, DEEP, SAMPLES, TESTED, TOP, WIDTHS

from raybench import spec
from raybench.core.errors import InputError
from raybench.data import catalogue, views
from raybench.problems import build
from raybench.testing.problems import conformance as problem_conformance
from raybench.testing.trial import TrialMethod, finished


def saved(path: Path, **changes) -> Path:
    arrays = {k: v for k, v in {**ARRAYS, **changes}.items() if v is not None}
    np.savez(path, **arrays)
    return path


def refused(path: Path, *words: str) -> None:
    data_kit.refused(views, str(path), *words)


def test_views_of_a_file(tmp_path):
    result = views(saved(tmp_path / "own.npz"))
    assert list(result) == sorted(WIDTHS)
    for view, pair in result.items():
        assert (pair.train.kind, pair.train.classes) == ("features", CLASSES)
        assert pair.train.inputs.dtype == np.float32
        assert np.array_equal(pair.train.inputs, ARRAYS[view].astype(np.float32))
        assert np.array_equal(pair.test.inputs, ARRAYS[f"test_{view}"].astype(np.float32))
        assert np.array_equal(pair.train.targets, ARRAYS["labels"] - 1)
        assert np.array_equal(pair.test.targets, ARRAYS["test_labels"] - 1)
        assert (len(pair.train), len(pair.test)) == (SAMPLES, TESTED)


SHORT = np.zeros((SAMPLES - 1, 2))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": None, "test_labels": None}, ["lacks the array labels"]),
        (dict.fromkeys(WIDTHS) | {f"test_{v}": None for v in WIDTHS}, ["no view"]),
        ({"test_image": None}, ["image is in one part only"]),
        ({"test_other": SHORT}, ["other is in one part only"]),
        ({"image": SHORT}, ["39 rows", "40"]),
        ({"test_image": ARRAYS["test_image"][:, :2]}, ["two shapes"]),
        ({"labels": np.ones(SAMPLES)}, ["single class"]),
        ({"labels": np.ones((SAMPLES, 2))}, ["integers", "(40, 2)"]),
        ({"test_labels": np.full(TESTED, 9)}, ["label 9"]),
        ({"image": np.full((SAMPLES, 2), np.inf)}, ["not finite"]),
        ({"image": np.zeros((SAMPLES, 2, 2))}, ["(40, 2, 2)"]),
        ({"image": np.array([{"a": 1}, None], object)}, ["image"]),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, (dict, list)) else None,
)  # fmt: skip
def test_arrays_that_do_not_fit(tmp_path, changes, words):
    refused(saved(tmp_path / "bad.npz", **changes), *words)


def test_names_that_mean_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(Path("wikipedai"), "unknown views", "wikipedia")
    refused(tmp_path / "none.npz", "no file")
    (tmp_path / "a.txt").write_text("x")
    refused(tmp_path / "a.txt", "is no .npz")
    monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path))
    refused(Path("wikipedia"), "raw_features.mat", "put it there")
    (tmp_path / "wikipedia_image_text").mkdir()
    for name in catalogue.VIEW_FILES:
        (tmp_path / name).write_bytes(b"no matrices")
    refused(Path("wikipedia"), "cannot read", "raw_features.mat", "fetch the file again")


# Words, and the real set ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "width"), [("wikipedia", 10), ("wikipedia_tfidf", 1000)])
def test_the_articles_of_wikipedia(data_folder, name, width):
    result = views(name)
    assert list(result) == ["image", "text"]
    for view, features in (("image", 128), ("text", width)):
        pair = result[view]
        assert pair.train.inputs.shape == (2173, features)
        assert pair.test.inputs.shape == (693, features)
        assert pair.train.classes == 10
        assert np.bincount(pair.train.targets)[[0, 9]].tolist() == [138, 347]
    assert np.allclose(result["image"].train.inputs.sum(1), 1, atol=1e-5)  # shares of visual words


# Encoders -----------------------------------------------------------------------------------------


file = views_kit.file


def test_a_frozen_encoder_is_features_computed_once(file):
    params = {"dataset": file, "dtype": "float64", "encoders": DEEP}
    free = build("vertical_network", params)
    whole = dict(zip([n for n, _ in free.layout], free.layout.views(free.start()), strict=True))
    frozen = build("vertical_network", {**params, "freeze": ["*.encoder.*"]})
    assert [n for n, _ in frozen.layout] == [f"{v}.head.weight" for v in sorted(WIDTHS)]
    assert frozen.constants.L is not None
    assert not frozen.costly
    assert free.costly
    arrays = {n: torch.from_numpy(a.astype(np.float32)).double() for n, a in ARRAYS.items()}
    for view, party in zip(sorted(WIDTHS), frozen.parties, strict=True):
        mean, std = arrays[view].mean(0), arrays[view].std(0, correction=0)
        for prefix, have in (("", party.phi), ("test_", party.test)):
            want = (arrays[f"{prefix}{view}"] - mean) / std
            if view != "sound":
                weight, bias = (whole[f"{view}.encoder.1.{n}"] for n in ("weight", "bias"))
                want = torch.nn.functional.linear(want, weight, bias)
                want = want.tanh() if view == "image" else want.relu()
            assert torch.allclose(have, want, atol=1e-12)


def pictured(path: Path, count: int = 12, side: int = 33) -> str:
    random = np.random.default_rng(1)
    texts = np.array([f"a {'red' if j % 2 else 'blue'} bird {j}" for j in range(count)])
    pictures = random.integers(0, 256, (count, 3, side, side), np.uint8)
    np.savez(path, image=pictures, text=texts, labels=np.arange(count) % 2)
    return str(path)


@pytest.mark.thorough
def test_a_resnet_and_words(tmp_path):
    encoders = ["torchvision:resnet18", "words:size=5"]
    params = {"dataset": pictured(tmp_path / "p.npz"), "encoders": encoders}
    frozen = build("vertical_network", {**params, "freeze": ["image.encoder.*"], "test_size": 0.25})
    assert frozen.dim == 2 * (512 + 5)
    assert frozen.parties[0].phi.shape == (9, 512)
    assert frozen.parties[0].test.shape == (3, 512)
    tuned = build("vertical_network", {**params, "scale": "imagenet", "chunk": 5})
    assert tuned.dim == 11_176_512 + 2 * (512 + 5)
    given = {**params, "name": "vertical_network", "encoders": [encoders]}
    method = TrialMethod("vertical_ef21", {"batch": 4}, TOP, given, step=0.05, rounds=2)
    run = finished(method.batch(), every=2)
    moved = run.a.point(run.net, run.s, run.c)[0] - tuned.start()
    for (name, _), change in zip(tuned.layout, tuned.layout.views(moved), strict=True):
        if name in ("image.encoder.conv1.weight", "image.head.weight", "text.head.weight"):
            assert float(change.abs().max()) > 0, name


@pytest.mark.thorough
def test_bert_from_a_folder(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra raybench[text]")
    folder = tmp_path / "bert"
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "blue", "bird"]
    (folder / "vocab.txt").write_text("\n".join(words))
    config = transformers.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=16)  # fmt: skip
    net = transformers.BertModel(config)
    net.save_pretrained(folder)
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    params = {
        "dataset": pictured(tmp_path / "p.npz", side=4),
        "encoders": ["identity", "bert:length=8"],
        "init_from": [None, str(folder)],
        "freeze": ["text.encoder.*"],
    }
    problem = build("vertical_network", params)
    own = tokenizer("a blue bird 0", return_tensors="pt")
    with torch.no_grad():
        want = net.eval()(**own).last_hidden_state[0, 0]
    assert torch.allclose(problem.parties[1].phi[0], want, atol=1e-5)
    tuned = build("vertical_network", {**params, "freeze": [], "dtype": "float64"})
    assert any(n.startswith("text.encoder.bert.encoder.layer") for n, _ in tuned.layout)
    assert not [str(f) for f in problem_conformance(tuned) if not f.ok]
    with pytest.raises(InputError, match=r"problem\.init_from"):
        build("vertical_network", {**params, "init_from": [None, None]})
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot read"):
        build("vertical_network", params)


def test_without_transformers_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    params = {"dataset": pictured(tmp_path / "p.npz", side=4), "encoders": ["identity", "bert"]}
    with pytest.raises(InputError, match=r"raybench\[text\]"):
        build("vertical_network", {**params, "init_from": [None, str(tmp_path)]})


def test_weights_are_part_of_a_cells_id_by_their_content(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = {"name": "vertical_network", "dataset": file, "encoders": [DEEP]}

    def ids(*paths):
        given = {"problem": {**base, "init_from": [list(paths)]}, "algorithm": "vertical_gd", "step_size": {"value": 1}}  # fmt: skip
        return spec.load(given).cells[0].id

    for name, content in (("a.pt", b"1"), ("b.pt", b"1"), ("c.pt", b"2")):
        (tmp_path / name).write_bytes(content)
    assert ids("a.pt", None, None) == ids("b.pt", None, None) != ids("c.pt", None, None)
    with pytest.raises(InputError, match=r"problem\.init_from.*no file"):
        ids("./none.pt", None, None)


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        ({"encoders": ["identity"]}, "encoders", "1 values for 3 views"),
        ({"encoders": ["identity", "identity", "resnet19"]}, "encoders", "resnet18"),
        ({"encoders": ["identity", "identity", "mlp:hiden=[3]"]}, "encoders", "hidden"),
        ({"encoders": ["identity", "identity", "bert"]}, "encoders", "features"),
        ({"views": ["image", "txt"]}, "views", "text"),
        ({"freeze": ["image.encoder.*"]}, "freeze", "names no parameter"),
        ({"encoders": DEEP, "freeze": ["image.head.*"]}, "freeze", "image.encoder"),
        ({"freeze": ["*"]}, "freeze", "frozen"),
        ({"init_from": ["weights.pt", None, None]}, "init_from", "no weights"),
        ({"rows": 1000}, "dataset", "1000"),
    ],
)
def test_what_is_refused(file, changes, where, words):
    with pytest.raises(InputError) as error:
        build("vertical_network", {"dataset": file, **changes})
    text = str(error.value)
    assert text.startswith(f"problem.{where}"), text
    assert words in text
