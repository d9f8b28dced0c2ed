"""The mapping of folders to import names holds: services/ is `headrace`, shared/ is `headrace.shared`."""

import subprocess
import sys
import tomllib

import pytest

FOLDERS = {"headrace": "services", "headrace.shared": "shared"}


@pytest.fixture(scope="module")
def setuptools(root):
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]


def test_the_package_list_is_the_folders_that_hold_an_init(root, setuptools):
    found = {
        ".".join([name, *path.parent.relative_to(root / folder).parts])
        for name, folder in FOLDERS.items()
        for path in (root / folder).rglob("__init__.py")
    }

    assert found == set(setuptools["packages"])


def test_no_folder_with_code_lacks_its_init(sources, root):
    bare = {str(source.path.parent) for source in sources if source.module and not _has_init(root / source.path)}

    assert bare == set()


def test_two_folders_are_mapped_and_no_more(setuptools):
    assert setuptools["package-dir"] == FOLDERS


def test_nothing_hides_the_shared_package(root):
    """services/shared would be found first as headrace.shared."""
    assert not (root / "services" / "shared").exists()


def test_the_standard_tokenize_stays_itself():
    """Our tokenize room has the name of a standard module that `inspect` and tracebacks need."""
    probe = (
        "import headrace.tokenize, inspect, sys, tokenize; "
        "print(tokenize.open is not None, inspect.getsource(inspect.unwrap) != '', "
        "sorted({'services', 'shared'} & set(sys.modules)))"
    )

    result = subprocess.run([sys.executable, "-P", "-c", probe], capture_output=True, text=True, check=False)

    assert (result.stdout.strip(), result.stderr) == ("True True []", "")


def test_the_type_marker_is_shipped(root, setuptools):
    assert "py.typed" in setuptools["package-data"]["headrace"]
    assert (root / "services" / "py.typed").is_file()


def _has_init(path) -> bool:
    return (path.parent / "__init__.py").is_file()
