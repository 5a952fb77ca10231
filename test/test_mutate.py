"""dev/mutate.py: what it says of a fault that is stale, that tests notice, that they do not, and how its
page is kept."""

import sys

import pytest

from conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "dev"))
import mutate  # noqa: E402


def listed(folder, **entry):
    entry = dict(file="source.py", old="a + b", new="a - b", test="test_source") | entry
    path = folder / "list.toml"
    path.write_text("[[mutation]]\n" + "".join(f"{key} = {value!r}\n" for key, value in entry.items()))
    return path


def test_the_lists_of_this_tree_are_current():
    for path in mutate.LISTS.values():
        mutations = mutate.read_mutations(REPOSITORY / path)
        assert len(mutations) == len({(m.file, m.old, m.new) for m in mutations})
        for test in {test for m in mutations for test in m.tests}:
            assert any((REPOSITORY / f"test/{test}{kind}").exists() for kind in (".cpp", ".py")), test


@pytest.mark.parametrize(
    "change", [dict(old="a * b"), dict(old="a"), dict(new="a + b"), dict(file="gone.py")], ids=str
)
def test_a_fault_that_cannot_be_planted_is_named(tmp_path, change):
    (tmp_path / "source.py").write_text("def add(a, b):\n    return a + b\n")
    assert [m.tests for m in mutate.read_mutations(listed(tmp_path), tmp_path)] == [("test_source",)]
    with pytest.raises(mutate.CannotRun, match="gone.py" if "file" in change else "source.py"):
        mutate.read_mutations(listed(tmp_path, **change), tmp_path)


@pytest.fixture
def small_tree(tmp_path, monkeypatch):
    """A repository of one function and two test files; returns what try_out(**entry) makes of a fault in
    it."""
    (tmp_path / "test").mkdir()
    (tmp_path / "source.py").write_text("def add(a, b):\n    return a + b  # the sum\n")
    path = "import sys; sys.path.insert(0, '.')\nfrom source import add\n"
    (tmp_path / "test/test_source.py").write_text(path + "def test_add():\n    assert add(2, 1) == 3\n")
    (tmp_path / "test/test_hang.py").write_text(path + "def test_add():\n    while add(2, 1) != 3: pass\n")
    (tmp_path / "test/test_zero.py").write_text(path + "def test_add():\n    assert add(2, 0) == 2\n")
    (tmp_path / ".venv").symlink_to(REPOSITORY / ".venv")
    monkeypatch.setattr(mutate, "REPOSITORY", tmp_path)
    monkeypatch.setattr(
        mutate,
        "copy_tree",
        lambda folder: mutate.shutil.copytree(tmp_path, folder, dirs_exist_ok=True, symlinks=True),
    )

    class NoBuild:
        def executable_of(self, test):
            return None

        def path_of(self, name):
            return tmp_path / name

    def try_out(**entry):
        [mutation] = mutate.read_mutations(listed(tmp_path, **entry), tmp_path)
        return mutate.Trial("host", NoBuild()).with_fault(mutation)

    return try_out


def test_a_fault_is_noticed_by_the_first_test_file_that_fails_and_one_without_effect_by_none(small_tree):
    test, sign = small_tree(test=["test_zero", "test_source"])
    assert test == "test_source" and "test_source.py::test_add" in sign
    assert small_tree(test="test_zero") == ("", "")
    assert small_tree(old="# the sum", new="# the difference") == ("", "")


def test_a_fault_of_a_shell_script_is_planted_too(small_tree, tmp_path):
    (tmp_path / "add.sh").write_text("echo $(($1 + $2))\n")
    (tmp_path / "test/test_add.py").write_text(
        "import subprocess\ndef test_add():\n"
        "    assert subprocess.check_output(['bash', 'add.sh', '2', '1']) == b'3\\n'\n"
    )
    assert small_tree(file="add.sh", old="$1 + $2", new="$1 - $2", test="test_add")[0] == "test_add"
    assert small_tree(file="add.sh", old="echo $", new="echo  $", test="test_add") == ("", "")


def test_a_hang_is_noticed(small_tree, monkeypatch):
    monkeypatch.setattr(mutate, "TIME_LIMIT", 3)
    assert small_tree(test="test_hang") == ("test_hang", "does not end")


def test_a_test_file_that_is_not_there_is_an_error(small_tree):
    with pytest.raises(mutate.CannotRun, match="test_nothing"):
        small_tree(test="test_nothing")


def test_recording_one_list_keeps_the_other(tmp_path):
    page = tmp_path / "page.md"
    mutate.record(page, {"kernels": "1 of 1.\n", "host": "2 of 2.\n"})
    mutate.record(page, {"host": "3 of 3.\n"})
    text = page.read_text()
    assert "1 of 1." in text and "3 of 3." in text and "2 of 2." not in text
    assert text.index("1 of 1.") < text.index("3 of 3.")
    mutate.record(page, {"kernels": "4 of 4.\n"})
    assert page.read_text() == text.replace("1 of 1.", "4 of 4.")
