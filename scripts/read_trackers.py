"""Tracks a small run with all trackers and reads it back with their own readers; see scripts/trackers.

Every figure must be that of log.jsonl. W&B's own program uploads the run to a server on loopback, too.
"""
import http.server
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from wandb_server import WandbServer

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHERD = os.environ.get("SHERD_PROGRAM", str(ROOT / "build/release/bin/sherd"))
WANDB_KEY = "0123456789abcdef" * 2 + "canaries"  # of 40 characters, as the package wants it
RECORDED = ROOT / "tests/data/trackers/mlflow.json"
NAMES = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/learning_rate": "lr", "train/epoch": "epoch",
         "perf/tokens_per_second": "tokens_per_second", "perf/samples_per_second": "samples_per_second",
         "perf/step_seconds": "step_seconds", "perf/data_wait_seconds": "data_wait_seconds",
         "perf/peak_memory_bytes": "peak_rank_bytes", "perf/mfu": "mfu"}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_mlflow(folder: pathlib.Path) -> tuple[subprocess.Popen, str]:
    port = free_port()
    with open(folder / "mlflow.log", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
             "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "artifacts")],
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    for _ in range(1200):
        try:
            urllib.request.urlopen(url + "/health")
            return server, url
        except OSError:
            assert server.poll() is None, (folder / "mlflow.log").read_text()
            time.sleep(0.1)
    sys.exit("mlflow server does not answer: " + (folder / "mlflow.log").read_text())


class Recorder(http.server.BaseHTTPRequestHandler):
    """Passes requests on, and keeps what was said."""
    target = ""
    heard: list[dict] = []

    def pass_on(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = urllib.request.Request(self.target + self.path, sent or None, method=self.command,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        self.heard.append({"method": self.command, "target": self.path, "sent": json.loads(sent) if sent else None,
                           "status": status, "answer": json.loads(body)})
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = pass_on

    def log_message(self, *_) -> None:
        pass


def train(output: pathlib.Path, uri: str, wandb_server: WandbServer) -> None:
    """Six steps of a run, or those that are left of it, uploaded by W&B's own program."""
    environment = {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
                   "MLFLOW_TRACKING_URI": uri, "HOME": str(output.parent), "WANDB_BASE_URL": wandb_server.url,
                   "WANDB_API_KEY": WANDB_KEY, "WANDB_ERROR_REPORTING": "false",
                   "WANDB_DIR": str(output.parent)}  # for logs of its own
    questions = "recipes/data/squad-32.json"
    flags = ["--model.path", "tests/data/stories260k-hf", "--data.train", questions, "--data.eval", questions,
             "--data.eval[0].limit", "4", "--train.output", str(output), "--train.max_steps", "6",
             "--train.global_batch", "12", "--data.max_length", "128", "--checkpoint.every", "3 steps", "--log.tags", "small",
             "--log.sink[1].kind", "tensorboard", "--log.sink[2].kind", "wandb", "--log.sink[2].sync", "true",
             "--log.sink[2].path", str(output), "--log.sink[3].kind", "mlflow"]
    done = subprocess.run([SHERD, "train", "tests/e2e/base.toml", *flags], cwd=ROOT, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    assert "dropped" not in done.stdout, done.stdout
    assert "tracker wandb: synchronised by wandb sync " in done.stdout, (done.stdout, wandb_server.refused)
    assert WANDB_KEY not in done.stdout, done.stdout
    print("".join(line for line in done.stdout.splitlines(keepends=True) if line.startswith("tracker")), end="")


def expected(output: pathlib.Path) -> dict[str, dict[int, float]]:
    """Name -> step -> value, of log.jsonl."""
    figures: dict[str, dict[int, float]] = {name: {} for name in [*NAMES, "eval/loss", "eval/seconds"]}
    for line in (output / "log.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name, key in NAMES.items():
            if "event" not in record and key in record:
                figures[name][record["step"]] = record[key]
        if record.get("event") == "evaluation":
            figures["eval/loss"][record["step"]] = record["loss"]
            figures["eval/seconds"][record["step"]] = record["seconds"]
    if not figures["perf/mfu"]:  # where the processor's peak is not known
        del figures["perf/mfu"]
    assert all(figures.values()), figures
    return figures


def compare(tracker: str, read: dict[str, dict[int, float]], wanted: dict[str, dict[int, float]], tolerance: float) -> None:
    assert read.keys() == wanted.keys(), (tracker, sorted(read), sorted(wanted))
    for name, by_step in wanted.items():
        assert read[name].keys() == by_step.keys(), (tracker, name, read[name], by_step)
        for step, value in by_step.items():
            assert abs(read[name][step] - value) <= tolerance * abs(value), (tracker, name, step, read[name][step], value)
    print(f"{tracker}: {sum(map(len, read.values()))} figures under {len(read)} names, as in log.jsonl")


def read_tensorboard(output: pathlib.Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
    folder = str(output / "tensorboard")
    events = event_accumulator.EventAccumulator(folder)
    events.Reload()
    as_shown = plugin_event_accumulator.EventAccumulator(folder)  # what the dashboards load
    as_shown.Reload()
    (text,) = {e.tensor_proto.string_val[0] for e in as_shown.Tensors("config")[-1:]}
    assert b'kind = "tensorboard"' in text, text
    read = {}
    for tag in events.Tags()["scalars"]:
        steps = [e.step for e in events.Scalars(tag)]
        assert len(set(steps)) == len(steps), (tag, steps)
        assert steps == [e.step for e in as_shown.Tensors(tag)], tag
        read[tag] = {e.step: e.value for e in events.Scalars(tag)}
    return read


def read_wandb(output: pathlib.Path) -> dict[str, dict[int, float]]:
    """Of the newest folder, which stands for the whole run."""
    import wandb
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal import datastore
    wandb._assert_is_internal_process = True
    read: dict[str, dict[int, float]] = {}
    files = sorted(output.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2, files
    ids = set()
    for file in files:
        read.clear()
        store = datastore.DataStore()
        store.open_for_scan(str(file))
        kinds = []
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kinds.append(record.WhichOneof("record_type"))
            assert record.num == len(kinds)
            if kinds[-1] == "run":
                ids.add(record.run.run_id)
                config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                assert config["optim"]["lr"] == 2e-5 and list(record.run.tags) == ["small"], config
                assert record.run.display_name == output.name and record.run.project == "sherd"
            for item in record.history.item:
                if not item.key.startswith("_"):
                    read.setdefault(item.key, {})[record.history.step.num] = json.loads(item.value_json)
        assert kinds[0] == "run" and kinds[-2:] == ["summary", "exit"] and record.exit.exit_code == 0, kinds
    assert len(ids) == 1, ids
    return read


def read_wandb_server(output: pathlib.Path, server: WandbServer) -> dict[str, dict[int, float]]:
    """What `wandb sync` has uploaded of the newest folder, which stands for the whole run."""
    assert not server.refused, server.refused
    assert not server.sent_key_elsewhere and server.ends == [0, 0], server.ends
    (run,) = server.runs.values()
    assert run["displayName"] == output.name and run["project"] == "sherd" and run["tags"] == ["small"], run
    assert json.loads(run["config"])["optim"]["value"]["lr"] == 2e-5, run["config"]
    read: dict[str, dict[int, float]] = {}
    newest: dict[str, float] = {}
    for row in server.rows("wandb-history.jsonl"):
        for name, value in row.items():
            if not name.startswith("_"):
                read.setdefault(name, {})[row["_step"]] = newest[name] = value
    (summary,) = server.rows("wandb-summary.json")
    assert {name: summary[name] for name in newest} == newest and summary["_step"] == 6, (summary, newest)
    return read


def read_mlflow(output: pathlib.Path, url: str) -> dict[str, dict[int, float]]:
    import mlflow
    client = mlflow.MlflowClient(url)
    (run,) = client.search_runs([client.get_experiment_by_name("sherd").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == output.name, run.info
    assert run.data.params["optim.lr"] == "2e-05" and run.data.tags["small"] == "true", run.data
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    # Steps that were made again are there twice: a server forgets nothing.
    return {name: {m.step: m.value for m in sorted(history, key=lambda m: m.timestamp)} for name, history in histories.items()}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        server, url = start_mlflow(folder)
        try:
            Recorder.target = url
            proxy = http.server.HTTPServer(("127.0.0.1", 0), Recorder)
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            output = folder / "run"
            uri = f"http://127.0.0.1:{proxy.server_port}"
            with WandbServer(WANDB_KEY) as wandb_server:
                train(output, uri, wandb_server)
                recorded = list(Recorder.heard)
                for later in output.glob("checkpoints/step-00000006"):  # as if the run had been killed before it
                    subprocess.run(["rm", "-r", str(later)], check=True)
                train(output, uri, wandb_server)
            wanted = expected(output)
            compare("TensorBoard", read_tensorboard(output), wanted, 1e-6)
            compare("W&B", read_wandb(output), wanted, 1e-12)
            compare("W&B, uploaded by wandb sync", read_wandb_server(output, wandb_server), wanted, 1e-12)
            compare("MLflow", read_mlflow(output, url), wanted, 1e-12)
            keeping = [str(file) for file in folder.rglob("*") if file.is_file() and WANDB_KEY.encode() in file.read_bytes()]
            assert not keeping, keeping
            if "--record" in sys.argv:
                RECORDED.parent.mkdir(parents=True, exist_ok=True)
                RECORDED.write_text(json.dumps(recorded, indent=1).replace(name, "/srv") + "\n")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
