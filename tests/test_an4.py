"""AN4 in every format it comes in, batches by length, and speech without files."""

import re
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT
from data_sets import REAL, hum, make_an4, write_sound

from experiments.data.an4 import AN4
from experiments.data.cache import DataMissing
from experiments.data.speech import BINS, LETTERS, spectrogram
from experiments.data.synthetic_speech import SyntheticSpeech

pytestmark = pytest.mark.usefixtures("folders")
SUFFIXES = [".raw", ".sph", ".wav", ".flac"]


def spelt(row, count):
    return "".join(LETTERS[label] for label in row[:count])


def recording(folders, place=0, suffix=".flac"):
    return folders / "data" / "an4" / "wav" / "an4_clstk" / f"f{place % 2}" / f"cen{place}-f{place % 2}-b{suffix}"


# --- what is read ---


def test_every_format_is_the_same_data(folders, monkeypatch):
    identities = set()
    for suffix in SUFFIXES:
        monkeypatch.setenv("SIDCO_DATA", str(folders / suffix[1:] / "data"))
        identities.add(make_an4(folders / suffix[1:], suffix).prepare())
    assert len(identities) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_samples_and_letters_are_what_was_written(suffix, folders):
    data = make_an4(folders, suffix, texts=["GO", "RUBOUT  O'NEIL five"])
    data.prepare()
    for split, valid, count in (("train", False, 6), ("valid", True, 3)):
        found = {(len(part), text): part for part, text in held(data, split)}
        texts = ["GO", "RUBOUT O'NEIL FIVE"]
        assert len(found) == count
        for place in range(count):
            sound = hum(place, valid)
            assert np.array_equal(found[len(sound), texts[place % 2]], sound)


def held(data, split):
    sounds = np.split(data.arrays[f"{split}_samples"], data.arrays[f"{split}_sample_ends"][:-1])
    letters = np.split(data.arrays[f"{split}_letters"], data.arrays[f"{split}_letter_ends"][:-1])
    return [(sound, spelt(text, len(text))) for sound, text in zip(sounds, letters, strict=True)]


def test_labels_are_the_released_code_s():
    assert (len(LETTERS), LETTERS[0], LETTERS[1], LETTERS[2], LETTERS[27], LETTERS[28]) == (29, "_", "'", "A", "Z", " ")


def test_a_spectrogram_shows_the_tone_and_is_normalised():
    seconds = torch.arange(8000) / 16_000
    levels = spectrogram((8000 * torch.sin(2 * torch.pi * 1000 * seconds)).short())
    assert levels.shape == (161, 51)  # 10 ms apart, both ends included
    assert BINS == 161
    assert set(levels[:, 5:-5].argmax(0).tolist()) == {20}  # bins are 50 Hz apart
    assert levels.mean().item() == pytest.approx(0, abs=1e-5)
    assert levels.std().item() == pytest.approx(1, abs=1e-4)


def test_a_spectrogram_by_hand():
    samples = torch.zeros(800, dtype=torch.int16)
    samples[400] = 2**14
    raw = torch.zeros(161, 6)
    for frame in range(6):  # windows are centred on multiples of 160 samples
        place = 400 - 160 * frame + 160
        if 0 <= place < 320:
            raw[:, frame] = np.log1p(0.5 * (0.54 - 0.46 * np.cos(2 * np.pi * place / 320)))
    expected = (raw - raw.mean()) / raw.std()
    torch.testing.assert_close(spectrogram(samples), expected, atol=1e-4, rtol=1e-4)


def test_silence_and_the_shortest_sound_are_finite():
    assert not spectrogram(torch.zeros(1000, dtype=torch.int16)).any()
    assert spectrogram(torch.ones(1, dtype=torch.int16)).isfinite().all()


# --- batches ---


@pytest.fixture
def some(folders):
    data = SyntheticSpeech(train_count=23, valid_count=5)
    data.prepare()
    return data


def test_a_batch_is_padded_with_zeros_and_says_how_long_its_parts_are(some):
    for sounds, sizes, letters, counts in some.valid_batches(3):
        assert sounds.shape == (len(sizes), 161, max(sizes))
        assert letters.shape == (len(sizes), max(counts))
        for sound, size, row, count in zip(sounds, sizes, letters, counts, strict=True):
            assert not sound[:, size:].any()
            assert sound[:, :size].std().item() == pytest.approx(1, abs=1e-3)
            assert row[:count].all()
            assert not row[count:].any()


@pytest.mark.case(13)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_each_global_batch_evenly_and_every_utterance_is_in_one(world_size, some):
    steps = some.steps_per_epoch(world_size, 2)
    assert steps == 23 // (2 * world_size)
    for epoch in (0, 3):
        ranks = [list(some.train_batches(rank, world_size, 2, epoch, 1)) for rank in range(world_size)]
        assert {len(batches) for batches in ranks} == {steps}
        assert {len(batch[1]) for batches in ranks for batch in batches} == {2}
        whole = list(some.train_batches(0, 1, 2 * world_size, epoch, 1))
        for step, (_, sizes, _, counts) in enumerate(whole):
            parts = [batches[step] for batches in ranks]
            dealt = [pair for part in parts for pair in zip(part[1].tolist(), part[3].tolist(), strict=True)]
            assert sorted(dealt) == sorted(zip(sizes.tolist(), counts.tolist(), strict=True))


def test_batches_are_of_neighbours_in_length_and_the_first_epoch_goes_from_short_to_long(some):
    lengths = np.sort(np.diff(some.arrays["train_sample_ends"], prepend=0)) // 160 + 1
    first = [size for batch in some.train_batches(0, 1, 4, 0, 1) for size in batch[1].tolist()]
    assert first == sorted(first)
    assert any(first == lengths[start : start + 20].tolist() for start in range(4))
    later = [batch[1].tolist() for batch in some.train_batches(0, 1, 4, 1, 1)]
    assert later != sorted(later)
    assert any(sorted(later) == lengths[start : start + 20].reshape(5, 4).tolist() for start in range(4))


def test_order_follows_seed_and_epoch_and_leaves_the_global_state_alone(some):
    before = torch.get_rng_state()

    def epoch(number, seed):
        return torch.cat([sizes for _, sizes, _, _ in some.train_batches(0, 1, 2, number, seed)]).tolist()

    assert epoch(3, 7) == epoch(3, 7)
    assert epoch(3, 7) != epoch(4, 7)
    assert epoch(3, 7) != epoch(3, 8)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_an_epoch_leaves_out_changes(some):
    left = {tuple(sorted(size for b in some.train_batches(0, 1, 5, e, 1) for size in b[1].tolist())) for e in range(9)}
    assert len(left) > 1


def test_validation_is_whole(folders):
    data = make_an4(folders)
    data.prepare()
    sizes = [size for batch in data.valid_batches(2) for size in batch[1].tolist()]
    assert sorted(sizes) == sorted(len(hum(place, valid=True)) // 160 + 1 for place in range(3))


def test_a_batch_larger_than_the_data_is_refused(some):
    with pytest.raises(ValueError, match=r"at most 11 utterances .* lower training\.batch_per_rank"):
        next(some.train_batches(0, 2, 12, 0, 0))


def test_an_utterance_without_letters_makes_a_batch(folders):
    data = make_an4(folders, texts=[""])
    data.prepare()
    _, _, letters, counts = next(data.valid_batches(2))
    assert letters.tolist() == [[0], [0]]
    assert counts.tolist() == [0, 0]


# --- what is wrong ---


@pytest.mark.case(62)
def test_without_files_it_says_where_they_go_and_what_needs_none(folders):
    with pytest.raises(DataMissing) as caught:
        AN4().prepare()
    for words in (str(folders / "data" / "an4"), "etc/an4_{train,test}", "dead", "SIDCO_DATA", "benchmark=lstm_speech"):
        assert words in str(caught.value)


@pytest.mark.case(62)
@pytest.mark.parametrize("file", ["an4_train.fileids", "an4_test.transcription"])
def test_a_missing_listing_is_named(file, folders):
    make_an4(folders)
    (folders / "data" / "an4" / "etc" / file).unlink()
    with pytest.raises(DataMissing, match=f"no etc/{file}"):
        AN4().prepare()


@pytest.mark.case(60)
def test_a_partial_tree_is_refused(folders):
    data = make_an4(folders)
    recording(folders, 3).unlink()
    with pytest.raises(DataMissing, match=r"no recording wav/an4_clstk/f1/cen3-f1-b"):
        data.prepare()


@pytest.mark.case(60)
@pytest.mark.parametrize("suffix", [".flac", ".wav", ".sph"])  # nobody can tell of a raw file
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_recording_cut_short_is_refused(suffix, share, folders):
    data = make_an4(folders, suffix)
    file = recording(folders, suffix=suffix)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DataMissing, match=rf"cen0-f0-b\{suffix}.*Expected"):
        data.prepare()


@pytest.mark.parametrize(
    ("samples", "rate", "says"),
    [
        (hum(0), 8000, "one channel at 16000 Hz"),
        (np.stack([hum(0), hum(0)], 1), 16_000, "one channel at 16000 Hz"),
        (np.zeros(0, np.int16), 16_000, "one channel at 16000 Hz"),
    ],
    ids=["rate", "stereo", "empty"],
)
def test_another_kind_of_recording_is_refused(samples, rate, says, folders):
    data = make_an4(folders, ".wav")
    write_sound(recording(folders, suffix=".wav"), samples, rate)
    with pytest.raises(DataMissing, match=says):
        data.prepare()


def test_raw_files_in_the_other_byte_order_are_refused(folders):
    data = make_an4(folders, ".raw")
    recording(folders, suffix=".raw").write_bytes(hum(0).astype("<i2").tobytes())
    with pytest.raises(DataMissing, match=r"cen0-f0-b\.raw in little-endian order \(convert it: dd conv=swab\)"):
        data.prepare()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("<s> YES </s> (cen5-f1-b)", "where that of an4_clstk/f0/cen0-f0-b should be"),
        ("YES", "where that of an4_clstk/f0/cen0-f0-b should be"),
        ("<s> YES 5 </s> (cen0-f0-b)", r"the characters \['5'\]"),
    ],
)
def test_a_transcript_that_does_not_belong_is_refused(line, says, folders):
    data = make_an4(folders)
    file = folders / "data" / "an4" / "etc" / "an4_train.transcription"
    file.write_text("\n".join([line, *file.read_text().splitlines()[1:]]))
    with pytest.raises(DataMissing, match=says):
        data.prepare()


def test_a_listing_cut_short_is_refused(folders):
    data = make_an4(folders)
    file = folders / "data" / "an4" / "etc" / "an4_train.transcription"
    file.write_text("\n".join(file.read_text().splitlines()[:4]))
    with pytest.raises(DataMissing, match="6 ids but 4 transcripts"):
        data.prepare()


def test_sizes_that_follow_from_the_data_cannot_be_set():
    with pytest.raises(ValueError, match=r"dataset\.bins=161 and dataset\.labels=29"):
        AN4(bins=80)


# --- without files ---


@pytest.mark.case(62)
def test_synthetic_speech_needs_no_files_and_is_the_same_every_time(folders):
    first, again = SyntheticSpeech(train_count=5, valid_count=4), SyntheticSpeech(train_count=5, valid_count=4)
    assert first.utterances("train")[2][1] == again.utterances("train")[2][1]
    assert np.array_equal(first.utterances("valid")[1][0], again.utterances("valid")[1][0])
    other = SyntheticSpeech(train_count=5, valid_count=4, draw=1)
    assert first.prepare() == again.prepare() != other.prepare()
    texts = [text for split in ("train", "valid") for _, text in first.utterances(split)]
    assert all(re.fullmatch(r"[A-Z]{1,4}( [A-Z]{1,4}){0,2}", text) for text in texts)
    assert len(set(texts)) == 9


def test_every_letter_sounds_different():
    data = SyntheticSpeech(noise=0.0)
    sounds = {letter: data._spoken(letter, np.random.default_rng(0))[0].tobytes() for letter in LETTERS[2:]}
    assert len(set(sounds.values())) == len(sounds) == 27


@pytest.mark.case(63)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_recordings_are_read_where_torchaudio_and_torchcodec_cannot_be(suffix, folders, monkeypatch):
    for absent in ("torchaudio", "torchcodec"):
        monkeypatch.setitem(sys.modules, absent, None)  # an import of it raises
    data = make_an4(folders, suffix)
    data.prepare()
    assert len(next(data.valid_batches(2))[0]) == 2


@pytest.mark.case(63)
def test_nothing_here_imports_torchaudio_torchcodec_or_warp_ctc():
    wanted = re.compile(r"^\s*(?:import|from)\s+(?:torchaudio|torchcodec|warpctc\w*)\b", re.MULTILINE)
    assert wanted.search("    from torchaudio import load")
    files = [file for room in ("sidco", "experiments") for file in (ROOT / room).rglob("*.py")]
    assert len(files) > 50
    assert [file for file in files if wanted.search(file.read_text())] == []
    declared = (ROOT / "pyproject.toml").read_text() + (ROOT / "constraints.txt").read_text()
    assert not re.search("torchaudio|torchcodec|warp-?ctc", declared)


# --- what people have ---


@pytest.mark.skipif(not (REAL / "an4").is_dir(), reason="needs an4/ in $SIDCO_DATA")
def test_real_an4(monkeypatch):
    monkeypatch.setenv("SIDCO_DATA", str(REAL))
    data = AN4()
    data.prepare()
    assert [len(data.arrays[f"{split}_sample_ends"]) for split in ("train", "valid")] == [948, 130]
    minutes = sum(data.arrays[f"{split}_sample_ends"][-1] for split in ("train", "valid")) / 16_000 / 60
    assert minutes == pytest.approx(48, abs=0.5)
    assert data.steps_per_epoch(2, 20) == 23
    assert "RUBOUT G M E F THREE NINE" in {text for _, text in held(data, "valid")}
