"""Builds the servers and the clients that are not there."""

import shutil
import subprocess

from servers import ROOT, WORK


def build():
    here = ROOT / "bench" / "peers"
    java = WORK / "java"
    (java / "classes").mkdir(parents=True, exist_ok=True)
    cargo = ("cargo", "build", "--release", "--locked", "-p", "fermata-lock")
    steps = [
        ((*cargo, "--bin", "fermata", "--example", "cassandra"), ROOT),
        (("go", "build", "-o", WORK / "etcd", "./etcd"), here / "go"),
        (("go", "build", "-o", WORK / "client", "./client"), here / "go"),
        (("mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={java / 'lib'}"), here / "java"),
        (("javac", "-cp", f"{java / 'lib'}/*", "-d", java / "classes", "src/main/java/Sections.java"), here / "java"),
    ]
    for command, folder in steps:
        subprocess.run([str(word) for word in command], cwd=folder, check=True, stdin=subprocess.DEVNULL)
    shutil.copy(here / "java" / "src" / "main" / "resources" / "logback.xml", java / "classes")
    # Maven leaves nothing else behind.
    shutil.rmtree(here / "java" / "target", ignore_errors=True)
