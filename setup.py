"""Packages the project, and builds the optional compiled kernels.

FWP_BUILD=auto (default) compiles the kernels that this machine can compile and run, CUDA kernels only if torch sees a
GPU, and for that GPU; it never fails because of them. FWP_BUILD=none compiles nothing. FWP_BUILD=cpu and FWP_BUILD=cuda
(which includes cpu) fail if they cannot compile. cuda needs no GPU; TORCH_CUDA_ARCH_LIST selects the devices, which are
by default those of this machine, or DEVICES if it has none.

The build prints what it compiles and about how long that takes (pip shows this with -v), and writes its result to
fwp_fairseq/_build.json, which `fwp info` shows. Compiling needs torch during the build: `pip install
--no-build-isolation`. A library of an earlier build that this one cannot replace is kept, unless the target leaves it
out.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

PACKAGE = Path(__file__).resolve().parent / "fwp_fairseq"
README = PACKAGE.parent / "README.md"
PARTS = {"auto": ("cpu", "cuda"), "none": (), "cpu": ("cpu",), "cuda": ("cpu", "cuda")}
# Each part is a separate library, so that the CPU kernels work even if the CUDA library cannot be compiled or loaded.
SOURCES = {"cpu": ("csrc/*.cpp", "csrc/cpu/*.cpp"), "cuda": ("csrc/cuda/*.cpp", "csrc/cuda/kernels/instances/*.cu")}
DEVICES = "8.0;9.0;12.0"  # the default without a GPU: A100; H100 and H200; the RTX series from 5000 on
OLDEST = 8.0  # the compute capability that the kernels need
OLD = re.compile("Kepler|Maxwell|Pascal|Volta|Turing")  # torch's names of older devices
SECONDS = {"cpu": 33, "cuda": 40}  # time of one processor per source (and device), for the estimate

TARGET = os.environ.get("FWP_BUILD", "auto")
if TARGET not in PARTS:
    sys.exit(f"FWP_BUILD={TARGET}: expected one of {', '.join(PARTS)}")
record = {"target": TARGET, "built": [], "reasons": {}, "torch": None, "compiler": None, "nvcc": None, "devices": None}


def sources(part):
    root = PACKAGE.parent
    return sorted(path.relative_to(root).as_posix() for pattern in SOURCES[part] for path in root.glob(pattern))


def version(command, pattern):
    found = re.search(pattern, subprocess.run([*command, "--version"], capture_output=True, text=True).stdout)
    return found.group(1) if found else "unknown"


def toolkit():
    """The folder of the CUDA toolkit as nvcc reports it; torch would take that of ``nvcc`` on PATH, maybe a wrapper."""
    if shutil.which("nvcc") is None:
        return None
    dry = subprocess.run(["nvcc", "--dryrun", "-c", "any.cu"], capture_output=True, text=True)
    top = re.search(r"^#\$ TOP=(.+)$", dry.stderr, re.M)
    return os.path.realpath(top.group(1)) if top else None


def obstacle(part):
    """Why the kernels of `part` cannot be compiled here, or None; also writes the tools' versions into the record."""
    if not sources(part):
        return f"there are no sources {' '.join(SOURCES[part])}"
    if not {"CUDA_HOME", "CUDA_PATH"} & os.environ.keys() and (home := toolkit()):
        os.environ["CUDA_HOME"] = home  # before torch looks
    try:
        import torch
        from torch.utils import cpp_extension
    except (ImportError, OSError) as error:
        return f"torch cannot be imported while building (pip install --no-build-isolation): {error}"
    record["torch"] = torch.__version__
    compiler = cpp_extension.get_cxx_compiler().split()  # CXX="ccache g++"
    if not compiler or shutil.which(compiler[0]) is None:
        return f"no C++ compiler: {' '.join(compiler) or 'CXX is empty'}, expected a program on PATH"
    record["compiler"] = version(compiler, "(.+)")
    if part == "cpu":
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    nvcc = shutil.which("nvcc", path=os.path.join(cpp_extension.CUDA_HOME or "", "bin"))
    if nvcc is None:
        return f"no nvcc in CUDA_HOME={cpp_extension.CUDA_HOME}"
    record["nvcc"] = version([nvcc], r"release ([\d.]+)")
    if record["nvcc"].split(".")[0] != torch.version.cuda.split(".")[0]:
        return f"nvcc is of CUDA {record['nvcc']}, torch of CUDA {torch.version.cuda}"
    seen = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    capabilities = sorted({torch.cuda.get_device_capability(i) for i in seen})
    devices = ";".join(f"{major}.{minor}" for major, minor in capabilities if major >= 8)
    if TARGET == "auto" and not devices:
        return (
            "torch sees no GPU of compute capability 8.0 or higher; "
            "FWP_BUILD=cuda compiles without one, for the devices of TORCH_CUDA_ARCH_LIST"
        )
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST") or devices or DEVICES
    record["devices"] = os.environ["TORCH_CUDA_ARCH_LIST"] = served_devices(wanted)
    return None if record["devices"] else f"the kernels need compute capability {OLDEST}, TORCH_CUDA_ARCH_LIST={wanted}"


def served_devices(wanted):
    """Of a list such as NVIDIA's containers have, what the kernels can be compiled for; with PTX for newer devices."""
    entries = [entry for entry in re.split("[; ]+", wanted) if entry]
    number = {entry: re.match(r"\d+\.\d+", entry) for entry in entries}
    kept = [
        entry for entry in entries if (float(number[entry][0]) >= OLDEST if number[entry] else not OLD.match(entry))
    ]
    if left_out := [entry for entry in entries if entry not in kept]:
        text = f"not compiling for compute capability {', '.join(left_out)}: the kernels need {OLDEST}"
        print(f"fwp_fairseq: {text}", file=sys.stderr, flush=True)
    plain = [entry for entry in kept if re.fullmatch(r"\d+\.\d+", entry)]
    if plain and not any("PTX" in entry for entry in kept):
        newest = max(plain, key=lambda entry: tuple(map(int, entry.split("."))))
        kept[kept.index(newest)] += "+PTX"
    return ";".join(kept)


def announce(part):
    """Prints what is compiled, for which devices, and about how long it takes."""
    from torch.utils.cpp_extension import is_ninja_available

    jobs = 1
    if is_ninja_available():
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        wanted = os.environ.get("MAX_JOBS", "")  # ninja takes 0 and what is no number as no limit
        jobs = int(wanted) if wanted.isdigit() and int(wanted) else processors
    devices = re.split("[; ]+", record["devices"]) if part == "cuda" else []
    target = f" for compute capability {', '.join(devices)}" if devices else ""
    count = len(sources(part))
    minutes = max(1, round(count * max(1, len(devices)) * SECONDS[part] / min(count, jobs) / 60))
    text = f"compiling the {part} kernels{target}: {count} sources, {jobs} at a time, about {minutes} min"
    print(f"fwp_fairseq: {text}", file=sys.stderr, flush=True)


def extension(part):
    from torch.utils.cpp_extension import CppExtension, CUDAExtension

    make = {"cpu": CppExtension, "cuda": CUDAExtension}[part]
    # -g0: otherwise distutils adds debug information, which would be nine tenths of the library.
    flags = {"cxx": ["-O3", "-g0"], "nvcc": ["-O3"]}
    link = []
    if os.environ.get("FWP_SANITIZE") == "1":  # see scripts/sanitize.sh
        sanitizers = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"]
        flags["cxx"] += [*sanitizers, "-O1", "-g1"]
        link += sanitizers
    # py_limited_api: no Python symbols, so that one library serves every Python version.
    return make(
        f"fwp_fairseq._{part}", sources(part), extra_compile_args=flags, extra_link_args=link, py_limited_api=True
    )


@contextlib.contextmanager
def one_at_a_time():
    """Waits while another build in this folder compiles: both would write the same objects, libraries and record."""
    with open(__file__) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"fwp_fairseq: waiting for another build in {PACKAGE.parent}", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # this file system has no locks
            pass
        yield


def conclude(folder):
    """Writes the record of this build. A library is removed only if the target excludes its part.

    ``kept`` lists the libraries in `folder` that an earlier build left, each part with the torch it was built for.
    """
    file = folder / "_build.json"
    try:
        earlier = dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):  # the record is missing or damaged
        earlier = {}
    record["kept"], record["sha256"] = {}, {}
    for part in PARTS["cuda"]:
        library = folder / f"_{part}.abi3.so"
        if part in record["built"]:
            record["sha256"][part] = hashlib.sha256(library.read_bytes()).hexdigest()
            continue
        if not library.exists():
            continue
        if part in PARTS[TARGET]:
            record["sha256"][part] = earlier.get("sha256", {}).get(part)
            record["kept"][part] = earlier.get("kept", {}).get(part, earlier.get("torch"))
            print(f"warning: {library} is of an earlier build and kept: {record['reasons'][part]}", file=sys.stderr)
        else:
            library.unlink()
    file.write_text(json.dumps(record, indent=2) + "\n")


extensions = []
for part in PARTS[TARGET]:
    record["reasons"][part] = obstacle(part)
    if record["reasons"][part] is None:
        extensions.append(extension(part))
    elif TARGET != "auto":
        reason = record["reasons"][part]
        sys.exit(f"FWP_BUILD={TARGET}: cannot build the {part} kernels: {reason}; FWP_BUILD=none installs without them")
if extensions:
    from torch.utils.cpp_extension import BuildExtension as build_ext


class BuildPackage(build_py):
    def run(self):
        super().run()
        if not extensions:  # BuildKernels does not run
            with one_at_a_time():
                conclude(PACKAGE if self.editable_mode else Path(self.build_lib, PACKAGE.name))


class BuildKernels(build_ext):
    def run(self):
        with one_at_a_time():
            self.build_each()

    def build_each(self):
        """Builds one library at a time: with FWP_BUILD=auto a failing compiler costs that library only."""
        wanted, compiler, inplace = self.extensions, self.compiler, self.inplace
        self.force = True  # or a changed header or another torch compiles nothing; torch sees to it with ninja alone
        for library in wanted:
            self.extensions, self.compiler, self.inplace = [library], compiler, inplace
            part = library.name.rpartition("._")[2]
            announce(part)
            try:
                super().run()
                record["built"].append(part)
            except Exception as error:
                if TARGET != "auto":
                    raise
                record["reasons"][part] = f"compiling failed, see pip install -v: {str(error).partition(chr(10))[0]}"
        self.inplace = inplace
        self.extensions = [library for library in wanted if library.name.rpartition("._")[2] in record["built"]]
        conclude(PACKAGE if inplace else Path(self.build_lib, PACKAGE.name))


setup(
    name="fwp-fairseq",
    version=re.search(r'^__version__ = "(.+)"$', (PACKAGE / "__init__.py").read_text(), re.M).group(1),
    description="Fast-weight (linear) attention for machine translation, as a fairseq plugin",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    author="the fwp_fairseq authors",
    license="MIT",
    license_files=["LICENSE"],
    keywords=["machine translation", "fast weights", "linear attention", "Transformer", "fairseq"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["fwp_fairseq", "fwp_fairseq.*"]),
    package_data={"fwp_fairseq": ["py.typed"]},
    python_requires=">=3.10,<3.14",  # those that fairseq-fixed was tried on
    # No bound on torch, because pip would replace the installed one, whatever its CUDA. fairseq is an extra, because
    # fairseq and fairseq-fixed own the same folder, and pip would silently overwrite a user's checkout.
    install_requires=["torch", "numpy"],
    extras_require={
        "fairseq": ["fairseq-fixed==0.12.3.1"],
        "eval": ["sacrebleu>=2.3", "sacremoses", "sentencepiece", "icu4py>=1.1"],
        "dev": [
            *("pytest", "pytest-xdist", "hypothesis", "ruff", "ninja", "clang-format==20.1.8"),
            "ctranslate2",  # of a benchmark
            *("build", "pdoc"),
        ],
        "plot": ["matplotlib", "tabulate"],
        "log": ["tensorboardX", "wandb"],
        "cluster": ["hydra-submitit-launcher>=1.2"],
    },
    entry_points={"console_scripts": ["fwp = fwp_fairseq.cli:main"]},
    ext_modules=extensions,
    cmdclass={"build_py": BuildPackage, "build_ext": BuildKernels},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if extensions else {},
)
