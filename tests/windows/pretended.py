"""Makes a process look like Windows to whatever is imported from then on. To be run in a subprocess, not by pytest.

Modules that are loaded already, such as Trio and the rest of the standard library, go on with Linux. Modules that are
imported afterwards, which are those of this project, find a `sys.platform` of ``win32``, the modules and names of
Windows, and none of those that Windows does not have. So their branches for Windows run, on the sockets, pipes and
threads of Linux and with a `kernel32` and an `msvcrt` that the program provides.

The lists of names are those that typeshed has under ``sys.platform != "win32"``.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["Pretended", "pretend", "run_in_windows", "sources"]

ROOT = Path(__file__).parent.parent.parent
# Parsing a thousand files would take longer than everything else here.
_IMPORTS = re.compile(r"^\s*(?:from|import) ([\w.]+)|import_module\(\"([\w.]+)\"\)", re.MULTILINE)
_NOT_FOR_STDIO = re.compile(r"\.(admin|auth|cli|examples|http|inspection|redis|simulate|testing|websocket)\b")
PACKAGES = {"mcp_actors": ROOT / "mcp_actors", "mcp_transports": ROOT / "transports" / "mcp_transports"}
NO_MODULES = [
    "_curses",
    "_posixshmem",
    "_posixsubprocess",
    "crypt",
    "curses",
    "fcntl",
    "grp",
    "nis",
    "ossaudiodev",
    "posix",
    "pty",
    "pwd",
    "readline",
    "resource",
    "spwd",
    "syslog",
    "termios",
    "tty",
    "uvloop",
]
NO_NAMES = {
    "os": (
        "EFD_CLOEXEC EFD_NONBLOCK EFD_SEMAPHORE EX_CONFIG EX_DATAERR EX_NOINPUT EX_NOPERM EX_OSERR EX_SOFTWARE "
        "EX_TEMPFAIL EX_UNAVAILABLE EX_USAGE F_LOCK F_TEST F_TLOCK F_ULOCK GRND_NONBLOCK MFD_ALLOW_SEALING "
        "MFD_CLOEXEC O_ACCMODE O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_FSYNC O_LARGEFILE O_NDELAY "
        "O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_RSYNC O_SYNC O_TMPFILE POSIX_SPAWN_CLOSE "
        "POSIX_SPAWN_DUP2 POSIX_SPAWN_OPEN PRIO_PROCESS P_ALL P_PGID P_PID P_PIDFD RTLD_GLOBAL RTLD_LAZY "
        "RTLD_LOCAL RTLD_NOW SCHED_OTHER SEEK_DATA SEEK_HOLE WCONTINUED WCOREDUMP WEXITED WEXITSTATUS "
        "WIFCONTINUED WIFEXITED WIFSIGNALED WIFSTOPPED WNOHANG WNOWAIT WSTOPPED WSTOPSIG WTERMSIG WUNTRACED chown "
        "chroot confstr confstr_names copy_file_range ctermid environb eventfd eventfd_read eventfd_write fchdir "
        "fchmod fchown fdatasync fork forkpty fpathconf fstatvfs fwalk get_blocking getegid getenvb geteuid "
        "getgid getgrouplist getgroups getloadavg getpgid getpgrp getpriority getrandom getresgid getresuid "
        "getsid getuid getxattr initgroups killpg lchown listxattr lockf login_tty major makedev memfd_create "
        "minor mkfifo mknod nice openpty pathconf pidfd_open pipe2 posix_fadvise posix_fallocate posix_spawn "
        "posix_spawnp pread preadv pwrite pwritev readv register_at_fork removexattr sched_getaffinity "
        "sched_setaffinity sched_yield sendfile set_blocking setegid seteuid setgid setgroups setpgid setpgrp "
        "setpriority setregid setresgid setresuid setreuid setsid setuid setxattr splice statvfs sync sysconf "
        "sysconf_names tcgetpgrp tcsetpgrp ttyname uname wait wait3 wait4 waitid writev"
    ),
    "signal": (
        "ITIMER_PROF ITIMER_REAL ITIMER_VIRTUAL ItimerError SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGHUP SIGIO "
        "SIGIOT SIGKILL SIGPIPE SIGPOLL SIGPROF SIGPWR SIGQUIT SIGRTMAX SIGRTMIN SIGSTKFLT SIGSTOP SIGSYS SIGTRAP "
        "SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ SIG_BLOCK SIG_SETMASK "
        "SIG_UNBLOCK Sigmasks alarm getitimer pause pidfd_send_signal pthread_kill pthread_sigmask setitimer "
        "siginterrupt sigpending sigtimedwait sigwait sigwaitinfo struct_siginfo"
    ),
    "socket": (
        "AF_ALG AF_CAN AF_KEY AF_NETLINK AF_PACKET AF_QIPCRTR AF_RDS AF_ROUTE AF_TIPC AF_UNIX AF_VSOCK CMSG_LEN "
        "CMSG_SPACE IPPROTO_MPTCP IPPROTO_UDPLITE IP_BIND_ADDRESS_NO_PORT IP_TRANSPARENT MSG_CMSG_CLOEXEC "
        "MSG_CONFIRM MSG_DONTWAIT MSG_EOR MSG_FASTOPEN MSG_MORE MSG_NOSIGNAL SCM_CREDENTIALS SCM_RIGHTS "
        "SOCK_CLOEXEC SOCK_NONBLOCK SO_BINDTODEVICE SO_DOMAIN SO_INCOMING_CPU SO_MARK SO_PASSCRED SO_PASSSEC "
        "SO_PEERCRED SO_PEERSEC SO_PRIORITY SO_PROTOCOL SO_REUSEPORT TCP_CONGESTION TCP_CORK TCP_DEFER_ACCEPT "
        "TCP_INFO TCP_LINGER2 TCP_NOTSENT_LOWAT TCP_QUICKACK TCP_SYNCNT TCP_USER_TIMEOUT TCP_WINDOW_CLAMP "
        "recv_fds send_fds sethostname"
    ),
    "select": (
        "EPOLLERR EPOLLET EPOLLEXCLUSIVE EPOLLHUP EPOLLIN EPOLLMSG EPOLLONESHOT EPOLLOUT EPOLLPRI EPOLLRDHUP "
        "EPOLL_CLOEXEC PIPE_BUF POLLERR POLLHUP POLLIN POLLMSG POLLNVAL POLLOUT POLLPRI POLLRDHUP epoll poll"
    ),
    "time": (
        "CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_MONOTONIC_RAW CLOCK_PROCESS_CPUTIME_ID CLOCK_REALTIME CLOCK_TAI "
        "CLOCK_THREAD_CPUTIME_ID clock_getres clock_gettime clock_gettime_ns clock_settime clock_settime_ns "
        "pthread_getcpuclockid tzset"
    ),
    "mmap": "MADV_DONTNEED MAP_ANON MAP_ANONYMOUS MAP_POPULATE MAP_PRIVATE MAP_SHARED PROT_EXEC PROT_READ PROT_WRITE",
    "sys": "abiflags getdlopenflags setdlopenflags",
    "ctypes": "",
    "subprocess": "",
}


def _only_files(call: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
    """Makes a call of descriptors one that knows no sockets: those of Windows are no descriptors."""

    def checked(descriptor: int, value: Any) -> Any:
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return call(descriptor, value)

    return checked


NEW_NAMES: dict[str, dict[str, Any]] = {
    "os": {
        "O_BINARY": 0,
        "O_NOINHERIT": 0,
        "name": "nt",
        "read": _only_files(os.read),
        "write": _only_files(os.write),
    },
    # The number is free on Linux: a signal that stops a process only if nobody handles it.
    "signal": {"SIGBREAK": 21, "CTRL_C_EVENT": 0, "CTRL_BREAK_EVENT": 1},
    "sys": {"platform": "win32"},
    "subprocess": {
        "CREATE_NEW_PROCESS_GROUP": 0x200,
        "CREATE_NO_WINDOW": 0x08000000,
        "CREATE_BREAKAWAY_FROM_JOB": 0x01000000,
    },
}


class Pretended(ModuleType):
    """A module of the standard library as Windows has it. What is set on it is set on the real one.

    Args:
        real: The module.
        absent: Names that it does not have on Windows.
        added: Names that only Windows has, or has with another value.
    """

    def __init__(self, real: ModuleType, absent: frozenset[str], added: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        vars(self).update(added, _real=real, _absent=absent, __spec__=real.__spec__, __doc__=real.__doc__)
        if hasattr(real, "__path__"):
            vars(self)["__path__"] = real.__path__

    def __getattr__(self, name: str) -> Any:
        if name in vars(self)["_absent"]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on Windows")
        return getattr(vars(self)["_real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_real"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(vars(self)["_real"], name)


def sources() -> dict[str, Path]:
    """Returns the file of every module of the two packages."""
    files: dict[str, Path] = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def pretend(*, everything: bool = False, **modules: object) -> None:
    """Loads what does not belong to this project as it is on Linux, then makes this process look like Windows.

    Args:
        everything: Whether more of this project will be imported than a stdio server or client needs.
        modules: Modules that only Windows has, by their names; ``kernel32`` returns the library that
            `ctypes.WinDLL` loads.
    """
    assert not any(name.partition(".")[0] in PACKAGES for name in sys.modules), "too late: ours is loaded"
    for name in sorted(_imported_from_elsewhere(everything)):
        if name not in NO_MODULES:
            try:
                importlib.import_module(name)
            except ImportError:
                continue  # an extra that is not installed, or a module of another system
    kernel32: Any = modules.pop("kernel32", None)
    libraries: dict[str, dict[str, Any]] = {
        **NEW_NAMES,
        "ctypes": {"WinDLL": lambda name, **options: kernel32(), "CDLL": _load_library},
    }
    for name, absent in NO_NAMES.items():
        real = importlib.import_module(name)
        sys.modules[name] = Pretended(real, frozenset(absent.split()), libraries.get(name, {}))
    for name in NO_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # the import system takes it for "there is none"
    for name, module in modules.items():
        sys.modules[name] = module  # type: ignore[assignment]


def _load_library(name: str | None, **options: object) -> Any:
    if name is None:
        raise TypeError("LoadLibrary() argument 1 must be str, not None")
    return importlib.import_module("ctypes").pythonapi


def _imported_from_elsewhere(everything: bool = True) -> set[str]:
    files = [path for name, path in sources().items() if everything or not _NOT_FOR_STDIO.search(name)]
    text = "\n".join(path.read_text() for path in files)
    names = {name for pair in _IMPORTS.findall(text) for name in pair if name}
    return {name for name in names if name.partition(".")[0] not in (*PACKAGES, "__main__")}


def run_in_windows(program: str, *arguments: str) -> str:
    """Runs a program, which calls `pretend` first, in a process of its own, and returns what it prints."""
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
