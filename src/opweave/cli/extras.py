"""The package's extras: their purposes, and their requirements that are missing here."""

from __future__ import annotations

from importlib import metadata

from ..support.errors import MissingExtraError, NotSupportedError, cause_text, import_extra

PURPOSES = {
    "chat": "conversations with language models: `opweave chat`",
    "cuda": "runs graphs on NVIDIA's GPUs",
    "demo": "photographs and weights for `opweave demo`",
    "halide": "compiles expressions, and chains of element-wise operations",
    "numba": "compiles host kernels written in Python",
    "openvino": "runs graphs on CPUs, and on Intel's GPUs and NPUs",
    "pytest": "fixtures for tests of web code and of graphs",
    "safetensors": "reads and writes weights",
    "scale": "runs models on clusters of Ray: `opweave deploy --ray`",
    "server": "serves models over HTTP: `opweave deploy`, `opweave chat --serve`",
    "torch": "modules of PyTorch as graphs, and in `torch.compile`",
    "wasm": "runs WebAssembly kernels",
    "webgpu": "runs graphs on GPUs of any vendor",
}
"""Purposes of the extras for users; their requirements are in the package's metadata."""

COMPILERS = {
    "halide": ("halide", "llvmlite.binding"),
    "numba": ("numba",),
    "safetensors": ("safetensors",),
    "wasm": ("wasmtime",),
    "webgpu": ("wgpu",),
}
"""Modules with compiled code, by extra, whose import may fail though they are installed."""


def faults_of(extra: str) -> list[str]:
    """The reasons why installed packages of an extra cannot be used; imports these packages."""
    from ..backends.cuda import devices as cuda, servers
    from ..backends.openvino import devices as openvino

    faults: list[str] = []
    try:
        for module in COMPILERS.get(extra, ()):
            import_extra(module, extra, f"the extra {extra}")
        if extra == "openvino":
            openvino.core()
        if extra == "cuda":
            cuda.bindings()
    except MissingExtraError as error:
        faults.append(str(error))
    except Exception as error:  # an engine that does not start
        faults.append(cause_text(error))
    if extra == "cuda":
        faults += filter(None, (cuda.trouble_of_nvrtc(), servers.triton_fault()))
    return faults


def missing_requirements(extra: str, package: str = "opweave") -> list[str]:
    """The requirements of an extra, and of its requirements' extras, that are missing here or installed in a wrong version.

    Raises `NotSupportedError` if the package has no metadata, as in a checkout that is not installed.
    """
    from packaging.requirements import Requirement  # which ONNX Runtime needs, too

    try:
        requirements = [Requirement(text) for text in metadata.requires(package) or ()]
        extras = metadata.metadata(package).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        raise NotSupportedError(f"{package} is not installed as a package") from None
    if extra not in extras:
        raise NotSupportedError(f"the installed package {package} has no extra {extra!r}")
    lacking: dict[str, None] = {}
    for requirement in requirements:
        marker = requirement.marker
        if marker is None or not marker.evaluate({"extra": extra}) or marker.evaluate({"extra": ""}):
            continue  # of another extra, of all, or of other systems
        if not _is_installed(requirement.name, str(requirement.specifier)):
            lacking[f"{requirement.name}{requirement.specifier}"] = None
            continue
        for own in requirement.extras:
            if (requirement.name, own) != (package, extra):
                lacking |= dict.fromkeys(missing_requirements(own, requirement.name))
    return list(lacking)


def _is_installed(package: str, versions: str) -> bool:
    from packaging.specifiers import SpecifierSet

    try:
        return SpecifierSet(versions).contains(metadata.version(package), prereleases=True)
    except metadata.PackageNotFoundError:
        return False
