"""Builds the servers and the clients."""

import shutil
import subprocess

from servers import ROOT, WORK, EtcdQuickWatch


def run(command, folder):
    subprocess.run([str(word) for word in command], cwd=folder, check=True, stdin=subprocess.DEVNULL)


def build_fermata(*features):
    cargo = ("cargo", "build", "--release", "--locked", "-p", "fermata-lock", *features)
    run((*cargo, "--bin", "fermata", "--example", "cassandra"), ROOT)
    run(("cargo", "build", "--release", "--locked", "-p", "fermata-bench"), ROOT)


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


def build_quick_watch():
    """Builds etcd with another pause before it serves new watchers, from a changed copy. Needs `build` first, which fetches etcd."""
    module = "go.etcd.io/etcd/server/v3"
    go = ROOT / "bench" / "peers" / "go"
    find = ("go", "list", "-m", "-f", "{{.Dir}}", module)
    original = subprocess.run(find, cwd=go, check=True, capture_output=True, text=True).stdout.strip()
    changed = WORK / "etcd-server"
    shutil.rmtree(changed, ignore_errors=True)
    # Go keeps its own without the right to write.
    shutil.copytree(original, changed, copy_function=shutil.copyfile)
    run(("chmod", "-R", "u+w", changed), go)
    source = changed / "storage" / "mvcc" / "watchable_store.go"
    before, after = (f"watchResyncPeriod = {n} * time.Millisecond" for n in (100, 1))
    text = source.read_text()
    if text.count(before) != 1:
        raise RuntimeError(f"{source} is not as it was: no {before}")
    source.write_text(text.replace(before, after))
    modules = WORK / "etcd-1ms.mod"
    modules.write_text(f"{(go / 'go.mod').read_text()}\nreplace {module} => {changed}\n")
    shutil.copyfile(go / "go.sum", WORK / "etcd-1ms.sum")
    run(("go", "build", "-modfile", modules, "-o", WORK / EtcdQuickWatch.binary, "./etcd"), go)
