"""What scripts/unpack_libtorch.py takes of wheels: for CPUs, for CUDA, for GPUs, and for CPUs beside CUDA."""
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOR_CPUS = ["torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/include/ATen/Tensor.h", "nvidia/cu13/lib/libcudart.so.13"]
FOR_CUDA = ["torch/lib/libtorch_cuda.so", "torch/lib/libc10_cuda.so", "nvidia/cu13/include/cuda_runtime_api.h", "nvidia/cu13/bin/nvcc",
            "nvidia/cu13/nvvm/bin/cicc", "nvidia/nccl/include/nccl.h"]
FOR_GPUS = ["torch/lib/libtorch_cuda_linalg.so", "nvidia/nccl/lib/libnccl.so.2"]
FOR_NONE = ["torch/nn/modules.py"]
OF_WHEELS = {"torch-2.11.0": "torch/", "nvidia_cuda_runtime-13.0": ("nvidia/cu13/lib", "nvidia/cu13/include"),
             "nvidia_cuda_nvcc-13.0": ("nvidia/cu13/bin", "nvidia/cu13/nvvm"), "nvidia_nccl_cu13-2.28": "nvidia/nccl"}


def make_wheels(folder):
    folder.mkdir()
    for wheel, places in OF_WHEELS.items():
        names = [name for name in FOR_CPUS + FOR_CUDA + FOR_GPUS + FOR_NONE if name.startswith(places)]
        with zipfile.ZipFile(folder / f"{wheel}-py3-none-any.whl", "w") as archive:
            for name in names:
                archive.writestr(name, f"what {name} holds")
            record = f"{wheel}.dist-info/RECORD"
            archive.writestr(record, "".join(f"{name},sha256=0,1\n" for name in names) + f"{record},,\n")


def files_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and ".dist-info" not in str(path)
            and "lib64" not in path.parts}


class Unpacked(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        make_wheels(self.folder / "wheels")

    def unpack(self, source, out, purpose):
        subprocess.run([sys.executable, ROOT / "scripts/unpack_libtorch.py", self.folder / source, self.folder / out, purpose], check=True,
                       capture_output=True)
        return self.folder / out

    def test_has_what_its_purpose_needs(self):
        self.assertEqual(files_of(self.unpack("wheels", "cpu", "--cpu")), set(FOR_CPUS))
        self.assertEqual(files_of(self.unpack("wheels", "cuda", "--cuda")), set(FOR_CPUS + FOR_CUDA))
        self.assertEqual(files_of(self.unpack("wheels", "gpu", "--gpu")), set(FOR_CPUS + FOR_CUDA + FOR_GPUS))

    def test_for_cpus_beside_cuda_is_what_the_wheels_give_for_cpus_and_no_copy(self):
        cpu = self.unpack("wheels", "cpu", "--cpu")
        for purpose in ("--cuda", "--gpu"):
            more = self.unpack("wheels", purpose[2:], purpose)
            linked = self.unpack(purpose[2:], f"linked{purpose}", "--link-cpu")
            self.assertEqual(files_of(linked), files_of(cpu))
            for name in FOR_CPUS:
                self.assertTrue((linked / name).samefile(more / name))
                self.assertEqual((linked / name).read_text(), f"what {name} holds")


if __name__ == "__main__":
    unittest.main()
