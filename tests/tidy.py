#!/usr/bin/env python3
"""House rules that a machine can check.

Gates: who may include whom; what libisthmus.so exports; no mutable data in the core; paths and tests named in documents exist;
words that do not belong here; generated files are up to date. A mirror, not a gate: lengths of functions and files beside those of
well-kept C projects.

    tests/tidy.py [--build build/release]
"""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Each layer of src/ and what it may include from src/.
MAY_SEE = {
    "base": {"base"},
    "net": {"base", "net"},
    "plug": {"base", "plug", "devices"},
    "meet": {"base", "net", "plug", "meet"},
    "coll": {"base", "plug", "coll"},
    "group": {"base", "net", "plug", "meet", "coll", "group"},
    "ckpt": {"base", "plug", "ckpt"},
    "sync": {"base", "plug", "ckpt", "sync"},
    "devices": {"base", "devices"},
    "backends": {"base", "backends"},
}
# plug knows the built-in devices by a header each; nobody else sees devices or backends.
PLUG_SEES = {"devices/host.h", "devices/cuda.h"}
# What ckpt and sync see of plug: the memory of devices, nothing else.
FAR = "plug/far.h"
# Public headers each layer may include; None: any.
PUBLIC = {"backends": {"backend.h", "device.h", "error.h"}, "devices": {"backend.h", "device.h", "error.h"}}

BANNED = [
    (re.compile(r"[\w.-]+/[\w.-]+#\d+|\bissue #?\d+", re.I), "an issue number"),
    (re.compile(r"\b(?:GL|RV|HF|ME|DT|FF|SE|US|PF|EL|N)-\d\d\b"), "the number of a case that is not in this tree"),
    (re.compile(r"(?<![\w/~.])/(?:home|root|Users)/\w"), "a path of one machine"),
    (re.compile(r"\bTODO\b|\bFIXME\b|\bXXX\b(?!X)"), "an unfinished thought"),
]
# This page has the cases, and says where each was seen.
CASES = "docs/field-cases.md"
CASES_MAY = {"an issue number", "the number of a case that is not in this tree"}
# name: median, share above 70 lines in per cent (functions)
ANCHORS = {"liburing": (6, 2.4), "libsodium": (6, 2.7), "nng": (9, 2.7), "libibverbs": (14, 3.5), "ucx": (15, 5.2), "ucc": (17, 10.8), "ggml": (14, 18.8)}

problems = []


def problem(where, text):
    problems.append(f"{where}: {text}")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as f:
        return f.read()


def files(*tops, ends=(".c", ".h")):
    for top in tops:
        for folder, names, here in os.walk(os.path.join(ROOT, top)):
            names[:] = [n for n in names if n not in ("build", "__pycache__") and not n.startswith(".")]
            for name in sorted(here):
                if name.endswith(ends):
                    yield os.path.relpath(os.path.join(folder, name), ROOT)


def check_includes():
    for path in files("src"):
        layer = path.split(os.sep)[1]
        text = read(path)
        if layer not in MAY_SEE:
            problem(path, "a layer that tests/tidy.py does not know")
            continue
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
            target = name.split("/")[0] if "/" in name else layer
            if target not in MAY_SEE[layer] or (layer == "plug" and target == "devices" and name not in PLUG_SEES) or (
                    layer in ("ckpt", "sync") and target == "plug" and name != FAR):
                problem(path, f"{layer} may not include {name}")
            if layer == "backends" and target == "backends" and "/" in name and "backends/" + path.split(os.sep)[2] != os.path.dirname(name):
                problem(path, f"a backend may not include another's {name}")
        for name in re.findall(r"^\s*#\s*include\s+<isthmus/?([\w.]*)>", text, re.M):
            if layer in PUBLIC and name not in PUBLIC[layer]:
                problem(path, f"{layer} may not include <isthmus/{name}>")
            if layer in ("base", "net", "plug", "meet", "coll", "group") and name == "sync.h":
                problem(path, f"{layer} may not include <isthmus/sync.h>")
    for path in files("tools", "examples"):
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', read(path), re.M):
            if not os.path.exists(os.path.join(ROOT, os.path.dirname(path), name)):
                problem(path, f"programs see public headers only, not {name}")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_exports(build):
    library = os.path.join(build, "lib", "libisthmus.so")
    if not os.path.exists(library):
        print("tidy: no library in", build, "- exports are not checked")
        return
    wanted = set(read("tests/symbols.txt").split())
    got = set()
    for line in run("nm", "-D", "--defined-only", library).splitlines():
        kind, name = line.split()[-2:]
        if kind != "A":
            got.add(name.split("@")[0])
    for name in sorted(got - wanted):
        problem("libisthmus.so", f"exports {name}, which no public header declares")
    for name in sorted(wanted - got):
        problem("libisthmus.so", f"does not export {name}")
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library))
    for name in needed:
        if not re.match(r"lib(c|m|pthread|dl|rt)\.so|ld-linux|lib(a|ub|t)san", name):
            problem("libisthmus.so", f"needs {name} at run time")


def is_instrumented(build):
    cache = os.path.join(build, "CMakeCache.txt")
    if not os.path.exists(cache):
        return True
    with open(cache, encoding="utf-8") as f:
        return bool(re.search(r"^CMAKE_C_FLAGS:.*(-fsanitize|--coverage)", f.read(), re.M))


def check_data(build):
    core = os.path.join(build, "CMakeFiles", "isthmus_core.dir")
    if is_instrumented(build):
        print("tidy: an instrumented build - .data and .bss are not checked")
        return
    for folder, _, names in os.walk(core):
        for name in names:
            if not name.endswith(".o"):
                continue
            for line in run("size", "-A", os.path.join(folder, name)).splitlines():
                match = re.match(r"(\.t?(?:data|bss)(?!\.rel\.ro)\S*)\s+(\d+)", line)
                if match and int(match[2]):
                    problem(name, f"{match[2]} bytes of mutable data in {match[1]}: the core holds none")


def check_paths():
    tops = "|".join(sorted(n for n in os.listdir(ROOT) if os.path.isdir(os.path.join(ROOT, n)) and not n.startswith(".") and n != "build"))
    pattern = re.compile(rf"(?<![\w/.-])((?:{tops})/[\w./*-]*[\w*])")
    documents = [p for p in files("docs", ends=(".md",))] + [n for n in os.listdir(ROOT) if n.endswith(".md")]
    for path in documents:
        text = read(path)
        for name in set(pattern.findall(text)):
            name = re.sub(r":\d+$", "", name).rstrip(".")
            if "*" in name:
                name = os.path.dirname(name.split("*")[0])
            if not os.path.exists(os.path.join(ROOT, name)):
                problem(path, f"names {name}, which does not exist")
        for name in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            if not os.path.exists(os.path.join(ROOT, os.path.dirname(path), name)):
                problem(path, f"links to {name}, which does not exist")


def has_test(text, path, name):
    """A test that runs: in C it must stand in the list, not only be written."""
    if path.endswith(".py"):
        return re.search(rf"^\s*def {name}\(", text, re.M)
    return re.search(rf"\b(?:cmocka_unit_test\w*|T|Tf)\({name}\b", text)


def check_cases():
    """Each row of the page names test files in backticks, each followed by tests in it."""
    for number, line in enumerate(read(CASES).splitlines(), 1):
        path = text = None
        for word in re.findall(r"`([^`]+)`", line) if line.startswith("| ") else ():
            if word.startswith("tests/"):
                path, text = word, None
                if os.path.exists(os.path.join(ROOT, path)):
                    text = read(path)
                else:
                    problem(f"{CASES}:{number}", f"names {path}, which does not exist")
            elif path and text is not None and not has_test(text, path, word):
                problem(f"{CASES}:{number}", f"names {word}, which is no test of {path}")


def check_words():
    own = {"tests/tidy.py"}
    every = list(files("src", "include", "tools", "tests", "examples", "python", "docs", "scripts", "cmake", "man", "bench",
                       ends=(".c", ".h", ".py", ".md", ".sh", ".cmake", ".inc", ".1", ".txt", ".in")))
    every += [os.path.join("scripts", n) for n in os.listdir(os.path.join(ROOT, "scripts"))]
    every += [n for n in os.listdir(ROOT) if n.endswith(".md") or n in ("Makefile", "CMakeLists.txt")]
    for path in sorted(set(every) - own):
        banned = [b for b in BANNED if path != CASES or b[1] not in CASES_MAY]
        for number, line in enumerate(read(path).splitlines(), 1):
            for pattern, what in banned:
                if pattern.search(line):
                    problem(f"{path}:{number}", f"{what}: {line.strip()[:80]}")


def check_heads():
    for path in files("src", "include", "tools", "tests", "examples", "bench"):
        if "SPDX-License-Identifier: Apache-2.0" not in read(path)[:200]:
            problem(path, "begins without its licence line")


def check_generated(build):
    scripts = ["gen-errors", "gen-symbols"] + (["gen-ptx"] if shutil.which("clang") else [])
    for script in scripts:
        done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", script), "--check"], capture_output=True, text=True)
        if done.returncode:
            problem("scripts/" + script, done.stderr.strip())
    tool = os.path.join(build, "bin", "isthmus")
    if os.path.exists(tool):
        done = subprocess.run(["sh", os.path.join(ROOT, "scripts/gen-man"), tool, "--check"], capture_output=True, text=True)
        if done.returncode:
            problem("man", done.stderr.strip() or done.stdout[-300:])


def function_lengths(text):
    """Lines of each function: from a '{' alone in column 0 after a ')' to the '}' in column 0."""
    lines, start = text.splitlines(), None
    for number, line in enumerate(lines):
        if line == "{" and number and lines[number - 1].rstrip().endswith(")"):
            start = number
        elif line.startswith("}") and start is not None:
            yield number - start + 1
            start = None


def mirror():
    lengths, sizes = [], []
    for path in files("src", "tools", ends=(".c",)):
        text = read(path)
        lengths += function_lengths(text)
        sizes.append((text.count("\n"), path))
    if not lengths:
        return
    above = 100 * sum(n > 70 for n in lengths) / len(lengths)
    ordered = sorted(lengths)
    print(f"functions: {len(lengths)}, median {statistics.median(lengths):.0f}, 90 % below {ordered[len(ordered) * 9 // 10]}, "
          f"longest {ordered[-1]}, above 70 lines {above:.1f} %")
    print("  others (median, above 70): " + ", ".join(f"{n} {m} {a} %" for n, (m, a) in ANCHORS.items()))
    sizes.sort()
    print(f"files: {len(sizes)}, median {statistics.median(n for n, _ in sizes):.0f} lines, longest "
          + ", ".join(f"{p} {n}" for n, p in reversed(sizes[-3:])))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    build = os.path.abspath(parser.parse_args().build)
    check_includes()
    check_exports(build)
    check_data(build)
    check_paths()
    check_cases()
    check_words()
    check_heads()
    check_generated(build)
    mirror()
    for text in problems:
        print("tidy:", text)
    print(f"tidy: {len(problems)} problems")
    return 1 if problems else 0


sys.exit(main())
