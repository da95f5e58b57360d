"""The papers' own numbers: what may be printed as theirs, and what is said of those nobody has entered."""

import pytest

from experiments.artifacts import MARKS, PAPER, paper_numbers, paper_said

FILES = sorted(PAPER.glob("*.csv"))
HEAD = "benchmark,quantity,value,unit,mark,page,source\n"


@pytest.fixture
def entered(tmp_path):
    """`entered("lstm_ptb,estimation,0.9,,P,7,the paper")`: the folder with one file of that line."""

    def write(*lines):
        (tmp_path / "some.csv").write_text(HEAD + "".join(f"{line}\n" for line in lines))
        return tmp_path

    return write


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_committed_number_says_where_it_was_read(path):
    numbers = paper_numbers(path)
    known = numbers[numbers["value"] != ""]
    assert set(known["mark"]) <= set(MARKS)
    assert (known["source"] != "").all()
    assert not numbers.duplicated([name for name in numbers if name not in ("value", "mark", "page", "source")]).any()


def test_there_is_a_file_for_each_table_and_figure_with_numbers():
    assert {path.stem for path in FILES} == {
        "headline", "table1", "fig3_lstm", "fig5_cifar", "fig6_imagenet", "fig8_one_node", "gaussiank", "dgc",
    }  # fmt: skip


def test_what_is_derived_from_code_is_not_said_to_be_read_in_the_paper():
    numbers = paper_numbers(PAPER / "table1.csv")
    counts = numbers[numbers["quantity"] == "parameters"].set_index("benchmark")
    assert set(counts["mark"]) == {"D"}
    assert counts["value"].to_dict() == {
        "lstm_ptb": "66034000", "lstm_an4": "43476256", "resnet20_cifar10": "269722", "vgg16_cifar10": "14728266",
        "resnet50_imagenet": "25557032", "vgg19_imagenet": "143667240",
    }  # fmt: skip
    assert set(numbers.loc[numbers["quantity"] == "communication", "value"]) == {""}


@pytest.mark.parametrize("mark", ["M", "m", "?"])
def test_another_mark_is_refused_and_the_line_named(entered, mark):
    folder = entered("lstm_ptb,estimation,,,,,", f"lstm_ptb,estimation,0.9,,{mark},7,recollection")
    with pytest.raises(
        ValueError, match=rf"some.csv, line 3: .*got one marked {'M, from memory' if mark == 'M' else '.'}"
    ):
        paper_numbers(folder / "some.csv")


@pytest.mark.parametrize("line", ["b,q,0.9,,,,", "b,q,0.9,,P,,", "b,q,0.9,,,,somewhere", "b,q,,,P,,", "b,q,,,P,7,x"])
def test_a_number_from_nowhere_is_refused(entered, line):
    with pytest.raises(ValueError, match="line 2: expected value, mark and source together, or all three empty"):
        paper_numbers(entered(line) / "some.csv")


def test_a_file_without_its_columns_is_refused(tmp_path):
    (tmp_path / "some.csv").write_text("benchmark,value,unit,mark,source\n")
    with pytest.raises(ValueError, match="expected a column page, got benchmark, value"):
        paper_numbers(tmp_path / "some.csv")


def test_what_is_blank_is_counted_and_never_guessed(entered):
    folder = entered("a,estimation,,,,,", "b,estimation,,,,,", "b,speed-up,2,x,P,7,the paper")
    assert paper_said("some", quantity="estimation", folder=folder) == "some.csv: 2 of 2 numbers not transcribed."


def test_what_a_reader_entered_is_printed_with_its_page_and_origin(entered):
    folder = entered("a,estimation,1.02,,P,7,the paper", "b,estimation,0.9,,P,,the paper", "c,estimation,,,,,")
    said = paper_said("some", quantity="estimation", folder=folder)
    assert "| a | estimation | 1.02 | – | read in the paper | 7 | the paper | paper |" in said
    assert "| b | estimation | 0.9 | – | read in the paper | page not transcribed | the paper | paper |" in said
    assert said.endswith("some.csv: 1 of 3 numbers not transcribed.")
