"""scripts/gpu_day: pack, run and page. Programs in Sherd's place fail, hang and are run again; a whole day runs on a GPU that is played;
with GPU_DAY_BUILD, the folder of a build, the real day runs in small on a CPU."""
import contextlib
import copy
import io
import json
import os
import pathlib
import re
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
import packing  # noqa: E402
import page  # noqa: E402
import results  # noqa: E402
import running  # noqa: E402

# In sherd's place: notes its calls. It fails, or needs memory, where SHERD_FAILS or SHERD_NEEDS_MEMORY occurs in its words.
SHERD = """#!/bin/bash
echo "$LD_LIBRARY_PATH $*" >>"$CALLS"
[[ "$SHERD_FAILS" && "$*" == *$SHERD_FAILS* ]] && { echo "sherd: no such thing" >&2; exit 69; }
[[ "$SHERD_NEEDS_MEMORY" && "$*" == *$SHERD_NEEDS_MEMORY* && "$*" != *--checkpoint-activations* ]] && { echo "sherd: out of memory" >&2; exit 1; }
[[ "$1" == doctor ]] && { echo '{"ok": true, "hub": {"cache": "/home/me"}, "gpus": {"found": [{"name": "NVIDIA H200"}], "usable": 1}}'; exit; }
[[ "$*" == *--calibrate* ]] && {
 mkdir -p "$XDG_CACHE_HOME/sherd/rates" && echo '{"source": "measured"}' >"$XDG_CACHE_HOME/sherd/rates/h200-141g.json" || {
  echo "sherd: cannot make the folder $XDG_CACHE_HOME/sherd/rates" >&2; exit 73; }
 echo "rates of h200-141g written to $XDG_CACHE_HOME/sherd/rates/h200-141g.json"; exit; }
rates='measured on an H200'; [[ -f $XDG_CACHE_HOME/sherd/rates/h200-141g.json ]] && rates='measured on this kind of GPU, NVIDIA H200'
[[ "$1" == train ]] && { echo "done: 63 steps in 00:00:02, loss 6.0 -> 3.9"; echo "summary: train_loss 4.2, 500 samples/s, eval_loss 3.827, memory per rank 1 GiB"; exit; }
rate=11000; [[ "$*" == *bloom* ]] && rate=140000; [[ "$*" == *"--accum 16"* ]] && rate=14000
step=0.5; [[ "$*" == *offload-optimizer* ]] && step=0.8
profile=; [[ "$*" == *--profile* ]] && profile='"device_step_seconds": 0.5, "device_idle_seconds": 0.01, "device_groups": [
 {"group": "products", "calls": 900, "seconds": 0.3, "share_of_step": 0.6, "bytes": null, "operations": 1e14, "share_of_limit": 0.87},
 {"group": "copies", "calls": 2, "seconds": 0.01, "share_of_step": 0.02, "bytes": null, "operations": null, "share_of_limit": null}],'
attention='"cudnn", "why": ""'; [[ "$*" == *bloom* ]] && attention='"flash", "why": "not cuDNN: it has no ALiBi"'
[[ "$*" == *"--attention flash"* ]] && attention='"flash", "why": ""'
echo "{$profile"' "kernels": "cuda", "attention": [{"kernel": '$attention'}], "tokens_per_second": '$rate', "step_seconds": {"median": '$step'}, "planned_step_seconds": '$step', "planned_rates": "'$rates'", "losses": [2.0, 1.0],
 "seconds_to_first_step": 12.5, "planned_peak_bytes": 1000, "peak_rank_bytes": [1020], "peak_rank_pss_bytes": [0], "constant_rank_pss_bytes": [0]}' | tr -d '\\n'
"""
GOLDEN_CHECK = "#!/bin/bash\necho '{\"logits_rel\": 1e-5, \"grad_worst\": \"a.weight\", \"losses_rel\": 2e-5}'\n"
KERNELS = """#!/bin/bash
echo '{"backend": "cuda", "copy_bytes_per_second": 3e12, "kernels": [{"name": "SwiGLU", "seconds": 1e-4, "bytes": 2e8, "share_of_copy": 0.66}],
 "products": [{"name": "gate", "seconds": 1e-3, "teraflops_per_second": 700.0}]}' | tr -d '\\n'
"""
PYTHON = """#!/bin/bash
[[ "$1" == -c ]] && { echo "$TORCH/torch/__init__.py"; exit; }
rate=9900; [[ "$*" == *bloom* ]] && rate=62000
echo '{"tokens_per_second": '$rate', "step_seconds": {"median": 0.7}, "peak_rank_bytes": [2000], "torch": "2.11.0", "attention": "auto"}'
"""
TESTS = "#!/bin/sh\necho '[  PASSED  ] 47 tests.'\n"
SANITIZER = """#!/bin/bash
while [[ "$1" != */* ]]; do shift; done
exec "$@"
"""
DRIVER = "#!/bin/bash\necho 'NVIDIA H200, 580.159.04, 143771, 9.0'\n"
SMALLER_DRIVER = "#!/bin/bash\necho 'NVIDIA H100 80GB HBM3, 580.159.04, 81559, 9.0'\n"


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
        models = (case.config for case in (jobs.LLAMA, *jobs.QWEN))
        for name in ("scripts/gpu_day", "benchmarks", *models, "recipes/models/stories260k", "tests/data/tiny-bloom-hf"):
            (self.folder / "packed" / name).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, self.folder / "packed" / name)
        self.program("packed/bin/sherd", SHERD)
        self.out = self.folder / "out"

    def run_day(self, code, *arguments, **environment):
        return self.gpu_day(code, "run", "--out", self.out, *arguments, script=self.folder / "packed/scripts/gpu_day", **environment)

    def in_small(self, code, *arguments, **environment):
        return self.run_day(code, "--device", "cpu", "--command", "2", *arguments, **environment)

    def records(self):
        return json.loads((self.out / "results.json").read_text())

    def count_of_calls(self):
        return len(self.calls.read_text().splitlines())


HOST, TWELVE = ("Llama-3-8B, 16 × 4 × 1024 tokens, Sherd, optimizer on the host", "Llama-3-8B, 1 × 8192 tokens, Sherd, 12 bytes")


class Run(OfPrograms):
    def test_a_failure_is_recorded_and_the_others_still_run(self):
        said = self.in_small(0, SHERD_FAILS="split --moments")
        ran = {name: one["status"] for name, one in self.records().items() if one["status"] != "skipped"}
        self.assertEqual(ran, {HOST: "passed", TWELVE: "failed", "Llama-3-8B, 2 × 4096 tokens, Sherd": "passed"})
        failed = self.records()[TWELVE]
        self.assertEqual((failed["exit_code"], failed["reason"]), (69, "sherd: no such thing"))
        self.assertRegex(said, r" failed +[\d.]+ s  Llama-3-8B, 1 × 8192 tokens, Sherd, 12 bytes: sherd: no such thing")

    def test_a_job_with_a_result_is_not_repeated(self):
        self.in_small(0, SHERD_FAILS="split")
        first = self.count_of_calls()
        self.assertIn("command 2: 0 jobs", self.in_small(0))
        self.assertEqual(self.count_of_calls(), first)
        self.in_small(0, "--again")
        self.assertEqual(self.count_of_calls() - first, 1)
        self.assertEqual(self.records()[TWELVE]["status"], "passed")

    def test_a_command_keeps_the_results_of_the_other(self):
        self.in_small(0, SHERD_FAILS="split")
        self.run_day(0, "--device", "cpu", "--command", "1", "--again")
        self.assertEqual(self.records()[TWELVE]["status"], "failed")
        self.assertIn("training run", self.records())

    def test_without_time_no_job_starts(self):
        said = self.in_small(75, "--minutes", "0.1")
        self.assertIn("run again", said)
        self.assertIn("all calls with this --out", said)
        self.assertFalse(self.calls.exists())
        self.in_small(0)

    def test_the_seconds_of_all_calls_are_added_up(self):
        took = [re.search(r"this call took (\d+) s, and all calls with this --out (\d+) s", self.in_small(0)) for _ in "ab"]
        self.assertEqual(took[0][1], took[0][2])
        used = json.loads((self.out / "used.json").read_text())["seconds"]
        self.assertAlmostEqual(used, int(took[1][2]), delta=1)
        running.write(self.out / "used.json", {"seconds": 500.0})
        self.assertRegex(self.in_small(0), r"this --out 50\d s")

    def test_activations_are_recomputed_where_memory_is_short(self):
        self.in_small(0, SHERD_NEEDS_MEMORY="split")
        record = self.records()[TWELVE]
        self.assertEqual((record["status"], record["first_attempt"]), ("passed", "sherd: out of memory"))
        self.assertIn("--checkpoint-activations", record["command"])

    def test_no_torch_for_gpus(self):
        self.program("tools/python3", "#!/bin/sh\nexit 1\n")
        self.assertIn("import torch", self.run_day(66, "--command", "1", PATH=f"{self.folder / 'tools'}:{os.environ['PATH']}"))

    def test_a_command_has_to_be_named(self):
        self.assertIn("--command --rivals --qwen --lora is required", self.run_day(2, "--device", "cpu"))

    def test_time_limits_fit_the_day_and_are_said_first(self):
        for gib in (80, 140):
            place = jobs.Place("cuda", ROOT, self.folder, gib)
            limits = {command: sum(job.seconds for job in jobs.of_command(command, place)) for command in jobs.COMMANDS}
            self.assertLessEqual(limits["1"], 8 * 60)
            self.assertLessEqual(limits["2"], 4 * 60)
            self.assertLessEqual(max(limits[name] for name in jobs.BY_FLAG), 4 * 60)
            seconds = {job.name: job.seconds for job in jobs.of_command("1", place)}
            self.assertGreaterEqual((seconds["kernel tests"], seconds["kernels and products"]), (40, 20))  # a cold cuDNN makes 48 plans
        on_cpu = sum(job.seconds for job in jobs.of_command("2", jobs.Place("cpu", ROOT, self.folder)))
        first = self.in_small(0).splitlines()[0]
        self.assertEqual(first, f"command 2: 7 jobs, whose time limits add up to {on_cpu // 60} min {on_cpu % 60} s")

    def test_what_was_never_run_comes_first_and_names_are_unique(self):
        names = [job.name for command in jobs.COMMANDS for job in jobs.of_command(command, jobs.Place("cuda", ROOT, self.folder, 140))]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(names[0], "doctor")
        self.assertLess(names.index("training run"), names.index("BLOOM-560M, 16 × 512 tokens, Sherd"))
        self.assertLess(names.index("Llama-3-8B, 1 × 8192 tokens, Sherd"), names.index("Llama-3-8B, 1 × 8192 tokens, FSDP2 compiled, cuDNN"))
        self.assertFalse([name for name in names if "16 layers" in name])
        first = [job.name for job in jobs.of_command("1", jobs.Place("cuda", ROOT, self.folder, 140))]
        self.assertIn("BLOOM-560M, 16 × 512 tokens, FSDP2 compiled", first)  # a goal needs it
        self.assertNotIn("Llama-3-8B, 1 × 8192 tokens, Sherd, flash attention", first)  # no goal does


def has_files(process):
    """Whether it has open files: a process that has ended has none."""
    try:
        return bool(os.listdir(f"/proc/{process}/fd"))
    except OSError:
        return False


class Limits(OfPrograms):
    def runner(self, seconds=100):
        silence = contextlib.redirect_stdout(io.StringIO())
        self.said = silence.__enter__()
        self.addCleanup(silence.__exit__, None, None, None)
        self.out.mkdir()
        place = jobs.Place("cpu", self.folder / "packed", self.folder)
        return running.Runner(place, self.out, self.environment, time.monotonic(), seconds)

    def test_a_job_that_hangs_is_stopped_with_all_that_it_started(self):
        self.program("packed/bin/sherd", f"#!/bin/bash\nsleep 100 & echo $! >{self.folder}/child\nwait\n")
        self.assertEqual(self.runner().run([jobs.Job("slow", "rows", ["sherd"], 1), jobs.Job("next", "rows", ["nothing"], 1)]), 0)
        record = self.records()["slow"]
        self.assertEqual((record["status"], record["reason"]), ("too long", "stopped after 1 s"))
        self.assertGreaterEqual(json.loads((self.out / "used.json").read_text())["seconds"], 1)  # kept as each job ends
        self.assertEqual(self.records()["next"]["reason"], "nothing was not packed")
        child = int((self.folder / "child").read_text())
        deadline = time.monotonic() + 10  # the kill takes effect when the process is scheduled
        while has_files(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(has_files(child), "still there")

    def test_a_limit_holds_for_both_attempts_together(self):
        self.program("packed/bin/sherd", '#!/bin/bash\n[[ "$*" ]] && exec sleep 100\nsleep 3\necho out of memory\nexit 1\n')
        begin = time.monotonic()
        self.runner().run([jobs.Job("slow", "rows", ["sherd"], 4, when_out_of_memory=["again"])])
        self.assertLess(time.monotonic() - begin, 6.5)
        self.assertEqual(self.records()["slow"]["reason"], "stopped after 4 s")

    def test_a_job_without_a_result_and_one_that_cannot_run_have_failed(self):
        runner = self.runner()
        for name, text in {"none": "#!/bin/sh\n", "half": "#!/bin/sh\necho '{\"losses\": [1.0'\n", "no program": "\0"}.items():
            self.program("packed/bin/sherd", text)
            runner.run([jobs.Job(name, "rows", ["sherd"], 10)])
        self.program("packed/bin/sherd", "#!/bin/sh\necho nothing\n")
        runner.run([jobs.Job(reads, "checks", ["sherd"], 10, reads=reads) for reads in ("tests", "run", "doctor", "rates")])
        self.assertEqual({one["status"] for one in self.records().values()}, {"failed"})
        self.assertIn("it printed no sum of its tests", self.records()["tests"]["reason"])
        self.assertIn("it printed no summary with an eval_loss", self.records()["run"]["reason"])
        self.assertIn("it wrote no rates", self.records()["rates"]["reason"])

    def test_output_that_cannot_be_read_and_figures_that_cannot_be_said_end_no_day(self):
        runner = self.runner()
        self.program("packed/bin/sherd", "#!/bin/sh\nprintf 'done: 3 steps in 00:00:01\\nsummary: eval_loss none\\n'\n")
        runner.run([jobs.Job("no number", "checks", ["sherd"], 10, reads="run")])
        self.program("packed/bin/sherd", "#!/bin/sh\necho '{\"kernels\": \"cuda\"}'\n")
        self.assertEqual(runner.run([jobs.Job("no rate", "rows", ["sherd"], 10), jobs.Job("no copy", "kernels", ["sherd"], 10)]), 0)
        records = self.records()
        self.assertEqual({name: one["status"] for name, one in records.items()}, {"no number": "failed", "no rate": "passed", "no copy": "passed"})
        self.assertIn("its output cannot be read: ValueError: could not convert string to float: 'none'", records["no number"]["reason"])
        for line in ("no rate: its figures cannot be printed: KeyError: 'tokens_per_second'", "no copy: its figures cannot be printed: TypeError: "):
            self.assertIn(line, self.said.getvalue())

    def test_a_job_that_the_end_of_the_call_stops_is_left_for_another(self):
        self.program("packed/bin/sherd", "#!/bin/bash\nsleep 100\n")
        running.LEAST_SECONDS, before = 0.5, running.LEAST_SECONDS
        self.addCleanup(setattr, running, "LEAST_SECONDS", before)
        self.assertEqual(self.runner(1).run([jobs.Job("slow", "rows", ["sherd"], 50)]), 1)
        self.assertFalse((self.out / "results.json").exists())


class APlayedGpu(OfPrograms):
    """The whole day on an H200. Its driver, torch and sanitizer are programs that play them."""

    def setUp(self):
        super().setUp()
        for name, text in {"nvidia-smi": DRIVER, "compute-sanitizer": SANITIZER, "python3": PYTHON}.items():
            self.program(f"tools/{name}", text)
        for name, text in {"golden_check": GOLDEN_CHECK, "gpu_kernels": KERNELS, "ops_cuda_test": TESTS, "sherd_gpu_test": TESTS}.items():
            self.program(f"packed/bin/{name}", text)
        self.program("torch/version.py", "__version__ = '2.11.0+cu130'\n")
        self.program("nvidia/cu13/lib/libcudart.so.13", "")
        self.program("packed/lib/others/libnosuch.so.7", "")
        self.environment |= {"TORCH": str(self.folder), "PATH": f"{self.folder / 'tools'}:{os.environ['PATH']}"}

    def day(self):
        self.said = self.run_day(0, "--command", "1") + self.run_day(0, "--command", "2") + self.run_day(0, "--rivals") + self.run_day(0, "--qwen") + self.run_day(0, "--lora")
        return page.day_of(self.out)

    def test_every_goal_is_found(self):
        day = self.day()
        skipped = {name: one["reason"] for name, one in day["results"].items() if one["status"] != "passed"}
        self.assertEqual(skipped, {})
        self.assertEqual({name: find(day["results"]) is not None and find(day["results"])[1] for name, find in page.goals_of(day).items()},
                         dict.fromkeys(page.goals_of(day), True))
        text = page.text_of([day])
        self.assertIn("NVIDIA H200, driver 580.159.04, 140 GiB; torch 2.11.0+cu130", text)
        for line in ("| SwiGLU | 100.0 | 66 % |", "| gate | 1.000 | 700 |", "| products | 900 | 300.00 | 60.0 % | 87 % |", "| copies | 2 | 10.00 | 2.0 % | – |",
                     "| BLOOM-560M, 16 × 512 tokens, FSDP2 compiled | 62,000 | 2.26 | 0.7 | – | 0.0 | – | – |",
                     "| BLOOM-560M, 16 × 512 tokens, Sherd | 140,000 | – | 0.5 | 0.5 | 0.0 | 0.0 | flash (not cuDNN: it has no ALiBi) |",
                     "| Llama-3-8B, 1 × 8192 tokens, Sherd, flash attention | 11,000 | 1.00 | 0.5 | 0.5 | 0.0 | 0.0 | flash |",
                     "| Llama-3-8B, 1 × 8192 tokens, Sherd | 11,000 | – | 0.5 | 0.5 | 0.0 | 0.0 | cudnn |"):
            self.assertIn(line, text)

    def test_each_job_prints_its_figures(self):
        self.day()
        for line in ("doctor: NVIDIA H200", "goldens of tiny-bloom: largest difference 2.0e-05 (losses_rel)", "20 steps of BLOOM, cpu: GPU and CPU differ by 0.0e+00",
                     "engine tests: 47 tests passed", "training run: 63 steps, held-out loss 3.827",
                     "kernels and products: copy 3.00 TB/s, SwiGLU 66 %, gate 700 TFLOP/s",
                     "Llama-3-8B, 1 × 8192 tokens, Sherd: 11000 tokens/s, step 0.5 s (planned 0.500), peak 0.0 GiB (planned 0.0), "
                     "attention cudnn, first step after 12.5 s, products 60 %, copies 2 %",
                     "(planned 0.0), attention flash (not cuDNN: it has no ALiBi), first step after 12.5 s, products",
                     "Llama-3-8B, 1 × 8192 tokens, FSDP2 compiled, cuDNN: 9900 tokens/s, step 0.7 s, peak 0.0 GiB"):
            self.assertIn(line, self.said)

    def test_programs_find_libraries(self):
        self.day()
        libraries = self.calls.read_text().split(" ")[0].split(":")
        self.assertEqual(libraries[:3], [str(self.folder / part) for part in ("torch/lib", "packed/lib", "nvidia/cu13/lib")])

    def test_rates_are_measured_before_the_rows_and_planned_with(self):
        day = self.day()
        self.assertEqual(json.loads((self.out / "cache/sherd/rates/h200-141g.json").read_text()), {"source": "measured"})
        self.assertIn("rates of this GPU: h200-141g", self.said)
        names = list(day["results"])
        self.assertLess(names.index("rates of this GPU"), names.index("BLOOM-560M, 16 × 512 tokens, Sherd"))
        rows = [one["result"]["planned_rates"] for one in day["results"].values()
                if one["group"] in ("rows", "rivals") and "planned_rates" in one.get("result", {})]
        self.assertEqual(set(rows), {"measured on this kind of GPU, NVIDIA H200"})
        self.assertRegex(page.planned_time(day["results"])[0], r"at most 0.0 % \(.*\), \d+ rows; rates measured on this kind of GPU, NVIDIA H200$")

    def test_without_measured_rates_the_rows_still_run(self):
        self.program("packed/bin/sherd", SHERD.replace("mkdir -p", "false &&"))
        day = self.day()
        self.assertEqual(day["results"]["rates of this GPU"]["reason"], "sherd: cannot make the folder OUT/cache/sherd/rates")
        self.assertEqual(day["results"]["Llama-3-8B, 1 × 8192 tokens, Sherd"]["result"]["planned_rates"], "measured on an H200")
        self.assertRegex(page.planned_time(day["results"])[0], "rates measured on an H200$")

    def test_a_user_without_ldconfig_in_the_path(self):
        self.run_day(0, "--command", "2", PATH=f"{self.folder / 'tools'}:/usr/bin:/bin")
        self.assertTrue(self.calls.exists())

    def test_exec_runs_a_packed_program_as_the_day_does(self):
        script = self.folder / "packed/scripts/gpu_day"
        (self.folder / "packed/lib/missing").mkdir()
        (self.folder / "packed/lib/missing/libnosuch.so.7").symlink_to(self.folder / "where/it/was")
        for _ in "ab":
            self.assertIn('"tokens_per_second"', self.gpu_day(0, "exec", "--", "sherd", "bench", "--model", "my/bloom.json", script=script))
        self.day()
        of_exec, again, of_day = (line.partition(" ") for line in self.calls.read_text().splitlines()[:3])
        self.assertEqual(of_exec[2], "bench --model my/bloom.json")
        self.assertEqual(of_exec, again)
        self.assertEqual(of_exec[0].split(":")[:-1], of_day[0].split(":")[:-1])
        missing = pathlib.Path(of_exec[0].split(":")[-1])
        self.assertEqual([(one.name, one.exists()) for one in missing.iterdir()], [("libnosuch.so.7", True)])

    def test_exec_ends_as_the_program_does(self):
        script = self.folder / "packed/scripts/gpu_day"
        self.assertIn("sherd: no such thing", self.gpu_day(69, "exec", "--", "sherd", "bench", script=script, SHERD_FAILS="bench"))
        self.assertIn("gpu_day: there is no packed program nosuch: bin has golden_check, gpu_kernels, ops_cuda_test, sherd, sherd_gpu_test",
                      self.gpu_day(66, "exec", "--", "nosuch", script=script))

    def test_exec_of_a_source_tree_says_where_programs_are(self):
        self.assertIn("gpu_day: there is no packed program sherd: call the gpu_day of the folder that `pack` makes",
                      self.gpu_day(66, "exec", "--device", "cpu", "--", "sherd", "bench"))

    def test_a_smaller_gpu_compares_half_the_layers_and_skips_what_does_not_fit(self):
        self.program("tools/nvidia-smi", SMALLER_DRIVER)
        day = self.day()
        found = day["results"]
        self.assertNotIn("10,800", page.text_of([day]))  # a goal of the H200
        self.assertIn("llama-16-layers.json", self.calls.read_text())
        self.assertEqual([one["reason"] for one in found.values() if one["status"] == "skipped"],
                         ["needs 93 GiB or more, and this GPU has 80"])
        self.assertEqual(page.beside_fsdp2("Llama-3-8B", 1.08)(found), ("1.111 × FSDP2 compiled, cuDNN", True))

    def test_each_goal_is_missed_where_it_should_be(self):
        good = self.day()
        llama, short, bloom = (f"{case.name}, Sherd" for case in (jobs.LLAMA, jobs.LLAMA_SHORT, jobs.BLOOM))

        def result(name, **changes):
            return lambda found: found[name]["result"].update(changes)

        def status(name, value):
            return lambda found: found[name].update(status=value)

        faults = [("the tests of", status("engine tests", "failed")), ("memcheck", status("kernels, racecheck", "too long")),
                  ("goldens", result("goldens of tiny-bloom", logits_rel=2e-4)),
                  ("losses", result("20 steps of BLOOM, cuda", losses=[2.0, 1.002])), ("losses", result("20 steps of Llama, cuda", losses=[2.0, None])),
                  ("sherd train", result("training run", eval_loss=3.91)), ("10,800", result(llama, tokens_per_second=10799.0)),
                  ("1.08", result(f"{jobs.LLAMA.name}, FSDP2", tokens_per_second=10200.0)), ("13,500", result(short, tokens_per_second=13499.0)),
                  ("130,000", result(bloom, tokens_per_second=129999.0)),
                  ("2 × the", result(f"{jobs.BLOOM.name}, FSDP2", tokens_per_second=70100.0)),
                  ("128", result(HOST, step_seconds={"median": 0.91}, planned_step_seconds=0.91)),
                  ("planned memory", result(llama, peak_rank_bytes=[1054])),
                  ("planned memory", result(f"{jobs.BLOOM.name}, Sherd, CUDA graphs", peak_rank_bytes=[1054])),
                  ("planned step", result(llama, planned_step_seconds=0.449)),
                  ("attention is cuDNN's", result(llama, attention=[{"kernel": "flash", "why": "not cuDNN: it failed: no plan"}])),
                  ("20 s", result(llama, seconds_to_first_step=20.1))]
        for goal, change in faults:
            day = copy.deepcopy(good)
            change(day["results"])
            missed = [name for name, find in page.goals_of(day).items() if not find(day["results"])[1]]
            self.assertTrue(len(missed) == 1 and goal in missed[0], f"{goal}: {missed}")
            self.assertIn("**missed**", page.text_of([day]))

    def test_skipped_tests_reach_no_goal(self):
        self.program("packed/bin/ops_cuda_test", "#!/bin/sh\necho '[  PASSED  ] 0 tests.'\necho '[  SKIPPED ] 3 tests'\n")
        day = self.day()
        self.assertEqual((page.every(day["results"], page.TESTS), page.every(day["results"], page.SANITIZED)), (None, None))
        self.assertIn("the program skipped its tests", page.text_of([day]))

    def test_a_profile_that_failed_says_why(self):
        self.program("packed/bin/sherd", SHERD.replace('"device_groups": [', '"device_problem": "no CUPTI here", "device_groups": [], "nothing": ['))
        day = self.day()
        self.assertIn("No profile of BLOOM-560M, 16 × 512 tokens, Sherd: no CUPTI here", page.text_of([day]))
        self.assertIn("first step after 12.5 s, no profile: no CUPTI here", self.said)

    def test_what_sherds_kernels_did_not_compute_is_said(self):
        text = "cuda; LibTorch's operators compute norm (rows | of 13\\nvalues)"
        self.program("packed/bin/sherd", SHERD.replace('"kernels": "cuda"', f'"kernels": "{text}"'.replace("'", "'\\''")))
        day = self.day()
        left = "LibTorch's operators compute norm (rows | of 13 values)"
        self.assertIn(f"attention cudnn, kernels: cuda; {left}, first step after", self.said)
        self.assertIn(f"| cudnn; kernels: cuda; {left.replace('|', chr(92) + '|')} |", page.text_of([day]))
        row = day["results"]["Llama-3-8B, 1 × 8192 tokens, Sherd"]
        row["result"].update(kernels="plain", attention=[{"kernel": "flash", "why": "not cuDNN: it failed: no plan"}])
        self.assertIn("| flash (not cuDNN: it failed: no plan); kernels: plain |", page.text_of([day]))
        self.assertEqual(page.cudnn_attention(day["results"]),
                         ("flash (not cuDNN: it failed: no plan) in Llama-3-8B, 1 × 8192 tokens, Sherd", False))

    def test_results_name_no_folder_of_the_machine(self):
        found = json.dumps(self.day())
        for folder in (str(self.folder), tempfile.gettempdir(), "/home/me"):
            self.assertNotIn(folder, found)

    def test_what_was_not_measured_reaches_no_goal(self):
        found = self.day()["results"]
        self.assertEqual({find({}) for find in (page.GOALS | page.H200_GOALS).values()}, {None})
        del found["kernel tests"], found["kernels, racecheck"]
        self.assertEqual((page.every(found, page.TESTS), page.every(found, page.SANITIZED)), (None, None))


# In cmake's place: notes its words, and makes the files of a build or fails.
CMAKE = """#!/bin/bash
echo "$*" >>"$CALLS"
[[ "$CMAKE_FAILS" && "$*" == *$CMAKE_FAILS* ]] && { echo "no compiler" >&2; exit 1; }
exit 0
"""


class Pack(Folder):
    def setUp(self):
        super().setUp()
        (self.folder / "build/bin").mkdir(parents=True)
        shutil.copy2("/bin/true", self.folder / "build/bin/sherd")

    def pack(self, code, *arguments):
        return self.gpu_day(code, "pack", "--build", self.folder / "build", "--to", self.folder / "packed", *arguments)

    def test_programs_models_data_and_script(self):
        self.assertIn("bytes", self.pack(0, "--device", "cpu"))
        self.pack(0, "--device", "cpu")  # replaces what was packed before
        for name in ("programs.tar.gz", "scripts/gpu_day", "recipes/models/llama-3-8b/config.json", "benchmarks/gpu/peer.py", "benchmarks/gpu/results.py",
                     "benchmarks/peers/shapes/bloom-560m.json", "recipes/data/squad-1000-train.json"):
            self.assertTrue((self.folder / "packed" / name).exists(), name)

    def test_too_large(self):
        self.assertIn("more than the 0.5 MiB that may be carried", self.pack(66, "--device", "cpu", "--most-mib", "0.5"))

    def test_a_program_is_missing(self):
        self.assertIn("lacks bin/golden_check, bin/gpu_kernels, tests/ops_cuda_test, tests/sherd_gpu_test, lib/libsherd_cuda.so", self.pack(66))

    def test_a_folder_of_something_else_stays(self):
        self.program("packed/mine", "")
        self.assertIn("no folder that was packed before", self.pack(66, "--device", "cpu"))
        self.assertTrue((self.folder / "packed/mine").exists())

    def test_without_a_build_it_builds_what_it_packs(self):
        self.program("tools/cmake", CMAKE)
        for device, preset, targets in (("cuda", "cuda", "sherd_program golden_check gpu_kernels ops_cuda_test sherd_gpu_test sherd_cuda sherd_ops_cuda"),
                                        ("cpu", "release", "sherd_program golden_check gpu_kernels")):
            with contextlib.redirect_stdout(io.StringIO()), environment(PATH=f"{self.folder / 'tools'}:{os.environ['PATH']}", CALLS=str(self.calls)):
                self.assertEqual(packing.build(self.folder, device), self.folder / "build" / preset)
            self.assertEqual(self.calls.read_text(), f"--preset {preset} -DSHERD_BUILD_TESTS=ON\n--build --preset {preset} --target {targets}\n")
            self.calls.unlink()

    def test_a_build_that_fails_is_said(self):
        self.program("tools/cmake", CMAKE)
        for words in ("--preset cuda -D", "--build --preset cuda"):
            said = self.gpu_day(70, "pack", "--to", self.folder / "packed", PATH=f"{self.folder / 'tools'}:{os.environ['PATH']}", CMAKE_FAILS=words)
            self.assertIn("no compiler", said)
            self.assertRegex(said, f"gpu_day: cmake {words}.* failed: its output above says why; scripts/setup --tests --cuda installs")
        self.assertIn("there is no cmake here: scripts/setup installs it", self.gpu_day(70, "pack", PATH=str(self.folder)))
        self.assertFalse((self.folder / "packed").exists())


@contextlib.contextmanager
def environment(**values):
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Page(Folder):
    def test_the_page_in_the_repository_is_that_of_its_results(self):
        text = (ROOT / "docs/benchmarks/gpu.md").read_text()
        self.assertEqual(text.split(page.BEGIN)[1].split(page.END)[0], self.gpu_day(0, "page"))

    def test_figures_entered_by_hand_say_so_until_a_newer_day_replaces_them(self):
        day = {"machine": {"device": "cuda", "date": "2026-11-26", "torch": "2.11.0", "packed": {}, "by_hand": "Entered by hand.",
                           "gpu": {"name": "NVIDIA H200", "driver_version": "580"}}, "results": {}}
        self.assertIn("NVIDIA H200, driver 580; torch 2.11.0; Sherd unknown; 2026-11-26. Entered by hand.", page.text_of([day]))
        self.assertEqual(page.with_day([day], newer := day | {"results": {"doctor": {}}}), [newer])

    def test_a_cpu_is_no_gpu(self):
        self.program("out/machine.json", '{"device": "cpu"}')
        self.assertIn("the page is for GPUs", self.gpu_day(66, "page", self.folder / "out", "--write"))

    def test_results_of_programs_before_are_named(self):
        row = {"status": "skipped", "reason": "", "group": "rows", "about": {}}
        machine = {"device": "cuda", "torch": "2.11.0", "date": "2026-11-27", "packed": {"commit": "new"}, "gpu": {"name": "NVIDIA H200", "driver_version": "580"}}
        text = page.text_of([{"machine": machine, "results": {"a": row | {"commit": "old"}, "b": row | {"commit": "new"}, "c": row | {"commit": "old"}}}])
        self.assertIn("\nResults of old: a; c.\n", text)
        self.assertNotIn("Results of new", text)

    def test_no_results(self):
        self.assertIn("has no machine.json", self.gpu_day(66, "page", self.folder))


@unittest.skipUnless("GPU_DAY_BUILD" in os.environ, "GPU_DAY_BUILD names no build")
class OnCpu(Folder):
    def test_the_whole_day_in_small(self):
        self.program("tools/python3", "#!/bin/sh\nexit 1\n")  # without torch, as on most machines: compiling takes minutes
        self.gpu_day(0, "pack", "--build", os.environ["GPU_DAY_BUILD"], "--to", self.folder / "packed", "--device", "cpu")
        self.assertIn('"processor"', self.gpu_day(0, "exec", "--device", "cpu", "--", "sherd", "doctor", "--json", script=self.folder / "packed/scripts/gpu_day"))
        said = ""
        for command in (["--command", "1"], ["--command", "2"], ["--rivals"], ["--qwen"], ["--lora"]):
            said += self.gpu_day(0, "run", "--device", "cpu", "--out", self.folder / "out", *command, script=self.folder / "packed/scripts/gpu_day",
                                 OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PATH=f"{self.folder / 'tools'}:{os.environ['PATH']}")
        found = page.day_of(self.folder / "out")["results"]
        for name, one in found.items():
            self.assertIn(one["status"], ("passed", "skipped"), f"{name}: {said}")
        skipped = {name: one["reason"] for name, one in found.items() if one["status"] == "skipped"}
        self.assertLessEqual(set(skipped.values()), {"needs a GPU", "python3 has no torch", "there is no compute-sanitizer here"})
        self.assertTrue(all("FSDP2" in name for name, reason in skipped.items() if reason == "python3 has no torch"), skipped)
        self.assertEqual(len(found["20 steps of BLOOM, cpu"]["result"]["losses"]), 20)
        self.assertLess(results.worst_golden(found["goldens of tiny-llama3"]["result"])[1], 1e-4)
        self.assertEqual(found["training run"]["result"]["steps"], 6)
        self.assertGreater(found["Llama-3-8B, 1 × 8192 tokens, Sherd"]["result"]["seconds_to_first_step"], 0)
        self.assertIn("| case, program | tokens/s |", self.gpu_day(0, "page", self.folder / "out"))


if __name__ == "__main__":
    unittest.main()
