"""scripts/gpu_day: pack, run and page; with programs in Sherd's place what fails, takes too long and is gone on with, and a whole day of a
GPU that is none; with GPU_DAY_BUILD, a build's folder, the whole day in small on a CPU."""
import contextlib
import copy
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks/gpu"))
sys.dont_write_bytecode = True
import jobs  # noqa: E402
import page  # noqa: E402
import running  # noqa: E402

# In the place of sherd: counts its calls; fails and needs memory where SHERD_FAILS and SHERD_NEEDS_MEMORY name its words.
SHERD = """#!/bin/bash
echo "$LD_LIBRARY_PATH $*" >>"$CALLS"
[[ "$SHERD_FAILS" && "$*" == *$SHERD_FAILS* ]] && { echo "sherd: no such thing" >&2; exit 69; }
[[ "$SHERD_NEEDS_MEMORY" && "$*" == *$SHERD_NEEDS_MEMORY* && "$*" != *--checkpoint-activations* ]] && { echo "sherd: out of memory" >&2; exit 1; }
echo '{"tokens_per_second": 14000.0, "step_seconds": {"median": 0.5}, "losses": [2.0, 1.0], "planned_peak_bytes": 1000,
 "peak_rank_bytes": [1020], "peak_rank_pss_bytes": [0], "constant_rank_pss_bytes": [0]}' | tr -d '\\n'
"""
GOLDEN_CHECK = """#!/bin/bash
[[ "$1" == --help ]] && { echo "--device KIND"; exit; }
echo '{"logits_rel": 1e-5, "grad_worst": "a.weight", "losses_rel": 2e-5}'
"""
KERNELS = """#!/bin/bash
echo '{"backend": "cuda", "copy_bytes_per_second": 3e12, "kernels": [{"name": "SwiGLU", "seconds": 1e-4, "bytes": 2e8, "share_of_copy": 0.66}],
 "products": [{"name": "gate", "seconds": 1e-3, "teraflops_per_second": 700.0}]}' | tr -d '\\n'
"""
PYTHON = """#!/bin/bash
[[ "$1" == -c ]] && { echo "$TORCH/torch/__init__.py"; exit; }
echo '{"tokens_per_second": 10000.0, "step_seconds": {"median": 0.7}, "peak_rank_bytes": [2000], "torch": "2.11.0"}'
"""
SANITIZER = """#!/bin/bash
while [[ "$1" != */* ]]; do shift; done
exec "$@"
"""
DRIVER = "#!/bin/bash\necho 'NVIDIA H100 80GB HBM3, 580.159.04, 81559, 9.0'\n"


class Folder(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.calls = self.folder / "calls"
        self.environment = os.environ | {"CALLS": str(self.calls)}

    def program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def gpu_day(self, code, *arguments, script=ROOT / "scripts/gpu_day", **environment):
        done = subprocess.run([sys.executable, script, *map(str, arguments)], env=self.environment | environment, capture_output=True,
                              text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr


class OfPrograms(Folder):
    """A packed folder with programs in the place of Sherd's."""

    def setUp(self):
        super().setUp()
        for name in ("scripts/gpu_day", "benchmarks/gpu", "recipes/models/llama-3-8b"):
            (self.folder / "packed" / name).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, self.folder / "packed" / name)
        self.program("packed/bin/sherd", SHERD)
        self.out = self.folder / "out"

    def run_day(self, code, *arguments, **environment):
        return self.gpu_day(code, "run", "--out", self.out, *arguments, script=self.folder / "packed/scripts/gpu_day", **environment)

    def records(self, stage):
        return json.loads((self.out / f"{stage}.json").read_text())

    def count_of_calls(self):
        return len(self.calls.read_text().splitlines())


class Run(OfPrograms):
    def test_what_fails_is_recorded_and_the_rest_goes_on(self):
        self.run_day(0, "--device", "cpu", "--stage", "rows", SHERD_FAILS="split --moments")
        records = self.records("rows")
        self.assertEqual(len(records), 1 + len(jobs.ROWS))
        for name, record in records.items():
            self.assertEqual(record["status"], "failed" if "12 bytes" in name else "passed", name)
        failed = records["Llama-3-8B, 12 bytes, 1 × 1 × 8192 tokens"]
        self.assertEqual((failed["exit_code"], failed["reason"]), (69, "sherd: no such thing"))

    def test_what_has_a_result_is_not_repeated(self):
        self.run_day(0, "--device", "cpu", "--stage", "rows", SHERD_FAILS="split")
        first = self.count_of_calls()
        self.run_day(0, "--device", "cpu", "--stage", "rows")
        self.assertEqual(self.count_of_calls(), first)
        self.run_day(0, "--device", "cpu", "--stage", "rows", "--again")
        self.assertEqual(self.count_of_calls() - first, sum("split" in jobs.MODES[mode][2] for mode, *_ in jobs.ROWS))
        self.assertEqual({one["status"] for one in self.records("rows").values()}, {"passed"})

    def test_with_no_time_left_nothing_is_begun(self):
        self.assertIn("run again", self.run_day(75, "--device", "cpu", "--stage", "rows", "--minutes", "0.1"))
        self.assertFalse(self.calls.exists())
        self.run_day(0, "--device", "cpu", "--stage", "rows")

    def test_activations_are_computed_again_where_memory_is_short(self):
        self.run_day(0, "--device", "cpu", "--stage", "rows", SHERD_NEEDS_MEMORY="split")
        record = self.records("rows")["Llama-3-8B, 14 bytes, 1 × 1 × 8192 tokens"]
        self.assertEqual((record["status"], record["tried_before"]), ("passed", "sherd: out of memory"))
        self.assertIn("--checkpoint-activations", record["command"])

    def test_no_torch_for_gpus(self):
        self.program("tools/python3", "#!/bin/sh\nexit 1\n")
        self.assertIn("import torch", self.run_day(66, PATH=f"{self.folder / 'tools'}:{os.environ['PATH']}"))

    def test_times_and_files_are_within_the_day(self):
        self.assertLessEqual(sum(jobs.STAGES.values()), 24)
        self.assertLessEqual(max(jobs.STAGES.values()), 9)
        self.run_day(0, "--device", "cpu")
        self.assertLessEqual(len(list(self.out.iterdir())), 8)


    def test_what_matters_most_of_a_gpu_comes_first(self):
        for gib, number in {80: 4, 140: len(jobs.ROWS)}.items():
            names = [job.name for job in jobs.of_stage("rows", jobs.Place("cuda", ROOT, self.folder, gib))]
            self.assertEqual(names.index("Llama-3-8B, all bf16, 128 × 4 × 1024 tokens"), number)
        cut = [job for job in jobs.of_stage("peer", jobs.Place("cuda", ROOT, self.folder, 140)) if "16 layers" in job.name]
        self.assertEqual(cut, [])


def has_files(process):
    """Open ones: a process that has ended has none."""
    try:
        return bool(os.listdir(f"/proc/{process}/fd"))
    except OSError:
        return False


class Limits(OfPrograms):
    def runner(self, seconds=100):
        silence = contextlib.redirect_stdout(io.StringIO())
        silence.__enter__()
        self.addCleanup(silence.__exit__, None, None, None)
        self.out.mkdir()
        place = jobs.Place("cpu", self.folder / "packed", self.folder)
        return running.Runner(place, self.out, self.environment, time.monotonic() + seconds)

    def test_what_takes_too_long_is_stopped_with_all_that_it_started(self):
        self.program("packed/bin/sherd", f"#!/bin/bash\nsleep 100 & echo $! >{self.folder}/child\nwait\n")
        runner = self.runner()
        self.assertEqual(runner.run_stage("rows", [jobs.Job("slow", "rows", ["sherd"], 1)], 8), 0)
        record = self.records("rows")["slow"]
        self.assertEqual((record["status"], record["reason"]), ("too long", "stopped after 1 s"))
        child = int((self.folder / "child").read_text())
        deadline = time.monotonic() + 10  # it has been killed, and ends when it is its turn
        while has_files(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(has_files(child), "still there")

    def test_what_prints_no_result_or_cannot_be_run_has_failed(self):
        runner = self.runner()
        for name, text in {"none": "#!/bin/sh\n", "half": "#!/bin/sh\necho '{\"losses\": [1.0'\n", "no program": "\0"}.items():
            self.program("packed/bin/sherd", text)
            runner.run_stage("rows", [jobs.Job(name, "rows", ["sherd"], 10)], 8)
        self.assertEqual([one["status"] for one in self.records("rows").values()], 3 * ["failed"])

    def test_what_the_end_of_the_day_stops_is_left_for_another_time(self):
        self.program("packed/bin/sherd", "#!/bin/bash\nsleep 100\n")
        running.LEAST_SECONDS, before = 0.5, running.LEAST_SECONDS
        self.addCleanup(setattr, running, "LEAST_SECONDS", before)
        self.assertEqual(self.runner(1).run_stage("rows", [jobs.Job("slow", "rows", ["sherd"], 50)], 8), 1)
        self.assertFalse((self.out / "rows.json").exists())


class AGpuThatIsNone(OfPrograms):
    """All of the day's way through on an H100, whose driver, torch and sanitizer are programs that say so."""

    def setUp(self):
        super().setUp()
        for name, text in {"nvidia-smi": DRIVER, "compute-sanitizer": SANITIZER, "python3": PYTHON}.items():
            self.program(f"tools/{name}", text)
        passes = "#!/bin/sh\n"
        for name, text in {"golden_check": GOLDEN_CHECK, "gpu_kernels": KERNELS, "ops_cuda_test": passes, "sherd_gpu_test": passes}.items():
            self.program(f"packed/bin/{name}", text)
        self.program("torch/version.py", "__version__ = '2.11.0+cu130'\n")
        self.program("nvidia/cu13/lib/libcudart.so.13", "")
        self.program("packed/lib/others/libnosuch.so.7", "")
        self.environment |= {"TORCH": str(self.folder), "PATH": f"{self.folder / 'tools'}:{os.environ['PATH']}"}

    def day(self):
        self.run_day(0)
        return page.day_of(self.out)

    def test_every_goal_is_found(self):
        day = self.day()
        skipped = {name for stage in jobs.STAGES for name, one in day[stage].items() if one["status"] == "skipped"}
        self.assertEqual(skipped, {name for name in day["rows"] if "12 bytes" in name or "14 bytes" in name})  # 80 GB are too few
        self.assertEqual({name: find(day) is not None and find(day)[1] for name, find in page.GOALS.items()}, dict.fromkeys(page.GOALS, True))
        text = page.text_of([day])
        self.assertIn("NVIDIA H100 80GB HBM3, driver 580.159.04, 80 GiB; torch 2.11.0+cu130", text)
        for line in ("| SwiGLU | 100.0 | 66 % |", "| gate | 1.000 | 700.0 |", "| BLOOM-560M, FSDP2 compiled | 10000 | 1.40 × | 0.700 | 0.00 |",
                     "| Llama-3-8B, all bf16, 1 × 1 × 8192 tokens | 14000 | 112 % | 0.500 | 0.00 | 0.00 |"):
            self.assertIn(line, text)

    def test_programs_find_libraries_and_the_model_is_cut_to_the_memory(self):
        self.day()
        libraries = self.calls.read_text().split(" ")[0].split(":")
        self.assertEqual(libraries[:3], [str(self.folder / part) for part in ("torch/lib", "packed/lib", "nvidia/cu13/lib")])
        self.assertIn("llama-16-layers.json", self.calls.read_text())

    def test_each_goal_is_missed_where_it_should_be(self):
        good = self.day()
        row = "Llama-3-8B, all bf16, 1 × 1 × 8192 tokens"

        def result(stage, name, **changes):
            def change(day):
                day[stage][name]["result"] |= changes
            return change

        def status(stage, name, value):
            def change(day):
                day[stage][name]["status"] = value
            return change

        def slow_at_8192(day):
            for one in day["rows"].values():
                if one["status"] == "passed" and one["about"].get("sequence") == 8192:
                    one["result"]["tokens_per_second"] = 10000.0

        def all_offloads_fail(day):
            for name, one in day["rows"].items():
                one["status"] = "failed" if "offload" in name else one["status"]

        faults = [("tests of", status("parity", "engine beside the CPU", "failed")), ("memcheck", status("parity", "kernels, racecheck", "too long")),
                  ("goldens", result("parity", "goldens of tiny-bloom", logits_rel=2e-4)),
                  ("losses", result("parity", "20 steps of BLOOM, cuda", losses=[2.0, 1.002])),
                  ("losses", result("parity", "20 steps of Llama, cuda", losses=[2.0, None])),
                  ("samples of 8192", slow_at_8192),
                  ("13,950", result("rows", "Llama-3-8B, all bf16, 128 × 4 × 1024 tokens", tokens_per_second=13949.0)),
                  ("FSDP2", result("peer", "BLOOM-560M, FSDP2 compiled", tokens_per_second=10800.0)), ("offload", all_offloads_fail),
                  ("planned", result("rows", row, peak_rank_bytes=[1051]))]
        for goal, change in faults:
            day = copy.deepcopy(good)
            change(day)
            missed = [name for name, find in page.GOALS.items() if not find(day)[1]]
            self.assertTrue(len(missed) == 1 and goal in missed[0], f"{goal}: {missed}")
            self.assertIn("**missed**", page.text_of([day]))

    def test_tests_that_skip_themselves_reach_nothing(self):
        self.program("packed/bin/ops_cuda_test", "#!/bin/sh\necho '[  SKIPPED ] Dtypes/CudaBackend'\n")
        day = self.day()
        self.assertEqual((page.tests_pass(day), page.sanitizers_pass(day)), (None, None))
        self.assertIn("the program skipped its tests", page.text_of([day]))

    def test_results_name_no_folder_of_the_machine(self):
        found = json.dumps(self.day())
        self.assertFalse(str(self.folder) in found or tempfile.gettempdir() in found)

    def test_what_was_not_measured_is_no_goal_reached(self):
        day = self.day()
        empty = {"machine": day["machine"], **{stage: {} for stage in jobs.STAGES}}
        self.assertEqual({find(empty) for find in page.GOALS.values()}, {None})
        del day["parity"]["kernels beside fp64"], day["parity"]["engine, racecheck"]
        self.assertEqual((page.tests_pass(day), page.sanitizers_pass(day)), (None, None))


class Pack(Folder):
    def setUp(self):
        super().setUp()
        (self.folder / "build/bin").mkdir(parents=True)
        shutil.copy2("/bin/true", self.folder / "build/bin/sherd")

    def pack(self, code, *arguments):
        return self.gpu_day(code, "pack", "--build", self.folder / "build", "--to", self.folder / "packed", *arguments)

    def test_programs_models_and_script(self):
        self.assertIn("bytes", self.pack(0, "--device", "cpu"))
        self.pack(0, "--device", "cpu")  # over what was packed before
        for name in ("programs.tar.gz", "scripts/gpu_day", "recipes/models/llama-3-8b/config.json", "benchmarks/gpu/peer.py"):
            self.assertTrue((self.folder / "packed" / name).exists(), name)

    def test_too_large(self):
        self.assertIn("more than the 0.5 MiB that may be carried", self.pack(66, "--device", "cpu", "--most-mib", "0.5"))

    def test_a_program_is_missing(self):
        self.assertIn("lacks bin/golden_check, bin/gpu_kernels, tests/ops_cuda_test, tests/sherd_gpu_test, lib/libsherd_cuda.so", self.pack(66))

    def test_a_folder_of_something_else_stays(self):
        self.program("packed/mine", "")
        self.assertIn("no folder that was packed before", self.pack(66, "--device", "cpu"))
        self.assertTrue((self.folder / "packed/mine").exists())


class Page(Folder):
    def test_the_page_in_the_repository_is_that_of_its_results(self):
        text = (ROOT / "docs/benchmarks/gpu.md").read_text()
        self.assertEqual(text.split(page.BEGIN)[1].split(page.END)[0], self.gpu_day(0, "page"))

    def test_a_cpu_is_no_gpu(self):
        self.program("out/machine.json", '{"device": "cpu"}')
        self.assertIn("the page is for GPUs", self.gpu_day(66, "page", self.folder / "out", "--write"))

    def test_no_results(self):
        self.assertIn("has no machine.json", self.gpu_day(66, "page", self.folder))


@unittest.skipUnless("GPU_DAY_BUILD" in os.environ, "GPU_DAY_BUILD names no build")
class OnCpu(Folder):
    def test_the_whole_day_in_small(self):
        self.program("tools/python3", "#!/bin/sh\nexit 1\n")  # without a torch, as in most places: to compile takes minutes
        self.gpu_day(0, "pack", "--build", os.environ["GPU_DAY_BUILD"], "--to", self.folder / "packed", "--device", "cpu")
        said = self.gpu_day(0, "run", "--device", "cpu", "--out", self.folder / "out", script=self.folder / "packed/scripts/gpu_day",
                            OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PATH=f"{self.folder / 'tools'}:{os.environ['PATH']}")
        day = page.day_of(self.folder / "out")
        for stage in jobs.STAGES:
            for name, one in day[stage].items():
                may_skip = stage == "parity" and "goldens" not in name and "steps" not in name or "FSDP2" in name
                self.assertIn(one["status"], ("passed", "skipped") if may_skip else ("passed",), f"{name}: {said}")
        self.assertEqual(len(day["parity"]["20 steps of BLOOM, cpu"]["result"]["losses"]), 20)
        self.assertLess(max(value for name, value in day["parity"]["goldens of tiny-llama3"]["result"].items() if "_rel" in name), 1e-4)
        self.assertIn("| row | tokens/s |", self.gpu_day(0, "page", self.folder / "out"))


if __name__ == "__main__":
    unittest.main()
