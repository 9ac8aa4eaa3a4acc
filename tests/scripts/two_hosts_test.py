"""scripts/two_hosts: what it starts on each host, its exit codes and messages, and that nothing is left behind."""
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/two_hosts"

# In the place of sherd: tells its words, and ends as CODE_OF_0 and CODE_OF_1 say; with WAIT only when it is asked to stop.
SHERD = """#!/bin/bash
echo "$*"
trap 'exit 75' TERM
rank=$(sed 's/.*--node-rank \\([01]\\).*/\\1/' <<<"$*")
while [ "$WAIT" ]; do sleep 0.1; done
code=CODE_OF_$rank
exit ${!code:-0}
"""


class TwoHosts(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        program = pathlib.Path(temporary.name) / "sherd"
        program.write_text(SHERD)
        program.chmod(0o755)
        self.environment = os.environ | {"SHERD_BIN": temporary.name}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen([SCRIPT, *arguments], env=self.environment | environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def expect(self, code: int, *arguments: str, **environment: str) -> tuple[str, str]:
        """Standard output and error of a script that ends with this code. Skips the test where there are no such hosts."""
        script = self.start(*arguments, **environment)
        out, err = script.communicate(timeout=60)
        if code != 77 and "SKIPPED" in err:
            self.skipTest(err)
        self.assertEqual(script.returncode, code, out + err)
        left = subprocess.run("ip netns list", shell=True, capture_output=True, text=True, env=self.environment).stdout
        self.assertNotIn(f"sherd{script.pid}h", left)
        return out, err

    def test_each_host_is_given_its_part(self):
        out, _ = self.expect(0, "--rate", "10gbit", "-n", "2", "--nnodes", "2", "train", "my.toml", "-n", "1")
        for host in "01":
            self.assertIn(f"launch --nnodes 2 --node-rank {host} --master-addr 10.213.17.1 --master-port 29571 -n 2 train my.toml -n 1\n",
                          out)

    def test_the_code_is_that_of_the_host_that_failed(self):
        self.expect(66, "train", "my.toml", CODE_OF_0="76", CODE_OF_1="66")
        self.expect(81, "train", "my.toml", CODE_OF_0="81", CODE_OF_1="76")
        self.expect(1, "bandwidth", CODE_OF_0="1", CODE_OF_1="1")

    def test_a_request_to_stop_reaches_both(self):
        script = self.start("train", "my.toml", WAIT="1")
        self.addCleanup(script.communicate)
        for _ in range(2):
            if not script.stdout.readline():
                self.skipTest(script.stderr.read())
        time.sleep(0.2)  # each has set its trap
        script.send_signal(signal.SIGTERM)
        self.assertEqual(script.wait(timeout=60), 75)

    def test_what_it_cannot_be_asked(self):
        for message, arguments in {"--rate needs one": ["--rate"], "-n needs a number of ranks": ["-n", "0", "train"],
                                   "--nnodes 3: there are two hosts": ["--nnodes", "3", "train"],
                                   "scripts/two_hosts [--rate": []}.items():
            self.assertIn(message, self.expect(64, *arguments)[1])

    def test_no_program(self):
        self.assertIn("run make build first", self.expect(66, "train", SHERD_BIN="/no/such/folder")[1])

    def test_no_namespaces_or_no_link_of_the_rate(self):
        _, err = self.expect(77, "--rate", "1furlong", "train")
        self.assertIn("SKIPPED: ", err)


if __name__ == "__main__":
    unittest.main()
