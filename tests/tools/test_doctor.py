"""`sampleforge doctor`: findings, and an exit code that scripts can use."""

import importlib.util
from types import SimpleNamespace

from sampleforge.cli import main
from sampleforge.run.folder import versions
from sampleforge.run.folder.versions import installed_version
from sampleforge.tools import doctor


def test_this_machine_can_train(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for name in ("SampleForge", "Python", "torch", "cores", "memory", "CUDA", "bf16"):
        assert f"ok     {name}" in shown


def test_a_missing_package_is_bad_and_says_how_to_install_it(capsys, monkeypatch):
    def without_fifo(package):
        return None if package == "faster-fifo" else "1.0"

    monkeypatch.setattr(doctor, "installed_version", without_fifo)
    assert main(["doctor"]) == 1
    assert "pip install faster-fifo" in capsys.readouterr().out


def test_a_package_that_is_too_old_is_named_with_the_remedy(capsys, monkeypatch):
    def old_gymnasium(package):
        return "0.29.1" if package == "gymnasium" else installed_version(package)

    for module in (doctor, versions):
        monkeypatch.setattr(module, "installed_version", old_gymnasium)
    assert main(["doctor"]) == 1
    assert "0.29.1 is too old: pip install 'gymnasium>=1.1'" in capsys.readouterr().out
    assert main(["envs"]) == 2
    shown = capsys.readouterr().err
    assert "gymnasium 0.29.1 is installed, and SampleForge needs 1.1 or newer" in shown
    assert main(["envs", "--help"]) == 0


def test_little_shared_memory_is_lacking(monkeypatch):
    for free, state in ((8 << 20, "lacks"), (64 << 20, "ok"), (4 << 30, "ok")):
        usage = SimpleNamespace(free=free, total=8 << 30)
        monkeypatch.setattr("shutil.disk_usage", lambda _, usage=usage: usage)
        finding = doctor._shared_memory()
        assert finding.state == state
        assert ("--shm-size" in finding.text) == (state != "ok")


def test_a_missing_simulator_is_lacking_but_not_bad(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    finding = doctor._optional("atari", "ale_py", "atari")
    assert finding.state == "lacks"
    assert 'pip install "sampleforge[atari]"' in finding.text


def test_a_missing_compiler_is_lacking(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    finding = doctor._compiler()
    assert finding.state == "lacks"
    assert "for --compile: there is no compiler 'no-such-compiler'" in finding.text
