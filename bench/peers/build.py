"""Builds the servers and the clients."""

import shutil
import subprocess

from servers import ROOT, WORK


def run(command, folder):
    subprocess.run([str(word) for word in command], cwd=folder, check=True, stdin=subprocess.DEVNULL)


def build_fermata():
    cargo = ("cargo", "build", "--release", "--locked", "-p", "fermata-lock")
    run((*cargo, "--bin", "fermata", "--example", "cassandra"), ROOT)


def build():
    here = ROOT / "bench" / "peers"
    java = WORK / "java"
    (java / "classes").mkdir(parents=True, exist_ok=True)
    build_fermata()
    steps = [
        (("go", "build", "-o", WORK / "etcd", "./etcd"), here / "go"),
        (("go", "build", "-o", WORK / "client", "./client"), here / "go"),
        (("mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={java / 'lib'}"), here / "java"),
        (("javac", "-cp", f"{java / 'lib'}/*", "-d", java / "classes", "src/main/java/Sections.java"), here / "java"),
    ]
    for command, folder in steps:
        run(command, folder)
    shutil.copy(here / "java" / "src" / "main" / "resources" / "logback.xml", java / "classes")
    # Maven leaves nothing else behind.
    shutil.rmtree(here / "java" / "target", ignore_errors=True)
