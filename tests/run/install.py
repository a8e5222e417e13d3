"""`cmake --install`, and the tree it makes: moved elsewhere, it compiles and trains with nothing else around."""
import os
import shutil
import subprocess

import harness
from harness import expect

MODEL = harness.classifier("tiny", [8], 2, """
[[layers]]
name = "fc"
type = "linear"
features = 2
""", train="micro_batch = 4\naccumulate = 2", optimizer='type = "adam"\nlr = 0.01')
PREFIX = "gacc tree"  # with a space


def installed(folder, *components):
    """The tree of all components or of some, at another place than it was installed to."""
    for component in components or [None]:
        command = ["cmake", "--install", harness.BIN.parent, "--prefix", folder / "first", "--strip"]
        done = subprocess.run([*command, *(["--component", component] if component else [])], capture_output=True,
                              text=True)
        expect(done.returncode == 0, done.stderr)
    (folder / "first").rename(folder / PREFIX)
    return folder / PREFIX


def execute(folder, *command, code=0):
    """In an empty environment, from a folder that has nothing of gacc's."""
    done = subprocess.run([str(word) for word in command], env={"HOME": str(folder / "home")}, cwd=folder,
                          capture_output=True, text=True)
    expect(done.returncode == code, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def test_a_moved_tree_trains(folder):
    tree = installed(folder)
    model = folder / "model.toml"
    model.write_text(MODEL)
    data = harness.make_data(model, 16, folder)
    execute(folder, tree / "bin/gaccc", model, "-o", "step.ptx")
    weights = []
    for device in ("cpu", "emulate"):
        execute(folder, tree / "bin/gacc-exec", "step.ptx", "--data", data, "--epochs", 1, "--device", device, "--save",
                f"{device}.w")
        weights.append((folder / f"{device}.w").read_bytes())
    expect(len(weights[0]) == len(weights[1]), "the devices save other tensors")
    done = execute(folder, tree / "bin/gacc-exec", "step.ptx", "--data", data, "--verify", "--device", "cpu")
    expect("is not there" not in done.stdout, done.stdout)
    for name in ("gacc-opt", "gacc-plan"):
        expect(execute(folder, tree / "bin" / name, "--version").stdout.startswith(name), name)
    # Called by its name alone, and through a link.
    execute(folder, "/bin/sh", "-c", f"PATH='{tree}/bin' gacc-exec step.ptx --data '{data}' --updates 1 --device cpu")
    os.symlink(tree / "bin/gacc-exec", folder / "link")
    execute(folder, folder / "link", "step.ptx", "--data", data, "--updates", 1, "--device", "cpu")


def test_the_tree_is_whole(folder):
    """All that is documented is there, and no file knows where the tree was built."""
    tree = installed(folder)
    files = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    for name in ("gaccc", "gacc-exec", "gacc-opt", "gacc-plan"):
        wanted = {f"bin/{name}", f"share/man/man1/{name}.1.gz", f"share/bash-completion/completions/{name}"}
        expect(wanted <= files and any(file.endswith(f"/_{name}") for file in files),
               f"{name}: {sorted(wanted - files)}")
    doc = "share/doc/gacc/"
    wanted = {"lib/gacc/libgacc-host.so", "lib/gacc/libgacc-emu.so", "lib/gacc/libgacc-compiler.so", "include/gacc.h",
              doc + "README.md", doc + "LICENSE", doc + "docs/install.md",
              doc + "examples/mnist_mlp.toml"}
    expect(wanted <= files, sorted(wanted - files))
    for file in sorted(files):
        if file.startswith(("bin/", "lib/")):
            done = subprocess.run(["readelf", "-d", tree / file], capture_output=True, text=True)
            expect(not any(word in done.stdout for word in ("RPATH", "RUNPATH")), f"{file}:\n{done.stdout}")
        expect(str(harness.BIN.parent).encode() not in (tree / file).read_bytes(), f"{file} names the build folder")


def test_the_executor_alone_says_what_is_missing(folder):
    tree = installed(folder, "gacc")
    model = folder / "model.toml"
    model.write_text(MODEL)
    artifact, data = harness.compile_model(model, folder / "step.ptx"), harness.make_data(model, 16, folder)
    run = tree / "bin/gacc-exec"
    done = execute(folder, run, artifact, "--data", data, "--device", "cpu", code=1)
    harness.one_error(done, "libgacc-host.so is missing", "Debian package gacc-cpu")
    execute(folder, run, artifact, "--data", data, "--updates", 1, "--device", "emulate")
    expect(not shutil.which("gaccc", path=str(tree / "bin")), "the executor's component has the compiler")
    done = execute(folder, run, artifact, "--data", data, "--verify", "--device", "emulate")
    expect("gaccc is not there (Debian package gacc-compiler)" in done.stdout, done.stdout)


def test_packages(folder):
    """Each component is a package with the dependencies of its files; lintian finds no error."""
    if not shutil.which("cpack") or not shutil.which("dpkg-shlibdeps"):
        harness.skip("no cpack or no dpkg-shlibdeps here")
    if harness.sanitized():
        harness.skip("packages are made of a build without sanitizers")
    # gzip: the packages are the same inside, and made in a tenth of the time.
    done = subprocess.run(["cpack", "-G", "DEB", "-B", folder / "work", "-D", f"CPACK_OUTPUT_FILE_PREFIX={folder}",
                           "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip"], cwd=harness.BIN.parent, capture_output=True,
                           text=True)
    expect(done.returncode == 0, done.stdout + done.stderr)
    depends = {}
    for package in folder.glob("*.deb"):
        name, _, needs = subprocess.run(["dpkg-deb", "--show", "--showformat", "${Package}\n${Depends}", package],
                                        check=True,
                                        capture_output=True, text=True).stdout.partition("\n")
        depends[name] = needs
    names = ["gacc", "gacc-compiler", "gacc-cpu", "libgacc-dev", "libgacc0"]
    if (harness.BIN / "libgacc-mpi.so").exists():
        names.append("gacc-mpi")
        expect("openmpi" in depends["gacc-mpi"], str(depends))
    expect(sorted(depends) == sorted(names), str(depends))
    expect(all("libc6" in needs for name, needs in depends.items() if name != "libgacc-dev"), str(depends))
    expect(depends["libgacc-dev"].startswith("libgacc0 (="), str(depends))
    expect("libdnnl" in depends["gacc-cpu"] and "gacc (=" in depends["gacc-cpu"], str(depends))
    for name in ("gacc", "libgacc0"):
        expect(not any(word in depends[name] for word in ("dnnl", "LLVM", "zstd")),
               f"{name} is not lean: {depends[name]}")
    if not shutil.which("lintian"):
        harness.skip("no lintian here: the packages are made, and not checked")
    done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *folder.glob("*.deb")], capture_output=True,
                          text=True)
    expect(done.returncode == 0, done.stdout + done.stderr)


harness.main(globals())
